#include "quant/sensitivity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

namespace pare {
using namespace quant;
namespace {

TEST(Sensitivity, IsLossPerUnitOfError) {
  const std::vector<Sensitivity> found = loss_sensitivities({{"qkv", 4.0, 0.02, 0.001}, {"down", 0.5, 0.01, 0.002}});
  EXPECT_DOUBLE_EQ(found[0].loss_per_error, 0.005);
  EXPECT_DOUBLE_EQ(found[1].loss_per_error, 0.02);
  for (const Sensitivity& sensitivity : found) EXPECT_FALSE(sensitivity.is_floor || sensitivity.is_pooled);
}

// The predicted loss at the measured scheme must be the measured loss.
TEST(Sensitivity, PredictsWhatWasMeasured) {
  const std::vector<SensitivityMeasurement> measured = {{"a", 3.7, 0.031, 0.001}, {"b", 0.02, 0.4, 0.1}};
  const std::vector<Sensitivity> found = loss_sensitivities(measured);
  for (size_t g = 0; g < measured.size(); ++g) {
    EXPECT_DOUBLE_EQ(found[g].loss_per_error * measured[g].output_error, measured[g].increase);
    EXPECT_EQ(found[g].increase, measured[g].increase);
  }
}

TEST(Sensitivity, NoiseIsChargedWithOneStandardError) {
  for (const double increase : {-0.5, 0.0, 0.001, 0.002}) {
    const Sensitivity found = loss_sensitivities({{"o", 2.0, increase, 0.002}})[0];
    EXPECT_TRUE(found.is_floor);
    EXPECT_EQ(found.increase, 0.002);
    EXPECT_DOUBLE_EQ(found.loss_per_error, 0.001);
  }
  EXPECT_FALSE(loss_sensitivities({{"o", 2.0, 0.0021, 0.002}})[0].is_floor);
}

TEST(Sensitivity, AGroupWithoutErrorTakesThePooledSlope) {
  const std::vector<Sensitivity> found =
      loss_sensitivities({{"a", 4.0, 0.02, 0.001}, {"exact", 0.0, 0.1, 0.001}, {"b", 1.0, 0.0, 0.01}});
  EXPECT_TRUE(found[1].is_pooled);
  EXPECT_DOUBLE_EQ(found[1].loss_per_error, (0.02 + 0.01) / 5.0);
  EXPECT_FALSE(found[0].is_pooled || found[2].is_pooled);
}

TEST(Sensitivity, RefusesWhatItCannotUse) {
  EXPECT_THROW(loss_sensitivities({}), std::invalid_argument);
  EXPECT_THROW(loss_sensitivities({{"a", 0.0, 0.1, 0.1}}), std::invalid_argument);
  EXPECT_THROW(loss_sensitivities({{"a", -1.0, 0.1, 0.1}}), std::invalid_argument);
  EXPECT_THROW(loss_sensitivities({{"a", 1.0, NAN, 0.1}}), std::invalid_argument);
  EXPECT_THROW(loss_sensitivities({{"a", 1.0, 0.1, -0.1}}), std::invalid_argument);
  EXPECT_THROW(loss_sensitivities({{"a", INFINITY, 0.1, 0.1}}), std::invalid_argument);
}

}  // namespace
}  // namespace pare
