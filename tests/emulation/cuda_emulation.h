// CUDA C++ for a host compiler. It declares what <cuda_runtime.h> and nvcc give to kernels and their callers, with the
// same names and values, on the emulated device. pare_emulated_kernels() (CMakeLists.txt) includes it before every .cu
// file, and it needs nothing of the CUDA toolkit. Sources: CUDA C++ Programming Guide 13, section 10 (language) and the
// CUDA Runtime API's reference.
//
// __shared__ and __constant__ are missing on purpose. Kernels use SHARED_ARRAY and DYNAMIC_SHARED, and tables of
// constants are constexpr. Inline PTX and what rests on it have no place here: wrappers of instructions get files of
// their own, which build on emulation::warp_collective.
#pragma once

#ifdef __CUDACC__
#error "this header stands in for nvcc: kernels include runtime/cuda/device.cuh"
#endif

#include <math.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <source_location>
#include <tuple>
#include <type_traits>
#include <utility>

#ifndef CUDART_VERSION
#define CUDART_VERSION 13000  // the version of the toolkit that the emulator stands for; older ones lack functions
#endif

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

// ---- Types ------------------------------------------------------------------------------------------------------

struct char4 {
  signed char x, y, z, w;
} __attribute__((aligned(4)));
struct int2 {
  int x, y;
} __attribute__((aligned(8)));
struct int4 {
  int x, y, z, w;
} __attribute__((aligned(16)));
struct uint2 {
  unsigned x, y;
} __attribute__((aligned(8)));
struct uint3 {
  unsigned x, y, z;
};
struct uint4 {
  unsigned x, y, z, w;
} __attribute__((aligned(16)));
struct float2 {
  float x, y;
} __attribute__((aligned(8)));
struct float4 {
  float x, y, z, w;
} __attribute__((aligned(16)));
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

inline int2 make_int2(int x, int y) {
  return {x, y};
}
inline int4 make_int4(int x, int y, int z, int w) {
  return {x, y, z, w};
}
inline uint2 make_uint2(unsigned x, unsigned y) {
  return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}
inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}

// ---- The emulator, as kernels call it -----------------------------------------------------------------------------

namespace pare::emulation {

using Site = std::source_location;  // the caller's line, as a default argument

// The joint work of all lanes of a mask. It runs when the last of them has come, with `arguments` of lane i at [i].
using Execute = void (*)(void* const* arguments, uint32_t mask);
// Waits until every lane of the mask has called it with the same operation and mask. Then one of them executes. Every
// operation of a warp is based on it. It is an error if a mask names lanes that do not exist or have returned. It is
// also one if lanes wait for each other in different operations or masks.
void warp_collective(const char* operation, uint32_t mask, void* argument, Execute execute, const Site& site);

void block_barrier(const Site& site);
void warp_barrier(uint32_t mask, const Site& site);
void give_way();

enum class ShuffleMode { index, up, down, exclusive_or };
// Returns the `bits` of the lane that mode and operand name within the lane's group of `width`, a power of two up to
// 32.
uint64_t shuffle(ShuffleMode mode, uint32_t mask, uint64_t bits, int operand, int width, const Site& site);
uint32_t ballot(const char* operation, uint32_t mask, bool predicate, const Site& site);

void* shared_array(const void* key, const char* name, size_t bytes, const Site& site = Site::current());
void* dynamic_shared();
void require_aligned(const void* address, size_t alignment, const Site& site);
// Records an atomic operation. `instruction` is the place that the atomic function was called from.
void note_atomic(const void* address, size_t bytes, const void* instruction);

template <typename T>
T shuffle_value(ShuffleMode mode, uint32_t mask, T value, int operand, int width, const Site& site) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8), "what CUDA shuffles");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = shuffle(mode, mask, bits, operand, width, site);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// A pointer among a kernel's arguments. It must lead to the device's memory.
struct PointerArgument {
  int index;  // its place among the parameters, from 1; 0: not a pointer
  const void* pointer;
};

}  // namespace pare::emulation

