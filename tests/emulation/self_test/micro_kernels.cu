#include "tests/emulation/self_test/micro_kernels.h"

#include "runtime/cuda/device.cuh"

namespace pare {
using namespace runtime;
namespace {

constexpr unsigned kAllLanes = 0xFFFFFFFFu;

__device__ __forceinline__ int thread() {
  return static_cast<int>(threadIdx.x);
}

__global__ void coordinates(int* out) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread_of_block = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  int* mine = out + 6 * (size_t(block) * blockDim.x * blockDim.y * blockDim.z + thread_of_block);
  const unsigned values[6] = {threadIdx.x, threadIdx.y, threadIdx.z, blockIdx.x, blockIdx.y, blockIdx.z};
  for (int i = 0; i < 6; ++i) mine[i] = static_cast<int>(values[i]);
}

__global__ void reverse(const int* in, int* out) {
  SHARED_ARRAY(int, values, kReverseThreads);
  const int first = static_cast<int>(blockIdx.x) * kReverseThreads;
  values[thread()] = in[first + thread()];
  __syncthreads();
  out[first + thread()] = values[kReverseThreads - 1 - thread()];
}

__global__ void reverse_dynamic(const int* in, int* out) {
  DYNAMIC_SHARED(int, values);
  const int size = static_cast<int>(blockDim.x);
  values[thread()] = in[thread()];
  __syncthreads();
  out[thread()] = values[size - 1 - thread()];
}

__global__ void shuffles(const int* in, int* out, int operand, int width) {
  const int value = in[thread()];
  const unsigned distance = static_cast<unsigned>(operand);
  out[thread()] = __shfl_sync(kAllLanes, value, operand, width);
  out[32 + thread()] = __shfl_up_sync(kAllLanes, value, distance, width);
  out[64 + thread()] = __shfl_down_sync(kAllLanes, value, distance, width);
  out[96 + thread()] = __shfl_xor_sync(kAllLanes, value, operand, width);
}

__global__ void shuffle_pairs(const double* in, double* out) {
  out[thread()] = __shfl_xor_sync(kAllLanes, in[thread()], 1);
}

__global__ void half_warps(const int* in, int* out) {
  int value = in[thread()];
  if (thread() < 16) {
    value += __shfl_xor_sync(0x0000FFFFu, value, 1);
  } else {
    value += __shfl_xor_sync(0xFFFF0000u, value, 2);
  }
  out[thread()] = value;
}

__global__ void votes(const int* in, unsigned* out) {
  const int is_set = in[thread()] != 0;
  const unsigned ballot = __ballot_sync(kAllLanes, is_set);
  const int any = __any_sync(kAllLanes, is_set), all = __all_sync(kAllLanes, is_set);
  if (thread() == 17) {
    out[0] = ballot;
    out[1] = static_cast<unsigned>(any);
    out[2] = static_cast<unsigned>(all);
  }
  constexpr unsigned kEven = 0x55555555u;
  if (thread() % 2 != 0) return;
  const unsigned even_ballot = __ballot_sync(kEven, is_set);
  const int even_any = __any_sync(kEven, is_set), even_all = __all_sync(kEven, is_set);
  if (thread() == 4) {
    out[3] = even_ballot;
    out[4] = static_cast<unsigned>(even_any);
    out[5] = static_cast<unsigned>(even_all);
  }
}

__global__ void warp_exchange(const int* in, int* out) {
  SHARED_ARRAY(int, values, 32);
  values[thread()] = in[thread()];
  __syncwarp();
  out[thread()] = values[31 - thread()];
}

__global__ void atomics(int* out, float* floats) {
  SHARED_ARRAY(int, largest, 1);
  if (thread() == 0) largest[0] = -1;
  __syncthreads();
  atomicMax(largest, static_cast<int>(blockIdx.x * blockDim.x) + thread());
  atomicAdd(out, 1);
  atomicAdd(floats, 0.5f);
  __syncthreads();
  if (thread() == 0) atomicMax(out + 1, largest[0]);
}

__global__ void spin(int* flag, int* out, bool is_ever_set) {
  if (thread() == 0) {
    while (atomicAdd(flag, 0) == 0) {
    }
    out[0] = 1;
  } else if (thread() == 63 && is_ever_set) {
    for (int i = 0; i < 5; ++i) __nanosleep(100);
    atomicAdd(flag, 1);
  }
}

__global__ void order(int* counter, int* out) {
  for (int phase = 0; phase < 2; ++phase) {
    out[(2 * blockIdx.x + static_cast<unsigned>(phase)) * 64 + threadIdx.x] = atomicAdd(counter, 1);
    __syncthreads();
  }
}

__global__ void uninitialized(float* out) {
  SHARED_ARRAY(float, value, 1);
  DYNAMIC_SHARED(float, dynamic_value);
  out[0] = value[0];
  out[1] = dynamic_value[0];
}

__global__ void arithmetic(const int* in, float x, int* out) {
  int i = 0;
  out[i++] = __dp4a(in[0], in[1], in[2]);
  out[i++] = __float_as_int(rsqrtf(x));
  out[i++] = __float_as_int(__expf(x));
  out[i++] = __float_as_int(fminf(x, 1.0f));
  out[i++] = __float_as_int(fmaxf(x, 1.0f));
  out[i++] = __float_as_int(fabsf(-x));
  out[i++] = __float_as_int(sqrtf(x));
  out[i++] = static_cast<int>(__float_as_uint(x));
  out[i++] = __float_as_int(__uint_as_float(static_cast<unsigned>(in[3])));
  out[i++] = __float_as_int(__int_as_float(in[3]));
  out[i++] = __popc(static_cast<unsigned>(in[0]));
  out[i++] = __ffs(in[4]);
  out[i++] = __clz(in[4]);
  out[i++] = __clz(in[5]);
  out[i++] = min(in[0], in[1]);
  out[i++] = max(in[0], in[1]);
  out[i++] = __float2int_rn(2.5f * x);
  out[i++] = __float2int_rz(-2.75f * x);
  out[i++] = __float2int_rn(1e20f * x);
  out[i++] = __float2int_rn(-1e20f * x);
  out[i++] = __float2int_rn(__int_as_float(0x7FC00000) * x);
  out[i++] = __float_as_int(__int2float_rn(in[1]));
  out[i++] = __ldg(in + 6);
  out[i++] = warpSize;
}

__global__ void vectors(const int* in, int* out, int num_values) {
  const int i = 4 * thread();
  if (i >= num_values) return;
  const int4 four = *reinterpret_cast<const int4*>(in + i);
  const uint4 loaded = __ldg(reinterpret_cast<const uint4*>(in + i));
  const int2 two = *reinterpret_cast<const int2*>(in + i + 2);
  const float4 floats = *reinterpret_cast<const float4*>(in + i);
  *reinterpret_cast<float2*>(out + i) = make_float2(floats.x, __uint_as_float(loaded.y));
  out[i + 2] = two.x == four.z ? four.z : -1;
  out[i + 3] = two.y == make_int4(0, 0, 0, four.w).w ? static_cast<int>(make_uint2(0, loaded.w).y) : -1;
}

__global__ void nothing() {}

__global__ void write_one(int* memory) {
  *memory = 1;
}

__global__ void misaligned_ldg(int* memory) {
  memory[0] = __ldg(reinterpret_cast<const int4*>(memory + 1)).x;
}

__global__ void misaligned_vector(int* memory) {
  *reinterpret_cast<int4*>(memory) = *reinterpret_cast<const int4*>(memory + 1);
}

__global__ void stack_overflow(int* memory) {
  volatile char local[300 * 1024];
  for (int i = 0; i < 300; ++i) local[1024 * i] = static_cast<char>(i);
  memory[0] = local[1024 * memory[1]];
}

__global__ void unallocated_memory(int* memory, long long offset) {
  memory[offset] = 1;
}

__global__ void shuffle_width(int* memory) {
  memory[thread()] = __shfl_sync(kAllLanes, thread(), 0, 12);
}

__global__ void shuffle_lane_outside_mask(int* memory) {
  if (thread() < 8) memory[thread()] = __shfl_sync(0xFFu, thread(), 9);
}

__global__ void mask_without_caller(int* memory) {
  memory[thread()] = __shfl_sync(0x0000FFFFu, thread(), 0);
}

__global__ void mask_of_missing_lanes(int* memory) {
  __syncwarp();  // the block has 16 threads
  memory[thread()] = 1;
}

__global__ void deadlock() {
  if (thread() < 16) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

__global__ void barrier_after_return(int* memory) {
  if (thread() == 0) return;
  __syncthreads();
  memory[thread()] = 1;
}

__global__ void mixed_operations(int* memory) {
  if (thread() < 16) {
    memory[thread()] = __shfl_sync(kAllLanes, thread(), 0);
  } else {
    memory[thread()] = __any_sync(kAllLanes, thread());
  }
}

// The kernel declares 40 KiB, and its launch adds 16 KiB. In all that is more than 48.
__global__ void too_much_shared_memory_in_all(int* memory) {
  SHARED_ARRAY(int, values, 10 * 1024);
  values[thread()] = 0;
  memory[thread()] = values[thread()];
}

}  // namespace

void launch_coordinates(dim3 grid, dim3 block, int* out) {
  launch(coordinates, grid, block, 0, nullptr, out);
}

void launch_reverse(const int* in, int* out, int num_blocks, cudaStream_t stream) {
  launch(reverse, dim3(static_cast<unsigned>(num_blocks)), dim3(kReverseThreads), 0, stream, in, out);
}

void launch_reverse_dynamic(const int* in, int* out, int num_threads) {
  const unsigned size = static_cast<unsigned>(num_threads);
  launch(reverse_dynamic, dim3(1), dim3(size), size * sizeof(int), nullptr, in, out);
}

void launch_shuffles(const int* in, int* out, int operand, int width) {
  launch(shuffles, dim3(1), dim3(32), 0, nullptr, in, out, operand, width);
}

void launch_shuffle_pairs(const double* in, double* out) {
  launch(shuffle_pairs, dim3(1), dim3(32), 0, nullptr, in, out);
}

void launch_half_warps(const int* in, int* out) {
  launch(half_warps, dim3(1), dim3(32), 0, nullptr, in, out);
}
void launch_votes(const int* in, unsigned* out) {
  launch(votes, dim3(1), dim3(32), 0, nullptr, in, out);
}
void launch_warp_exchange(const int* in, int* out) {
  launch(warp_exchange, dim3(1), dim3(32), 0, nullptr, in, out);
}

void launch_atomics(int num_blocks, int num_threads, int* out, float* floats) {
  launch(atomics, dim3(static_cast<unsigned>(num_blocks)), dim3(static_cast<unsigned>(num_threads)), 0, nullptr, out,
         floats);
}

void launch_spin(int* flag, int* out, bool is_ever_set) {
  launch(spin, dim3(1), dim3(64), 0, nullptr, flag, out, is_ever_set);
}

void launch_order(int* counter, int* out) {
  launch(order, dim3(2), dim3(64), 0, nullptr, counter, out);
}

void launch_uninitialized(float* out) {
  launch(uninitialized, dim3(1), dim3(1), sizeof(float), nullptr, out);
}

void launch_arithmetic(const int* in, float x, int* out) {
  launch(arithmetic, dim3(1), dim3(1), 0, nullptr, in, x, out);
}

void launch_vectors(const int* in, int* out, int num_values) {
  launch(vectors, dim3(1), dim3(static_cast<unsigned>(num_values / 4 + 1)), 0, nullptr, in, out, num_values);
}

void launch_fault(Fault fault, int* memory) {
  const auto run = [&](void (*kernel)(int*), unsigned num_threads) {
    launch(kernel, dim3(1), dim3(num_threads), 0, nullptr, memory);
  };
  switch (fault) {
    case Fault::misaligned_ldg:
      return run(misaligned_ldg, 1);
    case Fault::misaligned_vector:
      return run(misaligned_vector, 1);
    case Fault::null_pointer:
      return launch(write_one, dim3(1), dim3(1), 0, nullptr, nullptr);
    case Fault::stack_overflow:
      return run(stack_overflow, 1);
    case Fault::unallocated_memory:
      return launch(unallocated_memory, dim3(1), dim3(1), 0, nullptr, memory, 1ll << 28);
    case Fault::shuffle_width:
      return run(shuffle_width, 32);
    case Fault::shuffle_lane_outside_mask:
      return run(shuffle_lane_outside_mask, 32);
    case Fault::mask_without_caller:
      return run(mask_without_caller, 32);
    case Fault::mask_of_missing_lanes:
      return run(mask_of_missing_lanes, 16);
    case Fault::deadlock:
      return launch(deadlock, dim3(1), dim3(32), 0, nullptr);
    case Fault::barrier_after_return:
      return run(barrier_after_return, 64);
    case Fault::mixed_operations:
      return run(mixed_operations, 32);
    case Fault::too_much_shared_memory_in_all:
      return launch(too_much_shared_memory_in_all, dim3(1), dim3(32), 16 * 1024, nullptr, memory);
  }
}

void launch_nothing(dim3 grid, dim3 block, size_t dynamic_shared_bytes, cudaStream_t stream) {
  launch(nothing, grid, block, dynamic_shared_bytes, stream);
}

cudaError_t try_launch_nothing(size_t dynamic_shared_bytes) {
  void* no_arguments[] = {nullptr};
  return cudaLaunchKernel(nothing, dim3(1), dim3(1), no_arguments, dynamic_shared_bytes, nullptr);
}

const void* nothing_kernel() {
  return reinterpret_cast<const void*>(&nothing);
}

void launch_on_pointer(int* pointer) {
  launch(write_one, dim3(1), dim3(1), 0, nullptr, pointer);
}

}  // namespace pare
