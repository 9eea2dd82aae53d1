// A checker that finds nothing proves nothing. So each planted fault must be found, and no kernel without it may be
// refused.
#include "tests/emulation/self_test/planted_bugs.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "tests/emulation/self_test/device_array.h"
#include "tests/emulation/self_test/modes.h"

namespace pare {
namespace {

using emulation::Build;

// The builds that find the fault, by an error or by a wrong result in at least one mode, and the words of two builds'
// errors.
struct Row {
  Bug bug;
  const char* name;
  bool plain, asan, race;
  const char* asan_says;
  const char* race_says;
};

void PrintTo(const Row& row, std::ostream* out) {
  *out << row.name;
}

constexpr const char* kPoison = "AddressSanitizer: use-after-poison";

using enum Bug;
const Row kTable[] = {
    // The columns are plain, asan and race.
    {barrier_missing_after_write, "BarrierMissingAfterWrite", true, true, true, "",
     "race, read after write, of shared"},
    {barrier_missing_after_read, "BarrierMissingAfterRead", true, true, true, "", "race, write after read, of shared"},
    {syncwarp_missing, "SyncwarpMissing", false, false, true, "", "race, read after write, of shared"},
    {barrier_divergent, "BarrierDivergent", true, true, true, "", "__syncthreads at planted_bugs.cu:"},
    {shuffle_mask_wrong, "ShuffleMaskWrong", true, true, true, "", "__shfl_xor_sync at planted_bugs.cu"},
    {shared_write_out_of_bounds, "SharedWriteOutOfBounds", true, true, true, kPoison, "of values (256 bytes)"},
    {shared_read_out_of_bounds, "SharedReadOutOfBounds", true, true, true, kPoison, "read out of bounds of shared"},
    {global_write_out_of_bounds, "GlobalWriteOutOfBounds", true, true, true, kPoison, "write out of bounds of global"},
    {global_read_out_of_bounds, "GlobalReadOutOfBounds", false, true, true, kPoison, "read out of bounds of global"},
    {blocks_write_one_word, "BlocksWriteOneWord", false, false, true, "", "race, write after write, of global"},
    {index_overflows, "IndexOverflows", true, true, true, "Signed integer overflow", "write out of bounds of global"},
    {shared_read_uninitialized, "SharedReadUninitialized", false, false, true, "", "nothing has written of shared"},
    {accumulator_not_reset, "AccumulatorNotReset", true, true, true, "", ""},
    {counter_not_atomic, "CounterNotAtomic", false, false, true, "", "of shared memory"},
};

// Returns out[i] without the fault, as planted_bugs.h describes it.
int expected_value(Bug bug, const std::vector<int>& in, int i) {
  const int t = i % kBlockSize, first = i - t;  // the thread, and the place of the block's first value
  const auto value = [&](int thread) { return in[static_cast<size_t>(first + thread)]; };
  switch (bug) {
    case Bug::barrier_missing_after_write:
    case Bug::barrier_divergent:
    case Bug::shared_write_out_of_bounds:
      return value(kBlockSize - 1 - t);
    case Bug::barrier_missing_after_read:
      return value(kBlockSize - 1 - t) + 1;
    case Bug::syncwarp_missing:
      return value(t / 32 * 32 + 31 - t % 32) + value(t / 32 * 32);
    case Bug::shuffle_mask_wrong:
      return value(t) + (t % 32 < 16 ? value(t % 2 == 0 ? t + 1 : t - 1) : 0);
    case Bug::shared_read_out_of_bounds:
      return value(std::min(t + 1, kBlockSize - 1));
    case Bug::global_write_out_of_bounds:
      return value(t) + 1;
    case Bug::global_read_out_of_bounds:
      return value(t) + (i + 1 < kNumValues ? value(t + 1) : 0);
    case Bug::blocks_write_one_word:
    case Bug::index_overflows:
      return value(t);
    case Bug::shared_read_uninitialized:
      return t < 32 ? value(t) : 0;
    case Bug::accumulator_not_reset:
      return (value(0) + value(1) + value(2) + value(3)) * t;
    case Bug::counter_not_atomic:
      return kBlockSize;
  }
  return 0;
}
static_assert(std::size(kTable) == kNumBugs);

bool is_to_be_found(const Row& row) {
  switch (emulation::build()) {
    case Build::plain:
      return row.plain;
    case Build::asan:
      return row.asan;
    case Build::race:
      return row.race;
  }
  return false;
}

struct Verdict {
  bool is_right;
  std::string error;  // empty: none
};

Verdict run(const Row& row, bool is_planted) {
  std::mt19937 random(5);
  std::vector<int> in(kNumValues), expected(kNumValues);
  for (int& value : in) value = static_cast<int>(random() % 1000) + 1;
  for (int i = 0; i < kNumValues; ++i) {
    expected[static_cast<size_t>(i)] = expected_value(row.bug, in, i);
  }
  const DeviceArray<int> device_in(in), device_out(in.size());
  try {
    launch_planted(row.bug, is_planted, device_in.data(), device_out.data());
  } catch (const emulation::Error& error) {
    return {false, error.what()};
  }
  return {device_out.values() == expected, ""};
}

class PlantedBug : public testing::TestWithParam<Row> {};

TEST_P(PlantedBug, IsFoundByTheBuildsOfTheTable) {
  const Row& row = GetParam();
  EXPECT_TRUE(row.plain || row.asan || row.race) << "no build finds it";
  bool is_found = false;
  std::string errors;
  for (const auto& mode : all_modes()) {
    const ModeScope scope(mode);
    const Verdict verdict = run(row, true);
    is_found |= !verdict.is_right;
    if (!verdict.error.empty()) errors += mode_name(mode) + ": " + verdict.error + "\n";
  }
  EXPECT_EQ(is_found, is_to_be_found(row)) << errors;
  if (emulation::build() == Build::asan) {
    EXPECT_NE(errors.find(row.asan_says), std::string::npos) << errors;
  }
  if (emulation::build() == Build::race) {
    EXPECT_NE(errors.find(row.race_says), std::string::npos) << errors;
    if (*row.race_says != 0) {
      EXPECT_NE(errors.find("kernel "), std::string::npos) << errors;
      EXPECT_NE(errors.find("block ("), std::string::npos) << errors;
    }
  }
}

TEST_P(PlantedBug, IsNotFoundWhereThereIsNone) {
  for (const auto& mode : all_modes()) {
    const ModeScope scope(mode);
    const Verdict verdict = run(GetParam(), false);
    EXPECT_TRUE(verdict.is_right) << mode_name(mode) << ": " << verdict.error;
  }
}

INSTANTIATE_TEST_SUITE_P(Emulation, PlantedBug, testing::ValuesIn(kTable),
                         [](const testing::TestParamInfo<Row>& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace pare