#define SHARED_ARRAY(type, name, count)       \
  static constinit const char name##_key = 0; \
  type(&name)[count] =                        \
      *static_cast<type(*)[count]>(::pare::emulation::shared_array(&name##_key, #name, sizeof(type[count])))
#define DYNAMIC_SHARED(type, name) type* const name = static_cast<type*>(::pare::emulation::dynamic_shared())

// ---- The view of a thread -----------------------------------------------------------------------------------------

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

inline void __syncthreads(const pare::emulation::Site& site = pare::emulation::Site::current()) {
  pare::emulation::block_barrier(site);
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu,
                       const pare::emulation::Site& site = pare::emulation::Site::current()) {
  pare::emulation::warp_barrier(mask, site);
}
inline void __nanosleep(unsigned) {
  pare::emulation::give_way();
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, int width = warpSize,
              const pare::emulation::Site& site = pare::emulation::Site::current()) {
  return pare::emulation::shuffle_value(pare::emulation::ShuffleMode::index, mask, value, lane, width, site);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                 const pare::emulation::Site& site = pare::emulation::Site::current()) {
  return pare::emulation::shuffle_value(pare::emulation::ShuffleMode::up, mask, value, static_cast<int>(delta), width,
                                        site);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                   const pare::emulation::Site& site = pare::emulation::Site::current()) {
  return pare::emulation::shuffle_value(pare::emulation::ShuffleMode::down, mask, value, static_cast<int>(delta), width,
                                        site);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize,
                  const pare::emulation::Site& site = pare::emulation::Site::current()) {
  return pare::emulation::shuffle_value(pare::emulation::ShuffleMode::exclusive_or, mask, value, lane_mask, width,
                                        site);
}
inline unsigned __ballot_sync(unsigned mask, int predicate,
                              const pare::emulation::Site& site = pare::emulation::Site::current()) {
  return pare::emulation::ballot("__ballot_sync", mask, predicate != 0, site);
}
inline int __any_sync(unsigned mask, int predicate,
                      const pare::emulation::Site& site = pare::emulation::Site::current()) {
  return pare::emulation::ballot("__any_sync", mask, predicate != 0, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate,
                      const pare::emulation::Site& site = pare::emulation::Site::current()) {
  return pare::emulation::ballot("__all_sync", mask, predicate != 0, site) == mask;
}

// Atomics return the value that was there before. They are functions of their own without the compiler's hooks, which
// would report them as plain accesses.
#define PARE_EMULATED_ATOMIC __attribute__((noinline, no_sanitize("thread")))
template <typename T>
PARE_EMULATED_ATOMIC T atomicAdd(T* address, std::type_identity_t<T> value) {
  static_assert(std::is_same_v<T, int> || std::is_same_v<T, unsigned> || std::is_same_v<T, float>);
  pare::emulation::note_atomic(address, sizeof(T), __builtin_return_address(0));
  const T old = *address;
  if constexpr (std::is_same_v<T, int>) {
    *address = static_cast<int>(static_cast<unsigned>(old) + static_cast<unsigned>(value));  // wraps
  } else {
    *address = old + value;
  }
  return old;
}
template <typename T>
PARE_EMULATED_ATOMIC T atomicMax(T* address, std::type_identity_t<T> value) {
  static_assert(std::is_same_v<T, int> || std::is_same_v<T, unsigned>);
  pare::emulation::note_atomic(address, sizeof(T), __builtin_return_address(0));
  const T old = *address;
  *address = old < value ? value : old;
  return old;
}
#undef PARE_EMULATED_ATOMIC

template <typename T>
T __ldg(const T* address, const pare::emulation::Site& site = pare::emulation::Site::current()) {
  pare::emulation::require_aligned(address, alignof(T), site);
  return *address;
}

// Returns c + the sum of the products of four signed bytes of a and b. It wraps.
inline int __dp4a(int a, int b, int c) {
  unsigned sum = static_cast<unsigned>(c);
  for (int byte = 0; byte < 4; ++byte) {
    sum += static_cast<unsigned>(static_cast<int8_t>(static_cast<unsigned>(a) >> 8 * byte) *
                                 static_cast<int8_t>(static_cast<unsigned>(b) >> 8 * byte));
  }
  return static_cast<int>(sum);
}

// Returns four of the eight bytes of b:a (a's are 0 to 3), the lowest first. The nibbles of `selector` choose them. The
// highest bit of a nibble asks for copies of the byte's sign instead.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  unsigned result = 0;
  for (int byte = 0; byte < 4; ++byte) {
    const unsigned nibble = selector >> 4 * byte & 0xFu, index = nibble & 7u;
    unsigned value = (index < 4 ? a >> 8 * index : b >> 8 * (index - 4)) & 0xFFu;
    if ((nibble & 8u) != 0) value = (value & 0x80u) != 0 ? 0xFFu : 0u;
    result |= value << 8 * byte;
  }
  return result;
}

// These are within the bounds that CUDA gives for the device's functions (2 units in the last place for rsqrtf, 2 +
// floor(|1.173 x|) for __expf), but have other bits.
inline float rsqrtf(float x) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x)));
}
inline float __expf(float x) {
  return std::exp(x);
}
inline float __fdividef(float x, float y) {
  return x / y;
}

// These round as the name says. Values out of range give the nearest int, and NaN gives 0, where C++ leaves a cast
// undefined.
inline int saturated_int(float integral) {
  if (integral != integral) return 0;
  if (integral >= 2147483648.0f) return std::numeric_limits<int>::max();
  if (integral < -2147483648.0f) return std::numeric_limits<int>::min();
  return static_cast<int>(integral);
}
inline int __float2int_rn(float x) {
  return saturated_int(std::nearbyint(x));
}
inline int __float2int_rz(float x) {
  return saturated_int(std::trunc(x));
}
inline float __int2float_rn(int x) {
  return static_cast<float>(x);
}

