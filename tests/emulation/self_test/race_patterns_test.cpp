// The race build must report exactly the patterns that no barrier orders, in every mode. Other builds must run them
// all.
#include "tests/emulation/self_test/race_patterns.h"

#include <gtest/gtest.h>

#include "tests/emulation/self_test/device_array.h"
#include "tests/emulation/self_test/modes.h"

namespace pare {
namespace {

class RacePattern : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Emulation, RacePattern, testing::Range(0, kNumPatterns));

TEST_P(RacePattern, IsReportedIfNothingOrdersIt) {
  const bool is_expected = emulation::build() == emulation::Build::race && GetParam() < kNumRacyPatterns;
  for (const auto& mode : all_modes()) {
    const ModeScope scope(mode);
    const DeviceArray<int> memory(std::vector<int>(256, 0));
    for (int launches = 0; launches < 2; ++launches) {  // the work of one launch comes before that of the next
      std::string error;
      try {
        launch_pattern(static_cast<Pattern>(GetParam()), memory.data());
      } catch (const emulation::Error& found) {
        error = found.what();
      }
      EXPECT_EQ(!error.empty(), is_expected) << mode_name(mode) << ": " << error;
      if (!error.empty()) {
        EXPECT_NE(error.find("race, "), std::string::npos) << error;
        EXPECT_NE(error.find(" at race_patterns.cu:"), std::string::npos) << error;
        EXPECT_NE(error.find("the other access by "), std::string::npos) << error;
      }
    }
  }
}

}  // namespace
}  // namespace pare
