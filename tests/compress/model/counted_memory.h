// Counts the bytes of tensors that the calling thread makes on the CPU, as LibTorch's allocator reports them.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace pare {

class CountedMemory {
 public:
  // From here on, until the object ends.
  CountedMemory() : guard_(c10::DebugInfoKind::PROFILER_STATE, counter_) {}
  // The most bytes that were there at a time beside those from before.
  int64_t most_bytes() const { return counter_->most; }

 private:
  struct Counter : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
      held += size;
      most = std::max(most, held);
    }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t held = 0, most = 0;
  };
  std::shared_ptr<Counter> counter_ = std::make_shared<Counter>();
  c10::DebugInfoGuard guard_;
};

}  // namespace pare
