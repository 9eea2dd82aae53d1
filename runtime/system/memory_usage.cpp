#include "runtime/system/memory_usage.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

namespace pare::runtime {
namespace {

constexpr std::chrono::milliseconds kSamplePeriod{10};

int64_t status_field_bytes(std::string_view status, std::string_view field) {
  const size_t start = status.find(field);
  int64_t kibibytes = -1;
  if (start != std::string_view::npos) {
    const size_t digits = status.find_first_of("0123456789", start + field.size());
    if (digits != std::string_view::npos) {
      std::from_chars(status.data() + digits, status.data() + status.size(), kibibytes);
    }
  }
  if (kibibytes < 0) throw std::runtime_error("/proc/self/status: expected a field " + std::string(field) + " in kB");
  return kibibytes * 1024;
}

}  // namespace

MemoryUsage read_memory_usage() {
  // Uses plain system calls on a fixed buffer, because the sampler must not itself move what it measures.
  std::array<char, 8192> buffer;
  const int file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  const ssize_t size = file < 0 ? -1 : read(file, buffer.data(), buffer.size());
  if (file >= 0) close(file);
  if (size <= 0) throw std::runtime_error(std::string("/proc/self/status: cannot be read: ") + std::strerror(errno));
  const std::string_view status(buffer.data(), static_cast<size_t>(size));
  MemoryUsage usage;
  usage.held_bytes = status_field_bytes(status, "\nRssAnon:") + status_field_bytes(status, "\nRssShmem:");
  usage.peak_resident_bytes = status_field_bytes(status, "\nVmHWM:");
  return usage;
}

MemorySampler::MemorySampler() {
  sample();  // throws if /proc is unreadable; in the thread an exception would end the process
  thread_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    while (!stop_signal_.wait_for(lock, kSamplePeriod, [this] { return stop_; })) {
      try {
        sample();
      } catch (const std::exception&) {
        return;  // out of file descriptors: the peak stays at what was seen, and peak_bytes() reports the failure
      }
    }
  });
}

MemorySampler::~MemorySampler() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stop_signal_.notify_one();
  thread_.join();
}

int64_t MemorySampler::peak_bytes() {
  sample();
  return peak_bytes_.load();
}

void MemorySampler::sample() {
  const int64_t held = read_memory_usage().held_bytes;
  int64_t peak = peak_bytes_.load();
  while (held > peak && !peak_bytes_.compare_exchange_weak(peak, held)) {
  }
}

}  // namespace pare::runtime
