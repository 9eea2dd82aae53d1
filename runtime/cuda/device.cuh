// Everything that a kernel sees of the device, and the only file that depends on the compiler. That is nvcc, or in the
// tests a host compiler with the emulator of tests/emulation in front of the file, which supplies CUDA's names.
//
//   SHARED_ARRAY(float, partial_W, kNumWarps);   an array in the block's shared memory, 16-byte aligned, uninitialized
//   DYNAMIC_SHARED(int8_t, tile);                int8_t* const tile: the launch's dynamic shared memory, 128-byte
//                                                aligned
//   launch(kernel, grid, block, dynamic_shared_bytes, stream, arguments...);
//
// Kernels use these instead of __shared__ and <<<>>>, so that the emulator can place, bound and check what they name.
#pragma once

#ifdef __CUDACC__
#include <cuda_runtime.h>
#define SHARED_ARRAY(type, name, count) __shared__ __align__(16) type name[count]
#define DYNAMIC_SHARED(type, name)                                 \
  extern __shared__ __align__(128) unsigned char dynamic_shared[]; \
  type* const name = reinterpret_cast<type*>(dynamic_shared)
#elif !defined(SHARED_ARRAY)
#error "kernels are compiled by nvcc, or in tests through pare_emulated_kernels (tests/emulation/CMakeLists.txt)"
#endif

#include <cxxabi.h>

#include <cstddef>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>

namespace pare::runtime {

// The bytes of dynamic shared memory that a kernel may have without asking for more.
inline constexpr size_t kDefaultSharedBytes = 48 * 1024;

// Returns the name of a __global__ function, with its parameters.
inline std::string kernel_name([[maybe_unused]] const void* kernel) {
#if CUDART_VERSION < 12040
  return "(kernel)";  // toolkits before 12.4 have no cudaFuncGetName
#else
  const char* mangled = nullptr;
  if (cudaFuncGetName(&mangled, kernel) != cudaSuccess || mangled == nullptr) return "(kernel without a name)";
  int status = 0;
  char* demangled = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string name = status == 0 ? demangled : mangled;
  std::free(demangled);
  return name;
#endif
}

// True for an error of an earlier kernel, which every later call reports as if it were its own. These are the errors
// after which, by the CUDA Runtime API's reference, the process must end before it can use CUDA again.
inline bool is_of_earlier_kernel(cudaError_t status) {
  switch (status) {
    case cudaErrorECCUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
      return true;
    default:
      return false;
  }
}

inline std::string cuda_error_text(cudaError_t status) {
  return std::string(cudaGetErrorName(status)) + " (" + cudaGetErrorString(status) + ")";
}

// Queues kernel<<<grid, block, dynamic_shared_bytes, stream>>>(arguments...), with the dynamic shared memory that it
// asks for. If the device refuses the launch, throws std::runtime_error with the kernel's name, the shape and CUDA's
// error. An error inside the kernel is reported later: by the stream's next synchronization, or by a launch before it.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t dynamic_shared_bytes, cudaStream_t stream,
            Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments), "as many arguments as the kernel has parameters");
  static_assert((std::is_convertible_v<Arguments, Parameters> && ...), "arguments of the kernel's types");
  static_assert((std::is_trivially_copyable_v<Parameters> && ...), "parameters are copied to the device as bytes");
  const void* function = reinterpret_cast<const void*>(kernel);
  cudaError_t status = cudaSuccess;
  if (dynamic_shared_bytes > kDefaultSharedBytes) {
    status = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(dynamic_shared_bytes));
  }
  if (status == cudaSuccess) {
    std::tuple<std::remove_cv_t<Parameters>...> values(static_cast<Parameters>(arguments)...);
    status = std::apply(
        [&](auto&... value) {
          void* pointers[] = {static_cast<void*>(&value)..., nullptr};
          return cudaLaunchKernel(kernel, grid, block, pointers, dynamic_shared_bytes, stream);
        },
        values);
  }
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // clears the error, which is reported here
  const auto shape = [](dim3 size) {
    return std::to_string(size.x) + "x" + std::to_string(size.y) + "x" + std::to_string(size.z);
  };
  const std::string error = cuda_error_text(status);
  if (is_of_earlier_kernel(status)) {
    throw std::runtime_error("an operation before " + kernel_name(function) + " failed: " + error);
  }
  throw std::runtime_error("cannot launch " + kernel_name(function) + " on a grid of " + shape(grid) + " blocks of " +
                           shape(block) + " threads with " + std::to_string(dynamic_shared_bytes) +
                           " bytes of dynamic shared memory: " + error);
}

}  // namespace pare::runtime
