#include "tests/emulation/self_test/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tests/emulation/self_test/device_array.h"
#include "tests/emulation/self_test/modes.h"

namespace pare {
namespace {

// A sum of n squares in float32 by at most n additions has a relative error of n u, and its root half of that. Then
// come rsqrtf (2 units), two products and the division. u = 2^-24.
TEST(EmulatedRmsNorm, EqualsThePlainLoopInEveryMode) {
  constexpr float kEpsilon = 1e-5f;
  for (const int width : {1, 31, 128, 200, 515}) {
    const int num_rows = 3;
    std::mt19937 random(width);
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<float> x(static_cast<size_t>(num_rows * width)), gain(static_cast<size_t>(width));
    for (float& value : x) value = uniform(random);
    for (float& value : gain) value = uniform(random);
    const double tolerance = (0.5 * width + 8) * std::numeric_limits<float>::epsilon() / 2;
    std::vector<float> first;
    for (const auto& mode : all_modes()) {
      const ModeScope scope(mode);
      const DeviceArray<float> device_x(x), device_gain(gain), device_y(x.size());
      launch_rms_norm(device_x.data(), device_gain.data(), device_y.data(), num_rows, width, kEpsilon);
      const std::vector<float> y = device_y.values();
      for (int row = 0; row < num_rows; ++row) {
        const float* x_D = x.data() + row * width;
        double sum = 0;
        for (int d = 0; d < width; ++d) sum += double(x_D[d]) * x_D[d];
        for (int d = 0; d < width; ++d) {
          const double expected = x_D[d] / std::sqrt(sum / width + kEpsilon) * gain[static_cast<size_t>(d)];
          EXPECT_NEAR(y[static_cast<size_t>(row * width + d)], expected, tolerance * std::abs(expected))
              << mode_name(mode) << " width " << width << " row " << row << " column " << d;
        }
      }
      if (first.empty()) first = y;
      EXPECT_EQ(y, first) << mode_name(mode);  // no order may change a bit
    }
  }
}

}  // namespace
}  // namespace pare
