// The CUDA backend on the emulated device, in every order of threads and blocks, beside the reference backend. In a
// program for a real device (real_device.cpp), the modes are as many repetitions.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cuda/cuda_backend.h"
#include "runtime/engine/backend.h"
#include "tests/emulation/emulator.h"
#include "tests/runtime/cpu/guarded_floats.h"
#include "tests/runtime/engine/reference_backend.h"

namespace pare {
using namespace runtime;

inline const std::vector<emulation::Options>& emulated_modes() {
  static const std::vector<emulation::Options> kModes = [] {
    std::vector<emulation::Options> modes = {
        {.order = emulation::Order::forward, .schedule = emulation::Schedule::run_ahead},
        {.order = emulation::Order::reverse, .schedule = emulation::Schedule::run_ahead},
        {.order = emulation::Order::random, .schedule = emulation::Schedule::lockstep, .seed = 7}};
    // Under a CUDA sanitizer, repetitions cost time and show nothing (.ci/gpu_check).
    if (std::getenv("PARE_ONE_MODE") != nullptr) modes.resize(1);
    return modes;
  }();
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

// Returns every kind of format of an input.
inline std::vector<InputFormat> input_formats() {
  const auto int8 = [](InputRange range, bool symmetric) {
    InputFormat format = {.type = InputType::int8, .range = range, .symmetric = symmetric};
    if (range == InputRange::static_) format.scale = 0.05f;
    if (range == InputRange::static_ && !symmetric) format.zero = 31;
    return format;
  };
  const auto outliers = [](OutlierRule rule, float threshold, bool symmetric = true) {
    InputFormat format = {
        .type = InputType::int8, .symmetric = symmetric, .outliers = rule, .outlier_threshold = threshold};
    if (rule == OutlierRule::columns) format.outlier_columns = {0, 3, 11};
    return format;
  };
  return {{},
          int8(InputRange::token, true),
          int8(InputRange::token, false),
          int8(InputRange::tensor, true),
          int8(InputRange::tensor, false),
          int8(InputRange::static_, true),
          int8(InputRange::static_, false),
          {.type = InputType::fp8},
          {.type = InputType::fp8, .range = InputRange::tensor},
          {.type = InputType::fp8, .range = InputRange::static_, .scale = 0x1p-6f},
          {.type = InputType::nvfp4, .scale = 64.0f},
          {.type = InputType::fp8, .range = InputRange::block},
          {.type = InputType::fp8, .range = InputRange::block, .power_of_two_scales = true},
          outliers(OutlierRule::absolute, 6.0f),
          outliers(OutlierRule::relative, 3.0f),
          outliers(OutlierRule::columns, 0.0f),
          outliers(OutlierRule::absolute, 6.0f, false),
          outliers(OutlierRule::columns, 0.0f, false)};
}

// The next number of inputs that the format takes.
inline int64_t width_for(const InputFormat& format, int64_t width) {
  const int64_t block = format.type == InputType::nvfp4 ? kNvfp4Block : 1;
  return (width + block - 1) / block * block;
}

// Returns rows with some columns far from the others, a row of zeros, extreme values, one value at the limit of an
// outlier, one between two values of fp8, and a block of nvfp4 with values between two of its own.
inline std::vector<float> rows_with_outliers(int64_t num_rows, int64_t width, uint32_t seed) {
  std::vector<float> x = random_values(num_rows * width, seed);
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t i = 0; i < width; ++i) {
      float& value = x[static_cast<size_t>(r * width + i)];
      if (i % 13 == 5) value *= 20.0f;
      if (r == 0 && i == 8) value = -6.0f;
      if (r == 0 && i == 9) value = 17.0f * 0x1p-6f;
      if (r == 1) value = 0.0f;
      if (r == 2) value = i % 3 == 0 ? 40.0f : -40.0f;
      if (r == 3 && i / 16 == 2) value = i % 16 == 0 ? 6.0f : static_cast<float>(i % 16) * 0.25f;
    }
  }
  return x;
}

// Returns sequences of 1, 2, 3, ... rows.
inline std::vector<Sequence> sequences_of(int64_t num_rows) {
  std::vector<Sequence> sequences;
  for (int64_t row = 0, length = 1; row < num_rows; row += length, ++length) {
    length = std::min(length, num_rows - row);
    sequences.push_back({.first_row = row, .num_rows = length, .num_past = 0, .first_slot = row});
  }
  return sequences;
}

// Returns what an input holds for its consumer, as floats.
inline std::vector<float> rounded_rows(Backend& backend, const LinearInput& input, int64_t num_rows, int64_t width) {
  std::vector<float> values(static_cast<size_t>(num_rows * width));
  if (!input.as_codes()) {
    backend.download<float>(input.x(), values);
    return values;
  }
  const int64_t stride = LinearInput::code_stride(width);
  std::vector<int8_t> codes(static_cast<size_t>(num_rows * stride));
  std::vector<float> scales(static_cast<size_t>(num_rows));
  std::vector<int32_t> zeros(scales.size());
  backend.download<int8_t>(input.codes(), codes);
  backend.download<float>(input.scales(), scales);
  backend.download<int32_t>(input.zeros(), zeros);
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t i = 0; i < stride; ++i) {
      const int code = codes[static_cast<size_t>(r * stride + i)];
      if (i >= width) {
        EXPECT_EQ(code, 0) << "padding of row " << r;
        continue;
      }
      values[static_cast<size_t>(r * width + i)] =
          static_cast<float>(code - zeros[static_cast<size_t>(r)]) * scales[static_cast<size_t>(r)];
    }
  }
  return values;
}

class OnCuda : public testing::Test {
 protected:
  ~OnCuda() override { emulation::set_options({}); }

  // Calls `run(backend)` on the reference and, in each mode, on the device, which must give the same bits in every
  // mode. Returns the reference's result and the device's.
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
