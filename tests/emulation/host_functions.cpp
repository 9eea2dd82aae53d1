#include "tests/emulation/host_functions.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>

#include "tests/emulation/address_check.h"
#include "tests/emulation/device_memory.h"
#include "tests/emulation/emulator.h"
#include "tests/emulation/race_check.h"
#include "tests/emulation/shared_memory.h"
#include "tests/emulation/source_line.h"

struct CUstream_st {};

namespace pare::emulation {
namespace {

struct State {
  std::mutex mutex;
  size_t num_launches = 0;
  Options options;
  Device device;
  cudaError_t last_error = cudaSuccess;
  std::map<cudaStream_t, std::unique_ptr<CUstream_st>> streams;
  std::map<const void*, size_t> dynamic_limits;  // bytes, for the kernels that cudaFuncSetAttribute has named
};

State& state() {
  static State state;
  return state;
}

cudaError_t device_status() {
  if (device().count == 0) return remember(cudaErrorNoDevice);
  if (device().driver_version < device().runtime_version) return remember(cudaErrorInsufficientDriver);
  return remember(static_cast<cudaError_t>(device().sticky_error));
}

// Returns whether a copy of `bytes` may use the pointer as its kind says: a device pointer within one allocation, or a
// host pointer.
bool is_usable(const void* pointer, size_t bytes, bool is_device) {
  if (is_device) return device_memory::is_allocated(pointer, bytes);
  return pointer != nullptr && !device_memory::is_device(pointer);
}

}  // namespace

std::mutex& host_functions_mutex() {
  return state().mutex;
}

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) state().last_error = error;
  return error;
}

cudaError_t stream_status(cudaStream_t stream) {
  if (const cudaError_t status = device_status(); status != cudaSuccess) return status;
  if (stream != nullptr && state().streams.count(stream) == 0) return remember(cudaErrorInvalidResourceHandle);
  return cudaSuccess;
}

SharedLimits shared_limits(const void* kernel) {
  const auto found = state().dynamic_limits.find(kernel);
  if (found == state().dynamic_limits.end()) {
    return {shared_memory::kStaticLimitBytes, shared_memory::kStaticLimitBytes};
  }
  return {found->second, device().shared_optin_bytes};
}

Build build() {
  return address_check::is_on() ? Build::asan : race_check::is_on() ? Build::race : Build::plain;
}
const Options& options() {
  return state().options;
}
void set_options(const Options& options) {
  state().options = options;
}
const Device& device() {
  return state().device;
}

void count_launch() {
  ++state().num_launches;
}
size_t num_launches() {
  return state().num_launches;
}

void set_device(const Device& device) {
  const std::lock_guard lock(host_functions_mutex());
  if (device_memory::num_allocations() > 0) {
    throw std::invalid_argument("the emulated device cannot be replaced: " +
                                std::to_string(device_memory::num_allocations()) + " allocations have not been freed");
  }
  if (device.memory_bytes > device_memory::kReservedBytes) {
    throw std::invalid_argument("the emulated device has at most " + std::to_string(device_memory::kReservedBytes) +
                                " bytes of memory, not " + std::to_string(device.memory_bytes));
  }
  state().device = device;
  state().last_error = cudaSuccess;
  state().dynamic_limits.clear();
}

size_t num_allocations() {
  return device_memory::num_allocations();
}
size_t allocated_bytes() {
  return device_memory::allocated_bytes();
}

}  // namespace pare::emulation

using namespace pare::emulation;  // NOLINT: what follows are CUDA's own names

cudaError_t cudaGetDeviceCount(int* count) {
  const std::lock_guard lock(host_functions_mutex());
  *count = 0;
  if (const cudaError_t status = device_status(); status != cudaSuccess) return status;
  *count = device().count;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int index) {
  const std::lock_guard lock(host_functions_mutex());
  if (const cudaError_t status = device_status(); status != cudaSuccess) return status;
  return index >= 0 && index < device().count ? cudaSuccess : remember(cudaErrorInvalidDevice);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
  if (const cudaError_t status = cudaSetDevice(index); status != cudaSuccess) return status;
  const std::lock_guard lock(host_functions_mutex());
  *properties = {};
  device().name.copy(properties->name, sizeof(properties->name) - 1);
  properties->totalGlobalMem = device().memory_bytes;
  properties->sharedMemPerBlock = shared_memory::kStaticLimitBytes;
  properties->sharedMemPerBlockOptin = device().shared_optin_bytes;
  properties->major = device().major;
  properties->minor = device().minor;
  properties->multiProcessorCount = device().num_multiprocessors;
  properties->warpSize = warpSize;
  return cudaSuccess;
}

