// Measures how much memory this process holds (Linux, /proc/self/status).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace pare::runtime {

struct MemoryUsage {
  // RssAnon + RssShmem: the memory that the process itself holds. Clean pages of mapped files are left out, since the
  // kernel takes them back at will.
  int64_t held_bytes = 0;
  // VmHWM: the highest resident size so far, mapped files included.
  int64_t peak_resident_bytes = 0;
};

// Throws std::runtime_error if /proc/self/status cannot be read or lacks a field.
MemoryUsage read_memory_usage();

// Samples held_bytes every 10 ms in a thread of its own, from construction to destruction. (The kernel keeps no peak of
// that sum.)
class MemorySampler {
 public:
  MemorySampler();
  ~MemorySampler();
  MemorySampler(const MemorySampler&) = delete;
  MemorySampler& operator=(const MemorySampler&) = delete;

  // Returns the largest held_bytes seen so far, the present one included.
  int64_t peak_bytes();

 private:
  void sample();
  std::atomic<int64_t> peak_bytes_{0};
  std::mutex mutex_;
  std::condition_variable stop_signal_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace pare::runtime
