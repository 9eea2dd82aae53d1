#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "tests/emulation/emulator.h"
#include "tests/emulation/self_test/device_array.h"
#include "tests/emulation/self_test/micro_kernels.h"
#include "tests/expect_error.h"

namespace pare {
using namespace runtime;
namespace {

class EmulatedGraphs : public testing::Test {
 protected:
  EmulatedGraphs() { require_success(cudaStreamCreate(&stream_)); }
  ~EmulatedGraphs() override { EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess); }

  void begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) const {
    require_success(cudaStreamBeginCapture(stream_, mode));
  }
  cudaGraphExec_t end() const {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    require_success(cudaStreamEndCapture(stream_, &graph));
    require_success(cudaGraphInstantiate(&executable, graph));
    require_success(cudaGraphDestroy(graph));
    return executable;
  }
  // Ends a capture that a call has spoiled.
  void expect_spoiled() const {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }

  cudaStream_t stream_ = nullptr;
};

TEST_F(EmulatedGraphs, WorkRunsInOrderWithTheGraphAndNotBefore) {
  std::vector<int> numbers(kReverseThreads);
  std::iota(numbers.begin(), numbers.end(), 1);
  const std::vector<int> nothing(kReverseThreads, 0);
  const DeviceArray<int> in(numbers), out(nothing), copy(nothing);
  begin();
  launch_reverse(in.data(), out.data(), 1, stream_);
  require_success(
      cudaMemcpyAsync(copy.data(), out.data(), kReverseThreads * sizeof(int), cudaMemcpyDeviceToDevice, stream_));
  require_success(cudaMemsetAsync(in.data(), 0, sizeof(int), stream_));
  const cudaGraphExec_t graph = end();
  EXPECT_EQ(out.values(), nothing);
  EXPECT_EQ(in.values(), numbers);
  const size_t before = emulation::num_launches();
  require_success(cudaGraphLaunch(graph, stream_));
  std::vector<int> reversed(numbers.rbegin(), numbers.rend());
  EXPECT_EQ(copy.values(), reversed);
  EXPECT_EQ(in.values().front(), 0);
  require_success(cudaGraphLaunch(graph, nullptr));
  reversed.back() = 0;  // of the input that the first launch has changed
  EXPECT_EQ(copy.values(), reversed);
  EXPECT_EQ(emulation::num_launches() - before, 2);
  EXPECT_EQ(cudaGraphExecDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(graph, stream_), cudaErrorInvalidValue);
  static_cast<void>(cudaGetLastError());
}

TEST_F(EmulatedGraphs, CallsThatACaptureForbidsSpoilIt) {
  const DeviceArray<int> memory(4);
  int host = 0;
  void* pointer = nullptr;
  for (const cudaStreamCaptureMode mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal}) {
    begin(mode);
    EXPECT_EQ(cudaMalloc(&pointer, 4), cudaErrorStreamCaptureUnsupported);
    expect_spoiled();
    begin(mode);
    EXPECT_EQ(cudaFree(memory.data()), cudaErrorStreamCaptureUnsupported);
    expect_spoiled();
  }
  begin(cudaStreamCaptureModeRelaxed);
  EXPECT_EQ(cudaMalloc(&pointer, 4), cudaSuccess);
  EXPECT_EQ(cudaFree(pointer), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(end()), cudaSuccess);
  begin();
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaMemsetAsync(memory.data(), 0, 4, stream_), cudaErrorStreamCaptureInvalidated);
  expect_spoiled();
  begin();
  EXPECT_EQ(cudaMemcpyAsync(&host, memory.data(), 4, cudaMemcpyDeviceToHost, nullptr), cudaErrorStreamCaptureImplicit);
  expect_spoiled();
  begin();
  expect_error<std::runtime_error>([&] { launch_nothing(dim3(0), dim3(1), 0, stream_); }, {"InvalidConfiguration"});
  expect_spoiled();
  static_cast<void>(cudaGetLastError());
}

TEST_F(EmulatedGraphs, CapturesBeginAndEndOnceOnTheirThread) {
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorIllegalState);
  begin();
  EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaErrorIllegalState);
  std::thread([&] {
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureWrongThread);
    void* pointer = nullptr;
    EXPECT_EQ(cudaMalloc(&pointer, 4), cudaSuccess);
    EXPECT_EQ(cudaFree(pointer), cudaSuccess);
  }).join();
  EXPECT_EQ(cudaGraphExecDestroy(end()), cudaSuccess);
  EXPECT_EQ(cudaGraphInstantiate(nullptr, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGraphDestroy(nullptr), cudaErrorInvalidValue);
  static_cast<void>(cudaGetLastError());
}

}  // namespace
}  // namespace pare
