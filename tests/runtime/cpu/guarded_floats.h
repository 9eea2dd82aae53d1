// Float arrays that end at an inaccessible page and start after a canary, and the comparator of all backend tests. A
// kernel that reads or writes past the end is killed. A kernel that writes before the start is noticed.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <new>
#include <optional>
#include <random>
#include <span>
#include <vector>

namespace pare {

class GuardedFloats {
 public:
  // Fills the array with a NaN that no operation produces, so that elements that are not written stay visible.
  explicit GuardedFloats(int64_t size) : size_(size) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t num_bytes = static_cast<size_t>(size) * sizeof(float) + kNumCanaries * sizeof(float);
    mapped_bytes_ = (num_bytes + page - 1) / page * page + page;
    mapping_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping_ == MAP_FAILED) throw std::bad_alloc();
    std::byte* end = static_cast<std::byte*>(mapping_) + mapped_bytes_ - page;
    if (mprotect(end, page, PROT_NONE) != 0) throw std::bad_alloc();
    data_ = reinterpret_cast<float*>(end) - size;
    std::fill(data_ - kNumCanaries, data_ + size, std::bit_cast<float>(kPoison));
  }
  GuardedFloats(std::span<const float> values) : GuardedFloats(static_cast<int64_t>(values.size())) {
    std::copy(values.begin(), values.end(), data_);
  }
  GuardedFloats(const GuardedFloats& other) : GuardedFloats(other.span()) {}
  GuardedFloats& operator=(const GuardedFloats&) = delete;
  ~GuardedFloats() { munmap(mapping_, mapped_bytes_); }

  float* data() { return data_; }
  const float* data() const { return data_; }
  std::span<const float> span() const { return {data_, static_cast<size_t>(size_)}; }
  float& operator[](int64_t i) { return data_[i]; }
  float operator[](int64_t i) const { return data_[i]; }

  bool front_is_intact() const {
    return std::all_of(data_ - kNumCanaries, data_, [](float x) { return std::bit_cast<uint32_t>(x) == kPoison; });
  }

 private:
  static constexpr size_t kNumCanaries = 64;
  static constexpr uint32_t kPoison = 0x7fc0dead;
  int64_t size_;
  size_t mapped_bytes_ = 0;
  void* mapping_ = nullptr;
  float* data_ = nullptr;
};

inline GuardedFloats random_floats(int64_t size, uint32_t seed, float deviation = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  GuardedFloats values(size);
  for (int64_t i = 0; i < size; ++i) values[i] = normal(generator);
  return values;
}

// Returns the index of the first element that is not within absolute + relative * |expected| of its expected value. NaN
// is never within.
inline std::optional<size_t> first_mismatch(std::span<const float> expected, std::span<const float> actual,
                                            double absolute, double relative = 0.0) {
  if (expected.size() != actual.size()) return std::min(expected.size(), actual.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(static_cast<double>(actual[i]) - static_cast<double>(expected[i]));
    if (!(difference <= absolute + relative * std::abs(static_cast<double>(expected[i])))) return i;
  }
  return std::nullopt;
}

inline void expect_close(std::span<const float> expected, std::span<const float> actual, double absolute,
                         double relative = 0.0) {
  const std::optional<size_t> index = first_mismatch(expected, actual, absolute, relative);
  if (!index) return;
  if (expected.size() != actual.size()) {
    ADD_FAILURE() << "expected " << expected.size() << " elements, found " << actual.size();
    return;
  }
  ADD_FAILURE() << "element " << *index << " of " << expected.size() << ": expected " << expected[*index] << ", found "
                << actual[*index] << ", tolerance " << absolute << " + " << relative << " * |expected|";
}

inline double largest_magnitude(std::span<const float> values) {
  double largest = 0.0;
  for (const float value : values) largest = std::max(largest, std::abs(static_cast<double>(value)));
  return largest;
}

// True if both have the same bits, NaN included.
inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](float x, float y) { return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y); });
}

inline constexpr double kUnitRoundoff = 0x1p-24;  // u of float32, round to nearest

}  // namespace pare
