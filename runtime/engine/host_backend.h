// The code that backends in host memory share: allocation, copies, and a mixture as a sequence of single operations.
#pragma once

#include <memory>
#include <span>

#include "runtime/engine/backend.h"

namespace pare::runtime {

class HostBackend : public Backend {
 public:
  // Logits exist only for this many rows and columns at a time: 2 MiB for each head. The widths are fixed, because the
  // columns of a chunk make one partial sum.
  static constexpr int64_t kLogitRows = 512;
  static constexpr int64_t kLogitColumns = 1024;

  BufferMemory allocate_bytes(int64_t num_bytes) override;
  // False where addresses are counted as memory (limits_addresses).
  bool takes_pages() const override;
  BufferMemory reserve_bytes(int64_t num_bytes) override;
  void give_back_bytes(void* memory, int64_t num_bytes) override;
  void upload_bytes(std::span<const std::byte> host, void* memory) override;
  void download_bytes(const void* memory, std::span<std::byte> host) override;
  std::unique_ptr<ExpertWork> allocate_experts(const ExpertShape& shape) override;
  void run_experts(std::span<const FeedForwardWeights> experts_E, const RoutingDescription& routing,
                   Activation activation, const RouterLogits& logits, const float* x_RD, const Sequences& sequences,
                   int64_t num_rows, ExpertWork& work, float* y_RD) override;
};

}  // namespace pare::runtime