// Both versions are known without a device.
cudaError_t cudaDriverGetVersion(int* version) {
  *version = device().driver_version;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = device().runtime_version;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  const std::lock_guard lock(host_functions_mutex());
  if (const cudaError_t status = device_status(); status != cudaSuccess) return status;
  *total_bytes = device().memory_bytes;
  *free_bytes = device().memory_bytes - device_memory::allocated_bytes();
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  const std::lock_guard lock(host_functions_mutex());
  if (const cudaError_t status = device_status(); status != cudaSuccess) return status;
  *pointer = nullptr;
  if (const cudaError_t status = uncaptured_status(); status != cudaSuccess) return status;
  if (bytes == 0) return cudaSuccess;
  *pointer = device_memory::allocate(bytes, device().memory_bytes);
  return *pointer == nullptr ? remember(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  const std::lock_guard lock(host_functions_mutex());
  if (const cudaError_t status = device_status(); status != cudaSuccess) return status;
  if (const cudaError_t status = uncaptured_status(); status != cudaSuccess) return status;
  return pointer == nullptr || device_memory::free(pointer) ? cudaSuccess : remember(cudaErrorInvalidValue);
}

namespace {

cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const bool is_default = kind == cudaMemcpyDefault;
  const bool to_device =
      is_default ? device_memory::is_device(to) : kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device =
      is_default ? device_memory::is_device(from) : kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (!is_usable(to, bytes, to_device) || !is_usable(from, bytes, from_device)) return remember(cudaErrorInvalidValue);
  const device_memory::Access access;
  std::memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t set(void* to, int value, size_t bytes) {
  if (!is_usable(to, bytes, true)) return remember(cudaErrorInvalidValue);
  const device_memory::Access access;
  std::memset(to, value, bytes);
  return cudaSuccess;
}

// Runs work of a stream, or records it for the stream's graph, where it takes its turn with the mutex.
template <typename Work>
cudaError_t run_or_record(cudaStream_t stream, const Work& work) {
  const auto locked = [work] {
    const std::lock_guard lock(host_functions_mutex());
    return work();
  };
  cudaError_t status = cudaSuccess;
  return records(stream, locked, status) ? status : work();
}

}  // namespace

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  const std::lock_guard lock(host_functions_mutex());
  if (const cudaError_t status = stream_status(stream); status != cudaSuccess) return status;
  if (bytes == 0) return cudaSuccess;
  return run_or_record(stream, [=] { return copy(to, from, bytes, kind); });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  const std::lock_guard lock(host_functions_mutex());
  if (const cudaError_t status = stream_status(stream); status != cudaSuccess) return status;
  if (bytes == 0) return cudaSuccess;
  return run_or_record(stream, [=] { return set(to, value, bytes); });
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  const std::lock_guard lock(host_functions_mutex());
  if (const cudaError_t status = device_status(); status != cudaSuccess) return status;
  auto created = std::make_unique<CUstream_st>();
  *stream = created.get();
  state().streams[*stream] = std::move(created);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::lock_guard lock(host_functions_mutex());
  if (const cudaError_t status = stream_status(stream); status != cudaSuccess) return status;
  return state().streams.erase(stream) == 1 ? cudaSuccess : remember(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const std::lock_guard lock(host_functions_mutex());
  if (const cudaError_t status = stream_status(stream); status != cudaSuccess) return status;
  return synchronize_status(stream);
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  const std::lock_guard lock(host_functions_mutex());
  if (const cudaError_t status = device_status(); status != cudaSuccess) return status;
  if (kernel == nullptr) return remember(cudaErrorInvalidDeviceFunction);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      static_cast<size_t>(value) > device().shared_optin_bytes) {
    return remember(cudaErrorInvalidValue);
  }
  state().dynamic_limits[kernel] = static_cast<size_t>(value);
  return cudaSuccess;
}

cudaError_t cudaFuncGetName(const char** name, const void* kernel) {
  const std::lock_guard lock(host_functions_mutex());
  *name = symbol_name(kernel);
  return *name == nullptr ? remember(cudaErrorInvalidDeviceFunction) : cudaSuccess;
}

cudaError_t cudaGetLastError() {
  const std::lock_guard lock(host_functions_mutex());
  return std::exchange(state().last_error, cudaSuccess);
}

cudaError_t cudaPeekAtLastError() {
  const std::lock_guard lock(host_functions_mutex());
  return state().last_error;
}

namespace {

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};

constexpr ErrorText kErrorTexts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorIllegalState, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {cudaErrorAssert, "cudaErrorAssert", "device-side assert triggered"},
    {cudaErrorHardwareStackError, "cudaErrorHardwareStackError", "hardware stack error"},
    {cudaErrorIllegalInstruction, "cudaErrorIllegalInstruction", "an illegal instruction was encountered"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorInvalidAddressSpace, "cudaErrorInvalidAddressSpace",
     "operation not supported on global/shared address space"},
    {cudaErrorInvalidPc, "cudaErrorInvalidPc", "invalid program counter"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
};

const ErrorText* find_text(cudaError_t error) {
  const auto* found = std::find_if(std::begin(kErrorTexts), std::end(kErrorTexts),
                                   [&](const ErrorText& text) { return text.error == error; });
  return found == std::end(kErrorTexts) ? nullptr : found;
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* text = find_text(error);
  return text == nullptr ? "unrecognized error code" : text->name;
}

const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* text = find_text(error);
  return text == nullptr ? "unrecognized error code" : text->text;
}
