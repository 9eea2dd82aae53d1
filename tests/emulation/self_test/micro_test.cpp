#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "tests/emulation/self_test/device_array.h"
#include "tests/emulation/self_test/micro_kernels.h"
#include "tests/emulation/self_test/modes.h"
#include "tests/expect_error.h"

namespace pare {
namespace {

std::vector<int> counted(int size, int first = 100) {
  std::vector<int> values(static_cast<size_t>(size));
  std::iota(values.begin(), values.end(), first);
  return values;
}

// Every test runs in all orders and schedules.
class EmulatedDevice : public testing::TestWithParam<emulation::Options> {
  const ModeScope mode_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Modes, EmulatedDevice, testing::ValuesIn(all_modes()),
                         [](const testing::TestParamInfo<emulation::Options>& mode) { return mode_name(mode.param); });

TEST_P(EmulatedDevice, ThreadsAndBlocksHaveTheirCoordinates) {
  const dim3 grid(3, 2, 2), block(5, 4, 3);
  const DeviceArray<int> out(3 * 2 * 2 * 5 * 4 * 3 * 6);
  launch_coordinates(grid, block, out.data());
  const std::vector<int> values = out.values();
  size_t i = 0;
  for (int bz = 0; bz < 2; ++bz)
    for (int by = 0; by < 2; ++by)
      for (int bx = 0; bx < 3; ++bx)
        for (int tz = 0; tz < 3; ++tz)
          for (int ty = 0; ty < 4; ++ty)
            for (int tx = 0; tx < 5; ++tx) {
              for (const int expected : {tx, ty, tz, bx, by, bz}) ASSERT_EQ(values[i++], expected);
            }
}

TEST_P(EmulatedDevice, BarriersOrderSharedMemory) {
  constexpr int kBlocks = 5;
  const std::vector<int> in = counted(kBlocks * kReverseThreads);
  const DeviceArray<int> device_in(in), out(in.size());
  launch_reverse(device_in.data(), out.data(), kBlocks, nullptr);
  const std::vector<int> values = out.values();
  for (int i = 0; i < kBlocks * kReverseThreads; ++i) {
    const int t = i % kReverseThreads;
    EXPECT_EQ(values[static_cast<size_t>(i)], in[static_cast<size_t>(i - t + kReverseThreads - 1 - t)]);
  }
}

TEST_P(EmulatedDevice, DynamicSharedMemoryHasTheLaunchsSize) {
  for (const int size : {1, 33, 1024}) {
    const std::vector<int> in = counted(size);
    const DeviceArray<int> device_in(in), out(in.size());
    launch_reverse_dynamic(device_in.data(), out.data(), size);
    EXPECT_EQ(out.values(), std::vector<int>(in.rbegin(), in.rend()));
  }
}

// CUDA C++ Programming Guide, "Warp Shuffle Functions": lanes beyond the group of `width` give the lane's own value.
// But __shfl_sync takes the lane modulo the width, and __shfl_xor_sync may read earlier groups.
TEST_P(EmulatedDevice, ShufflesReadTheLanesOfCudasDescription) {
  const std::vector<int> in = counted(32);
  const DeviceArray<int> device_in(in), out(4 * 32);
  for (const int width : {1, 2, 8, 16, 32}) {
    for (const int operand : {0, 1, 3, 7, 16, 31}) {
      launch_shuffles(device_in.data(), out.data(), operand, width);
      const std::vector<int> values = out.values();
      for (int lane = 0; lane < 32; ++lane) {
        const int group = lane / width;
        const int up = lane - operand, down = lane + operand, other = lane ^ operand;
        const int expected[4] = {group * width + operand % width, up / width == group && up >= 0 ? up : lane,
                                 down / width == group ? down : lane, other / width <= group ? other : lane};
        for (int mode = 0; mode < 4; ++mode) {
          EXPECT_EQ(values[static_cast<size_t>(mode * 32 + lane)], 100 + expected[mode])
              << "mode " << mode << " lane " << lane << " operand " << operand << " width " << width;
        }
      }
    }
  }
}

TEST_P(EmulatedDevice, ShufflesMoveEightBytes) {
  std::vector<double> in(32), expected(32);
  for (size_t i = 0; i < 32; ++i) in[i] = 1.0 / static_cast<double>(i + 3);
  for (size_t i = 0; i < 32; ++i) expected[i] = in[i ^ 1];
  const DeviceArray<double> device_in(in), out(32);
  launch_shuffle_pairs(device_in.data(), out.data());
  EXPECT_EQ(out.values(), expected);
}

TEST_P(EmulatedDevice, HalvesOfAWarpGoApart) {
  const std::vector<int> in = counted(32);
  const DeviceArray<int> device_in(in), out(32);
  launch_half_warps(device_in.data(), out.data());
  const std::vector<int> values = out.values();
  for (size_t i = 0; i < 32; ++i) EXPECT_EQ(values[i], in[i] + in[i ^ (i < 16 ? 1 : 2)]);
}

TEST_P(EmulatedDevice, VotesCountTheLanesOfTheMask) {
  for (const unsigned set : {0u, 0xFFFFFFFFu, 0x00010004u, 0x55555555u, 0xAAAAAAAAu}) {
    std::vector<int> in(32);
    for (unsigned i = 0; i < 32; ++i) in[i] = set >> i & 1 ? static_cast<int>(i) + 5 : 0;
    const DeviceArray<int> device_in(in);
    const DeviceArray<unsigned> out(6);
    launch_votes(device_in.data(), out.data());
    const unsigned even = set & 0x55555555u;
    EXPECT_EQ(out.values(),
              (std::vector<unsigned>{set, set != 0, set == 0xFFFFFFFFu, even, even != 0, even == 0x55555555u}));
  }
}

TEST_P(EmulatedDevice, SyncwarpOrdersSharedMemoryWithinAWarp) {
  const std::vector<int> in = counted(32);
  const DeviceArray<int> device_in(in), out(32);
  launch_warp_exchange(device_in.data(), out.data());
  EXPECT_EQ(out.values(), std::vector<int>(in.rbegin(), in.rend()));
}

TEST_P(EmulatedDevice, AtomicsCountAllThreads) {
  const DeviceArray<int> out(std::vector<int>{0, -1});
  const DeviceArray<float> floats(std::vector<float>{0});
  launch_atomics(7, 96, out.data(), floats.data());
  EXPECT_EQ(out.values(), (std::vector<int>{7 * 96, 7 * 96 - 1}));
  EXPECT_EQ(floats.values()[0], 0.5f * 7 * 96);  // halves are exact
}

TEST_P(EmulatedDevice, AThreadMayWaitForAnotherInALoop) {
  const DeviceArray<int> flag(std::vector<int>{0}), out(std::vector<int>{0});
  launch_spin(flag.data(), out.data(), true);
  EXPECT_EQ(out.values()[0], 1);
}

// The modes promise this order. The results of the other tests do not depend on it.
TEST_P(EmulatedDevice, ThreadsAndBlocksRunInTheOrderOfTheMode) {
  using emulation::Order;
  const DeviceArray<int> counter(std::vector<int>{0}), out(4 * 64);
  launch_order(counter.data(), out.data());
  const std::vector<int> values = out.values();
  std::vector<std::vector<int>> places;  // the threads' places, for each phase of each block
  for (int part = 0; part < 4; ++part) {
    places.emplace_back(values.begin() + part * 64, values.begin() + (part + 1) * 64);
    const int first = *std::min_element(places.back().begin(), places.back().end());
    for (int& place : places.back()) place -= first;
    const bool is_first_block_first = GetParam().order != Order::reverse;
    if (GetParam().order != Order::random) {
      EXPECT_EQ(first, ((part / 2 == 0) == is_first_block_first ? 0 : 128) + part % 2 * 64) << "part " << part;
    }
  }
  const std::vector<int> ascending = counted(64, 0), descending(ascending.rbegin(), ascending.rend());
  // The reverse order begins with the highest warp, and within it with the highest lane.
  for (const auto& part : places) {
    EXPECT_EQ(part == ascending, GetParam().order == Order::forward);
    EXPECT_EQ(part == descending, GetParam().order == Order::reverse);
  }
  if (GetParam().order == Order::random) {
    EXPECT_NE(places[0], places[1]) << "chosen anew at the barrier";
    EXPECT_NE(places[0], places[2]) << "and for each block";
  }
}

TEST_P(EmulatedDevice, SharedMemoryHoldsNoNumbersAtFirst) {
  const DeviceArray<float> out(std::vector<float>{0, 0});
  if (emulation::build() == emulation::Build::race) {
    expect_error<emulation::Error>([&] { launch_uninitialized(out.data()); },
                                   {"read of bytes that nothing has written", "micro_kernels.cu:"});
    return;
  }
  launch_uninitialized(out.data());
  for (const float value : out.values()) EXPECT_NE(value, value);
}

float float_of(int bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

TEST(EmulatedArithmetic, IsCudas) {
  const float x = 1.5f;
  const std::vector<int> in = {int(0x80FF7F02), int(0x807F0103), int(0x7FFFFFF0), 0x3FC00000, 0x00000110, 0, 77, 0};
  const DeviceArray<int> device_in(in), device_out(kNumArithmetic);
  launch_arithmetic(device_in.data(), x, device_out.data());
  const std::vector<int> out = device_out.values();
  // The bytes 02 7F FF 80 and 03 01 7F 80 give 2*3 + 127*1 - 1*127 + 128*128 = 16390. Added to 2^31 - 16 this wraps.
  EXPECT_EQ(out[0], static_cast<int>(0x7FFFFFF0u + 16390u));
  constexpr float kUnit = std::numeric_limits<float>::epsilon();
  EXPECT_NEAR(float_of(out[1]), 1 / std::sqrt(1.5), 2 * kUnit);
  EXPECT_NEAR(float_of(out[2]), std::exp(1.5), 4 * 4 * kUnit);
  EXPECT_EQ(float_of(out[3]), 1.0f);
  EXPECT_EQ(float_of(out[4]), 1.5f);
  EXPECT_EQ(float_of(out[5]), 1.5f);
  EXPECT_EQ(float_of(out[6]), std::sqrt(1.5f));
  for (int i = 7; i < 10; ++i) EXPECT_EQ(out[static_cast<size_t>(i)], 0x3FC00000);
  EXPECT_EQ(std::vector<int>(out.begin() + 10, out.end()),
            (std::vector<int>{17, 5, 23, 32, in[1], in[0], 4, -4, std::numeric_limits<int>::max(),
                              std::numeric_limits<int>::min(), 0, out[21], 77, 32}));
  EXPECT_EQ(float_of(out[21]), static_cast<float>(in[1]));
}

TEST(EmulatedArithmetic, VectorsHoldTheirElements) {
  const std::vector<int> in = counted(44);
  const DeviceArray<int> device_in(in), out(in.size());
  launch_vectors(device_in.data(), out.data(), static_cast<int>(in.size()));
  EXPECT_EQ(out.values(), in);
}

// Faults that must be errors in every build, with the words that the message must contain.
struct FaultRow {
  Fault fault;
  std::initializer_list<std::string> says;
};

TEST_P(EmulatedDevice, FaultsAreErrorsThatSayWhere) {
  const FaultRow rows[] = {
      {Fault::misaligned_ldg, {"misaligned_ldg", "thread (0,0,0)", "__ldg at micro_kernels.cu:", "multiple of 16"}},
      {Fault::shuffle_width, {"__shfl_sync at micro_kernels.cu:", "the width is 12"}},
      {Fault::shuffle_lane_outside_mask, {"block (0,0,0), thread (", "lane 9 is read, but the mask does not name it"}},
      {Fault::mask_without_caller, {"the mask does not name the calling lane "}},
      {Fault::mask_of_missing_lanes, {"__syncwarp at micro_kernels.cu:", "which the block does not have"}},
      {Fault::deadlock, {"block (0,0,0): deadlock: thread (0,0,0) in __syncwarp at micro_kernels.cu:"}},
      {Fault::barrier_after_return, {"micro_kernels.cu:", "returned"}},
      {Fault::mixed_operations, {"lanes of its mask wait for this one in __"}},
      {Fault::too_much_shared_memory_in_all, {"16384 bytes of dynamic", "more than the launch allows: 49152"}},
  };
  for (const FaultRow& row : rows) {
    const DeviceArray<int> memory(std::vector<int>(64, 0));
    expect_error<emulation::Error>([&] { launch_fault(row.fault, memory.data()); }, row.says);
  }
  const DeviceArray<int> memory(64);
  expect_error<emulation::Error>([&] { launch_too_much_shared_memory(memory.data()); },
                                 {"SHARED_ARRAY at refused_by_nvcc.cu:", "second", "more than 48 KiB"});
}

// These are faults that the processor finds, or the sanitizer of the build.
TEST(EmulatedFaults, OfTheProcessorAreErrorsToo) {
  const DeviceArray<int> memory(std::vector<int>(64, 0));
  expect_error<emulation::Error>([&] { launch_fault(Fault::null_pointer, memory.data()); },
                                 {"kernel pare::", "thread (0,0,0)", "null pointer", "micro_kernels.cu:"});
  expect_error<emulation::Error>([&] { launch_fault(Fault::unallocated_memory, memory.data()); },
                                 {"unallocated_memory", "micro_kernels.cu:"});
  expect_error<emulation::Error>([&] { launch_fault(Fault::stack_overflow, memory.data()); },
                                 {"its stack is full", "micro_kernels.cu:"});
  expect_error<emulation::Error>([&] { launch_fault(Fault::misaligned_vector, memory.data()); },
                                 {"a misaligned vector access", "micro_kernels.cu:"});
}

TEST(EmulatedFaults, AnEndlessWaitIsALivelock) {
  const DeviceArray<int> flag(std::vector<int>{0}), out(std::vector<int>{0});
  expect_error<emulation::Error>([&] { launch_spin(flag.data(), out.data(), false); }, {"spin", "livelock"});
}

TEST(EmulatedFaults, TheDeviceGoesOnBehindThem) {
  const DeviceArray<int> memory(std::vector<int>(64, 0));
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW(launch_fault(Fault::deadlock, memory.data()), emulation::Error);
    EXPECT_NO_THROW(launch_on_pointer(memory.data()));
    EXPECT_EQ(memory.values()[0], 1);
  }
}

}  // namespace
}  // namespace pare
