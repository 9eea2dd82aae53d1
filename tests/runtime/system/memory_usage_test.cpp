#include "runtime/system/memory_usage.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <thread>

namespace pare {
using namespace runtime;
namespace {

constexpr int64_t kMiB = 1 << 20;

// Holds anonymous memory in a mapping of its own. The memory is touched at once, and freed at once in the end.
class Held {
 public:
  explicit Held(int64_t num_bytes) : num_bytes_(static_cast<size_t>(num_bytes)) {
    data_ = mmap(nullptr, num_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
    std::memset(data_, 1, num_bytes_);
  }
  ~Held() { munmap(data_, num_bytes_); }

 private:
  size_t num_bytes_;
  void* data_;
};

// The bounds leave 8 MiB for other threads and the allocator.
TEST(MemoryUsage, CountsAnonymousMemoryAndForgetsIt) {
  const int64_t before = read_memory_usage().held_bytes;
  {
    const Held held(64 * kMiB);
    EXPECT_NEAR(static_cast<double>(read_memory_usage().held_bytes - before), 64.0 * kMiB, 8.0 * kMiB);
  }
  EXPECT_NEAR(static_cast<double>(read_memory_usage().held_bytes), static_cast<double>(before), 8.0 * kMiB);
  EXPECT_GE(read_memory_usage().peak_resident_bytes, before + 56 * kMiB);
}

TEST(MemorySampler, RemembersAPeakThatIsOver) {
  const int64_t before = read_memory_usage().held_bytes;
  MemorySampler sampler;
  // On a busy machine the sampler's thread may have to wait. So memory that was held briefly is held again, for longer.
  for (int milliseconds = 50; milliseconds < 60000; milliseconds *= 2) {
    {
      const Held held(64 * kMiB);
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    }
    if (sampler.peak_bytes() > before + 56 * kMiB) break;
  }
  EXPECT_NEAR(static_cast<double>(sampler.peak_bytes() - before), 64.0 * kMiB, 8.0 * kMiB);
  EXPECT_LT(read_memory_usage().held_bytes, before + 8 * kMiB);
  MemorySampler later;
  EXPECT_LT(later.peak_bytes(), before + 8 * kMiB);
}

}  // namespace
}  // namespace pare
