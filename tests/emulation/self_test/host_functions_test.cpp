#include <gtest/gtest.h>

#include <cstring>

#include "tests/emulation/emulator.h"
#include "tests/emulation/self_test/device_array.h"
#include "tests/emulation/self_test/micro_kernels.h"
#include "tests/emulation/self_test/modes.h"
#include "tests/expect_error.h"

namespace pare {
using namespace runtime;
namespace {

using emulation::Device;

// Sets a device for one test, and the usual one afterwards.
class DeviceScope {
 public:
  explicit DeviceScope(const Device& device) { emulation::set_device(device); }
  ~DeviceScope() { emulation::set_device(Device()); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
};

TEST(EmulatedHost, DescribesTheDevice) {
  Device device;
  device.name = "A small one";
  device.major = 8;
  device.minor = 6;
  device.num_multiprocessors = 3;
  device.memory_bytes = 5 << 20;
  device.shared_optin_bytes = 99 * 1024;
  const DeviceScope scope(device);
  int count = 0, driver = 0, runtime = 0;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 1);
  EXPECT_EQ(cudaDriverGetVersion(&driver), cudaSuccess);
  EXPECT_EQ(cudaRuntimeGetVersion(&runtime), cudaSuccess);
  EXPECT_EQ(driver, 13000);
  EXPECT_EQ(runtime, 13000);
  cudaDeviceProp properties;
  ASSERT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  EXPECT_STREQ(properties.name, "A small one");
  EXPECT_EQ(properties.major, 8);
  EXPECT_EQ(properties.minor, 6);
  EXPECT_EQ(properties.multiProcessorCount, 3);
  EXPECT_EQ(properties.totalGlobalMem, size_t{5} << 20);
  EXPECT_EQ(properties.sharedMemPerBlockOptin, size_t{99} * 1024);
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaSetDevice(1), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetDeviceProperties(&properties, -1), cudaErrorInvalidDevice);
}

TEST(EmulatedHost, AMachineMayLackAGpuOrHaveAnOldDriver) {
  int count = 7;
  void* pointer = nullptr;
  {
    Device none;
    none.count = 0;
    const DeviceScope scope(none);
    EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
    EXPECT_EQ(count, 0);
    EXPECT_EQ(cudaMalloc(&pointer, 4), cudaErrorNoDevice);
  }
  Device old;
  old.driver_version = 11080;
  const DeviceScope scope(old);
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
  EXPECT_STREQ(cudaGetErrorName(cudaErrorInsufficientDriver), "cudaErrorInsufficientDriver");
}

TEST(EmulatedHost, MemoryEndsWhereItIsSetTo) {
  Device device;
  device.memory_bytes = 1 << 20;
  const DeviceScope scope(device);
  char *first = nullptr, *second = nullptr;
  size_t free_bytes = 0, total_bytes = 0;
  ASSERT_EQ(cudaMalloc(&first, 700 * 1024 + 1), cudaSuccess);
  EXPECT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  EXPECT_EQ(total_bytes, size_t{1} << 20);
  EXPECT_EQ(free_bytes, (size_t{1} << 20) - 700 * 1024 - 1);
  EXPECT_EQ(cudaMalloc(&second, 324 * 1024), cudaErrorMemoryAllocation);
  EXPECT_EQ(second, nullptr);
  EXPECT_EQ(cudaMalloc(&second, ~size_t{0}), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&second, 324 * 1024 - 1), cudaSuccess);
  EXPECT_EQ(emulation::num_allocations(), 2u);
  EXPECT_EQ(emulation::allocated_bytes(), size_t{1} << 20);
  expect_error<std::invalid_argument>([] { emulation::set_device(Device()); }, {"2 allocations have not been freed"});
  EXPECT_EQ(cudaFree(first), cudaSuccess);
  EXPECT_EQ(cudaFree(first), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(second + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(second), cudaSuccess);
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  EXPECT_EQ(emulation::num_allocations(), 0u);
  Device large;
  large.memory_bytes = size_t{5} << 30;
  expect_error<std::invalid_argument>([&] { emulation::set_device(large); }, {"at most", "5368709120"});
}

TEST(EmulatedHost, CopiesKeepToAllocationsAndTheirKind) {
  const DeviceArray<int> a(std::vector<int>{1, 2, 3}), b(3);
  int host[4] = {};
  EXPECT_EQ(cudaMemcpyAsync(b.data(), a.data(), 12, cudaMemcpyDeviceToDevice), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(b.data() + 1, a.data(), 8, cudaMemcpyDefault), cudaSuccess);
  EXPECT_EQ(b.values(), (std::vector<int>{1, 1, 2}));
  EXPECT_EQ(cudaMemsetAsync(b.data() + 2, 0x11, 4), cudaSuccess);
  EXPECT_EQ(b.values(), (std::vector<int>{1, 1, 0x11111111}));
  EXPECT_EQ(cudaMemcpyAsync(host, a.data(), 16, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(host, a.data(), 12, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(a.data(), host, 12, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(b.data(), a.data(), 12, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(nullptr, a.data(), 12, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(host, 0, 4), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(b.data(), 0, 13), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
}

TEST(EmulatedHost, NewMemoryHoldsNoNumbers) {
  const DeviceArray<float> floats(100);
  for (const float value : floats.values()) EXPECT_NE(value, value);
}

TEST(EmulatedHostDeathTest, HostCannotTouchDeviceMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const DeviceArray<int> memory(std::vector<int>{1});
  EXPECT_DEATH({ *static_cast<volatile int*>(memory.data()) = 2; }, "");
}

TEST(EmulatedHost, MemoryMayBeLeftOpen) {
  emulation::Options open;
  open.hides_memory = false;
  const ModeScope scope(open);
  const DeviceArray<int> memory(std::vector<int>{41});
  *memory.data() = 42;
  EXPECT_EQ(memory.values(), std::vector<int>{42});
}

TEST(EmulatedHost, StreamsAreInOrder) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  std::vector<int> values(kReverseThreads), result(values.size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int>(i * i);
  const DeviceArray<int> a(values.size()), b(values.size());
  const size_t bytes = values.size() * sizeof(int);
  EXPECT_EQ(cudaMemcpyAsync(a.data(), values.data(), bytes, cudaMemcpyHostToDevice, stream), cudaSuccess);
  launch_reverse(a.data(), b.data(), 1, stream);
  launch_reverse(b.data(), a.data(), 1, stream);
  EXPECT_EQ(cudaMemcpyAsync(result.data(), a.data(), bytes, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(result, values);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  expect_error<std::runtime_error>([&] { launch_nothing(dim3(1), dim3(1), 0, stream); },
                                   {"nothing", "cudaErrorInvalidResourceHandle"});
}

TEST(EmulatedLaunch, ShapesBeyondTheLimitsAreRefusedWithTheKernelsName) {
  EXPECT_NO_THROW(launch_nothing(dim3(1), dim3(1024), 0, nullptr));
  EXPECT_NO_THROW(launch_nothing(dim3(1), dim3(1, 16, 64), 0, nullptr));
  const std::pair<dim3, dim3> bad[] = {
      {dim3(1), dim3(1025)},     {dim3(1), dim3(32, 33)},      {dim3(1), dim3(1, 1, 65)}, {dim3(1), dim3(0)},
      {dim3(1, 65536), dim3(1)}, {dim3(1, 1, 65536), dim3(1)}, {dim3(0), dim3(1)},
  };
  for (const auto& [grid, block] : bad) {
    expect_error<std::runtime_error>(
        [&, g = grid, b = block] { launch_nothing(g, b, 0, nullptr); },
        {"cannot launch pare::(anonymous namespace)::nothing()", "cudaErrorInvalidConfiguration",
         std::to_string(grid.x) + "x" + std::to_string(grid.y) + "x" + std::to_string(grid.z)});
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(EmulatedLaunch, DynamicSharedMemoryIsWhatTheAttributeAllows) {
  Device device;
  device.shared_optin_bytes = 163 * 1024;
  const DeviceScope scope(device);
  constexpr auto kAttribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
  EXPECT_EQ(try_launch_nothing(48 * 1024), cudaSuccess);
  EXPECT_EQ(try_launch_nothing(48 * 1024 + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(nothing_kernel(), kAttribute, 100 * 1024), cudaSuccess);
  EXPECT_EQ(try_launch_nothing(100 * 1024), cudaSuccess);
  EXPECT_EQ(try_launch_nothing(100 * 1024 + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(nothing_kernel(), kAttribute, 163 * 1024 + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_NO_THROW(launch_nothing(dim3(1), dim3(1), 163 * 1024, nullptr));
  expect_error<std::runtime_error>([] { launch_nothing(dim3(1), dim3(1), 163 * 1024 + 1, nullptr); },
                                   {"nothing()", "166913 bytes of dynamic shared memory", "cudaErrorInvalidValue"});
}

TEST(EmulatedLaunch, ErrorsOfEarlierKernelsAreNotTheNextOnes) {
  for (const auto error : {cudaErrorECCUncorrectable, cudaErrorIllegalAddress, cudaErrorLaunchTimeout, cudaErrorAssert,
                           cudaErrorHardwareStackError, cudaErrorIllegalInstruction, cudaErrorMisalignedAddress,
                           cudaErrorInvalidAddressSpace, cudaErrorInvalidPc, cudaErrorLaunchFailure}) {
    Device device;
    device.sticky_error = error;
    const DeviceScope scope(device);
    expect_error<std::runtime_error>([] { launch_nothing(dim3(1), dim3(1), 0, nullptr); },
                                     {"an operation before", "nothing()", "failed: ", cudaGetErrorName(error)});
  }
}

TEST(EmulatedLaunch, PointersMustLeadToTheDevice) {
  int host = 0;
  expect_error<emulation::Error>([&] { launch_on_pointer(&host); }, {"write_one", "argument 1", "cudaMalloc"});
  int* freed = nullptr;
  ASSERT_EQ(cudaMalloc(&freed, 4), cudaSuccess);
  ASSERT_EQ(cudaFree(freed), cudaSuccess);
  expect_error<emulation::Error>([&] { launch_on_pointer(freed); }, {"write_one", "argument 1"});
  const DeviceArray<int> memory(1);
  launch_on_pointer(memory.data());
  EXPECT_EQ(memory.values(), std::vector<int>{1});
}

}  // namespace
}  // namespace pare
