// A checker that finds nothing proves nothing: each planted fault must be found, and no kernel without it refused.
#include "tests/emulation/self_test/planted_bugs.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "tests/emulation/self_test/device_array.h"
#include "tests/emulation/self_test/modes.h"

namespace pare {
namespace {

using emulation::Build;

// Who finds it, by an error or by a wrong result, in at least one mode; and what errors of two builds say.
struct Row {
  Bug bug;
  const char* name;
  bool plain, asan, race;
  const char* asan_says;
  const char* race_says;
  // out[i] of in, thread t of the block that begins at in[first].
  int (*expected)(const std::vector<int>& in, int first, int t);
};

void PrintTo(const Row& row, std::ostream* out) {
  *out << row.name;
}

int reversed(const std::vector<int>& in, int first, int t) {
  return in[static_cast<size_t>(first + kBlockSize - 1 - t)];
}
int same(const std::vector<int>& in, int first, int t) {
  return in[static_cast<size_t>(first + t)];
}

const Row kTable[] = {
    // clang-format off
    //                                                                plain  asan   race
    {Bug::barrier_missing_after_write, "BarrierMissingAfterWrite",    true,  true,  true, "", "race, read after write, of shared memory", reversed},
    {Bug::barrier_missing_after_read,  "BarrierMissingAfterRead",     true,  true,  true, "", "race, write after read, of shared memory",
     [](const std::vector<int>& in, int first, int t) { return reversed(in, first, t) + 1; }},
    {Bug::syncwarp_missing,            "SyncwarpMissing",             false, false, true, "", "race, read after write, of shared memory",
     [](const std::vector<int>& in, int first, int t) { return same(in, first, t ^ 31) + same(in, first, t & ~31); }},
    {Bug::barrier_divergent,           "BarrierDivergent",            true,  true,  true, "", "__syncthreads at planted_bugs.cu:", reversed},
    {Bug::shuffle_mask_wrong,          "ShuffleMaskWrong",            true,  true,  true, "", "__shfl_xor_sync at planted_bugs.cu:",
     [](const std::vector<int>& in, int first, int t) { return same(in, first, t) + (t % 32 < 16 ? same(in, first, t ^ 1) : 0); }},
    {Bug::shared_write_out_of_bounds,  "SharedWriteOutOfBounds",      true,  true,  true, "AddressSanitizer: use-after-poison", "of values (256 bytes)", reversed},
    {Bug::shared_read_out_of_bounds,   "SharedReadOutOfBounds",       true,  true,  true, "AddressSanitizer: use-after-poison", "read out of bounds of shared memory",
     [](const std::vector<int>& in, int first, int t) { return same(in, first, std::min(t + 1, kBlockSize - 1)); }},
    {Bug::global_write_out_of_bounds,  "GlobalWriteOutOfBounds",      true,  true,  true, "AddressSanitizer: use-after-poison", "write out of bounds of global memory",
     [](const std::vector<int>& in, int first, int t) { return same(in, first, t) + 1; }},
    {Bug::global_read_out_of_bounds,   "GlobalReadOutOfBounds",       false, true,  true, "AddressSanitizer: use-after-poison", "read out of bounds of global memory",
     [](const std::vector<int>& in, int first, int t) {
       return same(in, first, t) + (first + t + 1 < kNumValues ? same(in, first, t + 1) : 0);
     }},
    {Bug::blocks_write_one_word,       "BlocksWriteOneWord",          false, false, true, "", "race, write after write, of global memory", same},
    {Bug::index_overflows,             "IndexOverflows",              true,  true,  true, "Signed integer overflow", "write out of bounds of global memory", same},
    {Bug::shared_read_uninitialized,   "SharedReadUninitialized",     false, false, true, "", "read of bytes that nothing has written of shared memory",
     [](const std::vector<int>& in, int first, int t) { return t < 32 ? same(in, first, t) : 0; }},
    {Bug::accumulator_not_reset,       "AccumulatorNotReset",         true,  true,  true, "", "",
     [](const std::vector<int>& in, int first, int t) {
       return (same(in, first, 0) + same(in, first, 1) + same(in, first, 2) + same(in, first, 3)) * t;
     }},
    {Bug::counter_not_atomic,          "CounterNotAtomic",            false, false, true, "", "of shared memory",
     [](const std::vector<int>&, int, int) { return kBlockSize; }},
    // clang-format on
};
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
    const int t = i % kBlockSize;
    expected[static_cast<size_t>(i)] = row.expected(in, i - t, t);
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