template <typename To, typename From>
To same_bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &value, sizeof(To));
  return result;
}
inline unsigned __float_as_uint(float x) {
  return same_bits<unsigned>(x);
}
inline int __float_as_int(float x) {
  return same_bits<int>(x);
}
inline float __uint_as_float(unsigned x) {
  return same_bits<float>(x);
}
inline float __int_as_float(int x) {
  return same_bits<float>(x);
}

inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline int __clz(int x) {
  return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x));
}

using std::max;
using std::min;

// ---- The runtime's functions on the host --------------------------------------------------------------------------

enum cudaError {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorECCUncorrectable = 214,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorIllegalState = 401,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchTimeout = 702,
  cudaErrorAssert = 710,
  cudaErrorHardwareStackError = 714,
  cudaErrorIllegalInstruction = 715,
  cudaErrorMisalignedAddress = 716,
  cudaErrorInvalidAddressSpace = 717,
  cudaErrorInvalidPc = 718,
  cudaErrorLaunchFailure = 719,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
  cudaErrorStreamCaptureImplicit = 906,
  cudaErrorStreamCaptureWrongThread = 908,
};
using cudaError_t = cudaError;
enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4,
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal = 0,
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2,
};
using cudaStream_t = struct CUstream_st*;
using cudaGraph_t = struct CUgraph_st*;
using cudaGraphExec_t = struct CUgraphExec_st*;
struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem;
  size_t sharedMemPerBlock;
  size_t sharedMemPerBlockOptin;
  int major;
  int minor;
  int multiProcessorCount;
  int warpSize;
};

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes);
cudaError_t cudaMalloc(void** pointer, size_t bytes);
template <typename T>
cudaError_t cudaMalloc(T** pointer, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(pointer), bytes);
}
cudaError_t cudaFree(void* pointer);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream = nullptr);
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream = nullptr);
cudaError_t cudaStreamCreate(cudaStream_t* stream);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags = 0);
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable);
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value);
#if CUDART_VERSION >= 12040
cudaError_t cudaFuncGetName(const char** name, const void* kernel);
#endif
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);

namespace pare::emulation {

struct Grid {
  const void* kernel;
  dim3 grid, block;
  size_t dynamic_shared_bytes;
  cudaStream_t stream;
};
// Runs a grid of threads, each of which calls run(context). Throws Error for a fault of the kernel.
cudaError_t run_grid(const Grid& grid, const PointerArgument* pointers, size_t num_pointers, void (*run)(void* context),
                     void* context);
// True if work of this stream is recorded instead of run.
bool is_captured(cudaStream_t stream);
// Records the launch: `run` runs the grid, with the arguments as they are now.
cudaError_t capture_grid(const Grid& grid, std::function<cudaError_t()> run);

template <typename Parameter>
PointerArgument pointer_argument(size_t index, const void* argument) {
  if constexpr (std::is_pointer_v<Parameter>) {
    return {static_cast<int>(index) + 1, reinterpret_cast<const void*>(*static_cast<const Parameter*>(argument))};
  } else {
    return {0, nullptr};
  }
}

template <typename... Parameters, size_t... indices>
cudaError_t launch_kernel(void (*kernel)(Parameters...), const Grid& grid, void** arguments,
                          std::index_sequence<indices...>) {
  struct Call {
    void (*kernel)(Parameters...);
    void** arguments;
  } call{kernel, arguments};
  const PointerArgument pointers[] = {pointer_argument<Parameters>(indices, arguments[indices])..., {0, nullptr}};
  // Each thread has its own copies of the arguments.
  const auto run = [](void* context) {
    const Call& c = *static_cast<const Call*>(context);
    c.kernel(*static_cast<std::remove_cv_t<Parameters>*>(c.arguments[indices])...);
  };
  return run_grid(grid, pointers, sizeof...(Parameters), run, &call);
}

}  // namespace pare::emulation

template <typename... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments,
                             size_t dynamic_shared_bytes = 0, cudaStream_t stream = nullptr) {
  using Values = std::tuple<std::remove_cv_t<Parameters>...>;
  constexpr auto kIndices = std::index_sequence_for<Parameters...>();
  const pare::emulation::Grid shape = {reinterpret_cast<const void*>(kernel), grid, block, dynamic_shared_bytes,
                                       stream};
  if (!pare::emulation::is_captured(stream)) {
    return pare::emulation::launch_kernel(kernel, shape, arguments, kIndices);
  }
  return [&]<size_t... indices>(std::index_sequence<indices...>) {
    const auto values = std::make_shared<Values>(*static_cast<std::remove_cv_t<Parameters>*>(arguments[indices])...);
    return pare::emulation::capture_grid(shape, [kernel, shape, values] {
      void* pointers[] = {static_cast<void*>(&std::get<indices>(*values))..., nullptr};
      return pare::emulation::launch_kernel(kernel, shape, pointers, std::index_sequence<indices...>());
    });
  }
  (kIndices);
}
