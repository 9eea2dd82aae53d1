// The CUDA backend on the emulated device, in every order of threads and blocks, beside the reference backend. In a
// program for a real device (real_device.cpp), the modes are as many repetitions.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/cuda/cuda_backend.h"
#include "runtime/engine/backend.h"
#include "tests/emulation/emulator.h"
#include "tests/runtime/cpu/guarded_floats.h"

namespace pare {

inline const std::vector<emulation::Options>& emulated_modes() {
  static const std::vector<emulation::Options> kModes = {
      {.order = emulation::Order::forward, .schedule = emulation::Schedule::run_ahead},
      {.order = emulation::Order::reverse, .schedule = emulation::Schedule::run_ahead},
      {.order = emulation::Order::random, .schedule = emulation::Schedule::lockstep, .seed = 7}};
  return kModes;
}

template <typename T>
Buffer<T> sent(Backend& backend, const std::vector<T>& values) {
  Buffer<T> buffer = backend.allocate<T>(static_cast<int64_t>(values.size()));
  backend.upload<T>(values, buffer.get());
  return buffer;
}

template <typename T>
std::vector<T> received(Backend& backend, const Buffer<T>& buffer) {
  std::vector<T> values(static_cast<size_t>(buffer.size()));
  backend.download<T>(buffer.get(), values);
  return values;
}

// Sequences with their table in the backend's memory.
struct SentSequences {
  SentSequences(Backend& backend, const std::vector<Sequence>& host) : table(sent(backend, host)) {
    sequences = bounded(host);
    sequences.table = table.span();
  }
  Buffer<Sequence> table;
  Sequences sequences;
};

inline std::vector<float> random_values(int64_t size, uint32_t seed, float deviation = 1.0f) {
  const GuardedFloats values = random_floats(size, seed, deviation);
  return {values.span().begin(), values.span().end()};
}

class OnCuda : public testing::Test {
 protected:
  ~OnCuda() override { emulation::set_options({}); }

  // `run(backend)` on the reference and, in each mode, on the device: the same bits in every mode. Returns the
  // reference's result and the device's.
  template <typename Run>
  auto on_both(const Run& run) {
    const auto expected = run(*reference_);
    decltype(run(*reference_)) found;
    for (size_t mode = 0; mode < emulated_modes().size(); ++mode) {
      emulation::set_options(emulated_modes()[mode]);
      auto again = run(*cuda_);
      EXPECT_TRUE(mode == 0 || are_same(found, again)) << "mode " << mode;
      found = std::move(again);
    }
    return std::pair(expected, found);
  }

  static bool are_same(const std::vector<float>& a, const std::vector<float>& b) { return same_bits(a, b); }
  template <typename T>
  static bool are_same(const T& a, const T& b) {
    return a == b;
  }

  std::unique_ptr<Backend> reference_ = make_reference_backend();
  std::unique_ptr<Backend> cuda_ = make_cuda_backend();
};

}  // namespace pare
