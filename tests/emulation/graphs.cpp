// Captures of streams and the graphs that they make. A graph is a list: one stream's work in its order. Source: CUDA
// Runtime API's reference, "Stream Management" and "Graph Management". Forks to other streams are missing.
#include <algorithm>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "tests/emulation/emulator.h"
#include "tests/emulation/host_functions.h"

using Work = std::vector<std::function<cudaError_t()>>;

struct CUgraph_st {
  Work work;
};
struct CUgraphExec_st {
  Work work;
};

namespace pare::emulation {
namespace {

struct Capture {
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  Work work;
  bool is_spoiled = false;
};

// Everything here is guarded by host_functions_mutex(), which work of a graph takes for itself.
struct Graphs {
  std::map<cudaStream_t, Capture> captures;
  std::map<cudaGraph_t, std::unique_ptr<CUgraph_st>> graphs;
  std::map<cudaGraphExec_t, std::unique_ptr<CUgraphExec_st>> executables;
  size_t num_launches = 0;
};

Graphs& graphs() {
  static Graphs graphs;
  return graphs;
}

// Every capture takes part in an error that concerns the null stream or this thread.
cudaError_t spoiled(cudaError_t error) {
  for (auto& [stream, capture] : graphs().captures) capture.is_spoiled = true;
  return remember(error);
}

bool waits_for_graph(cudaStream_t stream) {
  return graphs().captures.count(stream) > 0 || (stream == nullptr && !graphs().captures.empty());
}

}  // namespace

size_t num_graph_launches() {
  const std::lock_guard lock(host_functions_mutex());
  return graphs().num_launches;
}

bool is_captured(cudaStream_t stream) {
  const std::lock_guard lock(host_functions_mutex());
  return waits_for_graph(stream);
}

cudaError_t synchronize_status(cudaStream_t stream) {
  if (!waits_for_graph(stream)) return cudaSuccess;
  return spoiled(stream == nullptr ? cudaErrorStreamCaptureImplicit : cudaErrorStreamCaptureUnsupported);
}

bool records(cudaStream_t stream, const std::function<cudaError_t()>& work, cudaError_t& status) {
  if (!waits_for_graph(stream)) return false;
  if (stream == nullptr) {
    status = spoiled(cudaErrorStreamCaptureImplicit);
    return true;
  }
  Capture& capture = graphs().captures.at(stream);
  status = capture.is_spoiled ? remember(cudaErrorStreamCaptureInvalidated) : cudaSuccess;
  if (!capture.is_spoiled) capture.work.push_back(work);
  return true;
}

cudaError_t uncaptured_status() {
  const auto forbids = [](const auto& capture) {
    return capture.second.mode == cudaStreamCaptureModeGlobal ||
           (capture.second.mode == cudaStreamCaptureModeThreadLocal &&
            capture.second.thread == std::this_thread::get_id());
  };
  const auto& captures = graphs().captures;
  return std::any_of(captures.begin(), captures.end(), forbids) ? spoiled(cudaErrorStreamCaptureUnsupported)
                                                                : cudaSuccess;
}

cudaError_t capture_grid(const Grid& grid, std::function<cudaError_t()> run) {
  const std::lock_guard lock(host_functions_mutex());
  if (const cudaError_t status = launch_status(grid); status != cudaSuccess) return spoiled(status);
  cudaError_t status = cudaSuccess;
  records(grid.stream, run, status);
  return status;
}

}  // namespace pare::emulation

using namespace pare::emulation;  // NOLINT: what follows are CUDA's own names

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const std::lock_guard lock(host_functions_mutex());
  if (const cudaError_t status = stream_status(stream); status != cudaSuccess) return status;
  if (stream == nullptr) return remember(cudaErrorStreamCaptureUnsupported);
  if (waits_for_graph(stream)) return remember(cudaErrorIllegalState);
  graphs().captures[stream] = {mode, std::this_thread::get_id(), {}};
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(host_functions_mutex());
  *graph = nullptr;
  if (const cudaError_t status = stream_status(stream); status != cudaSuccess) return status;
  const auto found = graphs().captures.find(stream);
  if (found == graphs().captures.end()) return remember(cudaErrorIllegalState);
  const Capture& capture = found->second;
  if (capture.mode != cudaStreamCaptureModeRelaxed && capture.thread != std::this_thread::get_id()) {
    return remember(cudaErrorStreamCaptureWrongThread);
  }
  const bool is_spoiled = capture.is_spoiled;
  auto made = std::make_unique<CUgraph_st>(CUgraph_st{capture.work});
  graphs().captures.erase(found);
  if (is_spoiled) return remember(cudaErrorStreamCaptureInvalidated);
  *graph = made.get();
  graphs().graphs[*graph] = std::move(made);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  const std::lock_guard lock(host_functions_mutex());
  if (const cudaError_t status = stream_status(nullptr); status != cudaSuccess) return status;
  if (graphs().graphs.count(graph) == 0) return remember(cudaErrorInvalidValue);
  auto made = std::make_unique<CUgraphExec_st>(CUgraphExec_st{graph->work});
  *executable = made.get();
  graphs().executables[*executable] = std::move(made);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  Work work;
  {
    const std::lock_guard lock(host_functions_mutex());
    if (const cudaError_t status = stream_status(stream); status != cudaSuccess) return status;
    if (graphs().executables.count(executable) == 0) return remember(cudaErrorInvalidValue);
    work = executable->work;
    const auto run = [work] {
      cudaError_t status = cudaSuccess;
      for (size_t i = 0; i < work.size() && status == cudaSuccess; ++i) status = work[i]();
      return status;
    };
    cudaError_t status = cudaSuccess;
    if (records(stream, run, status)) return status;
    ++graphs().num_launches;
  }
  for (const auto& one : work) {
    if (const cudaError_t status = one(); status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const std::lock_guard lock(host_functions_mutex());
  return graphs().graphs.erase(graph) == 1 ? cudaSuccess : remember(cudaErrorInvalidValue);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  const std::lock_guard lock(host_functions_mutex());
  return graphs().executables.erase(executable) == 1 ? cudaSuccess : remember(cudaErrorInvalidValue);
}
