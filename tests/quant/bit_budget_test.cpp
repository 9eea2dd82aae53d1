#include "quant/bit_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>

#include "quant/grid.h"
#include "quant/rtn.h"
#include "runtime/containers/compressed_tensors.h"
#include "runtime/system/interrupt.h"
#include "tests/quant/random_layer.h"

namespace pare {
using namespace quant;
using namespace runtime;
namespace {

constexpr int64_t kNoTable = 0;

BitCandidate candidate(int64_t size_bytes, double loss) {
  return {4, kPerChannel, size_bytes, loss};
}

// Returns groups of up to `max_candidates` candidates whose sizes are multiples of `unit`. Losses are whole numbers,
// whose sums are exact and tie often.
std::vector<BudgetGroup> random_groups(int num_groups, int max_candidates, int64_t unit, uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<BudgetGroup> groups;
  for (int g = 0; g < num_groups; ++g) {
    groups.push_back({"group " + std::to_string(g), {}});
    const int num_candidates = 1 + static_cast<int>(generator() % max_candidates);
    for (int c = 0; c < num_candidates; ++c) {
      groups.back().candidates.push_back(candidate(unit * (1 + generator() % 12), generator() % 30));
    }
  }
  return groups;
}

// Returns groups like a model's: the loss falls by a factor of about four per bit, and each bit adds to the size.
std::vector<BudgetGroup> model_groups(int num_groups, uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<BudgetGroup> groups;
  for (int g = 0; g < num_groups; ++g) {
    groups.push_back({"group " + std::to_string(g), {}});
    const int64_t weights = 64 * (1 + generator() % 20);
    const double sensitivity = std::exp(generator() % 1000 / 200.0);
    for (const int bits : {2, 3, 4, 8, 16}) {
      for (const int64_t group_size : {int64_t{32}, int64_t{128}}) {
        const double noise = 1.0 + generator() % 100 / 300.0;
        const double loss = bits == 16 ? 0.0 : sensitivity * weights * noise * std::pow(4.0, -bits);
        groups.back().candidates.push_back(
            {bits, group_size, weights * bits / 8 + weights * 2 / group_size, loss * (group_size == 32 ? 0.8 : 1.0)});
      }
    }
  }
  return groups;
}

int64_t smallest_size(const std::vector<BudgetGroup>& groups) {
  int64_t sum = 0;
  for (const BudgetGroup& group : groups) {
    int64_t smallest = std::numeric_limits<int64_t>::max();
    for (const BitCandidate& c : group.candidates) smallest = std::min(smallest, c.size_bytes);
    sum += smallest;
  }
  return sum;
}

int64_t largest_size(const std::vector<BudgetGroup>& groups) {
  int64_t sum = 0;
  for (const BudgetGroup& group : groups) {
    int64_t largest = 0;
    for (const BitCandidate& c : group.candidates) largest = std::max(largest, c.size_bytes);
    sum += largest;
  }
  return sum;
}

struct Assignment {
  double loss = std::numeric_limits<double>::infinity();
  int64_t size_bytes = 0;
  std::vector<int> chosen;
};

void for_all_assignments(const std::vector<BudgetGroup>& groups, const std::function<void(const Assignment&)>& visit) {
  Assignment current;
  const std::function<void(size_t, double, int64_t)> descend = [&](size_t g, double loss, int64_t size_bytes) {
    if (g == groups.size()) {
      current.loss = loss;
      current.size_bytes = size_bytes;
      visit(current);
      return;
    }
    for (size_t c = 0; c < groups[g].candidates.size(); ++c) {
      current.chosen.push_back(static_cast<int>(c));
      descend(g + 1, loss + groups[g].candidates[c].loss, size_bytes + groups[g].candidates[c].size_bytes);
      current.chosen.pop_back();
    }
  };
  descend(0, 0.0, 0);
}

// Returns the best assignment by the header's rule. It compares loss, then size, then from the last group on the
// smaller candidate, and takes the first of equal ones.
Assignment brute_force(const std::vector<BudgetGroup>& groups, int64_t budget_bytes) {
  const auto rank = [&](const Assignment& a) {
    std::vector<std::pair<int64_t, int>> from_the_last;
    for (size_t g = groups.size(); g-- > 0;) {
      from_the_last.push_back({groups[g].candidates[a.chosen[g]].size_bytes, a.chosen[g]});
    }
    return std::make_tuple(a.loss, a.size_bytes, from_the_last);
  };
  Assignment best;
  for_all_assignments(groups, [&](const Assignment& a) {
    if (a.size_bytes <= budget_bytes && (best.chosen.empty() || rank(a) < rank(best))) best = a;
  });
  return best;
}

void expect_consistent(const BudgetPlan& plan, const std::vector<BudgetGroup>& groups, int64_t budget_bytes) {
  int64_t size_bytes = 0;
  double loss = 0.0;
  ASSERT_EQ(plan.chosen.size(), groups.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    size_bytes += groups[g].candidates.at(plan.chosen[g]).size_bytes;
    loss += groups[g].candidates.at(plan.chosen[g]).loss;
  }
  EXPECT_EQ(plan.size_bytes, size_bytes);
  EXPECT_EQ(plan.loss, loss);
  EXPECT_LE(plan.size_bytes, budget_bytes);
  EXPECT_LE(plan.lower_bound, plan.loss);
}

TEST(BitBudget, EqualsBruteForceAndItsTieBreaks) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    const int64_t unit = seed % 3 == 0 ? 1 : 96;
    const std::vector<BudgetGroup> groups = random_groups(1 + seed % 6, 4, unit, seed);
    const int64_t smallest = smallest_size(groups), largest = largest_size(groups);
    for (int64_t budget = smallest; budget <= largest + unit; budget += std::max<int64_t>(1, unit / 2)) {
      const BudgetPlan plan = plan_bits(groups, budget);
      const Assignment best = brute_force(groups, budget);
      ASSERT_TRUE(plan.is_exact);
      expect_consistent(plan, groups, budget);
      EXPECT_EQ(plan.loss, best.loss);
      EXPECT_EQ(plan.lower_bound, best.loss);
      EXPECT_EQ(plan.size_bytes, best.size_bytes);
      EXPECT_EQ(plan.chosen, best.chosen);
    }
  }
}

TEST(BitBudget, SolvesEightGroupsOfThree) {
  for (uint32_t seed = 100; seed < 103; ++seed) {
    std::vector<BudgetGroup> groups = model_groups(8, seed);
    for (BudgetGroup& group : groups)
      group.candidates = {group.candidates[1], group.candidates[4], group.candidates[6]};
    const int64_t smallest = smallest_size(groups), largest = largest_size(groups);
    for (int k = 0; k <= 10; ++k) {
      const int64_t budget = smallest + (largest - smallest) * k / 10;
      EXPECT_EQ(plan_bits(groups, budget).loss, brute_force(groups, budget).loss);  // sums in the same order
    }
  }
}

TEST(BitBudget, CurveIsEveryPointThatNoOtherBeats) {
  for (uint32_t seed = 200; seed < 220; ++seed) {
    const std::vector<BudgetGroup> groups = random_groups(5, 4, 7, seed);
    std::vector<std::pair<int64_t, double>> all;
    for_all_assignments(groups, [&](const Assignment& a) { all.push_back({a.size_bytes, a.loss}); });
    std::sort(all.begin(), all.end());
    std::vector<std::pair<int64_t, double>> expected;
    for (const auto& point : all) {
      if (expected.empty() || point.second < expected.back().second) expected.push_back(point);
    }
    const BudgetPlan plan = plan_bits(groups, smallest_size(groups));
    ASSERT_EQ(plan.curve.size(), expected.size());
    for (size_t k = 0; k < expected.size(); ++k) {
      EXPECT_EQ(plan.curve[k].size_bytes, expected[k].first);
      EXPECT_EQ(plan.curve[k].loss, expected[k].second);
    }
    // A point is a corner when it lies below every line between a smaller and a larger one. Whole numbers make this
    // exact.
    for (size_t k = 0; k < expected.size(); ++k) {
      bool is_corner = true;
      for (size_t i = 0; i < k; ++i) {
        for (size_t j = k + 1; j < expected.size(); ++j) {
          const auto [left, point, right] = std::tie(expected[i], expected[k], expected[j]);
          is_corner &= (point.second - left.second) * (right.first - left.first) <
                       (right.second - left.second) * (point.first - left.first);
        }
      }
      EXPECT_EQ(plan.curve[k].on_hull, is_corner) << "seed " << seed << ", point " << k;
    }
  }
}

TEST(BitBudget, MoreBytesNeverCostLoss) {
  const std::vector<BudgetGroup> groups = model_groups(30, 7);
  const int64_t smallest = smallest_size(groups), largest = largest_size(groups);
  double previous = std::numeric_limits<double>::infinity();
  for (int k = 0; k <= 40; ++k) {
    const int64_t budget = smallest + (largest - smallest) * k / 40;
    const BudgetPlan plan = plan_bits(groups, budget);
    expect_consistent(plan, groups, budget);
    EXPECT_LE(plan.loss, previous);
    previous = plan.loss;
  }
  EXPECT_EQ(previous, 0.0);  // the largest budget holds every weight in 16 bits
}

TEST(BitBudget, EachPointOfTheCurveIsReachedToTheByte) {
  const std::vector<BudgetGroup> groups = model_groups(6, 8);
  const std::vector<CurvePoint> curve = plan_bits(groups, largest_size(groups)).curve;
  ASSERT_GT(curve.size(), 50u);
  for (size_t k = 0; k < curve.size(); k += 7) {
    const BudgetPlan at = plan_bits(groups, curve[k].size_bytes);
    EXPECT_EQ(at.size_bytes, curve[k].size_bytes);
    EXPECT_EQ(at.loss, curve[k].loss);
    if (k == 0) continue;
    EXPECT_EQ(plan_bits(groups, curve[k].size_bytes - 1).loss, curve[k - 1].loss);
  }
}

// Compares the Lagrangian path with the exact one: bound <= optimum <= found, with a gap as small as the header
// promises.
TEST(BitBudget, RelaxationBoundsTheOptimum) {
  int num_gaps = 0;
  for (uint32_t seed = 300; seed < 330; ++seed) {
    const std::vector<BudgetGroup> groups = seed % 2 ? model_groups(7, seed) : random_groups(7, 4, 5, seed);
    double largest_drop = 0.0;  // between neighbouring corners of one group's hull
    for (const BudgetGroup& group : groups) {
      const std::vector<CurvePoint> own = plan_bits({group}, largest_size({group})).curve;
      double last = own.front().loss;
      for (const CurvePoint& point : own) {
        if (!point.on_hull) continue;
        largest_drop = std::max(largest_drop, last - point.loss);
        last = point.loss;
      }
    }
    const int64_t smallest = smallest_size(groups), largest = largest_size(groups);
    for (int k = 0; k <= 30; ++k) {
      const int64_t budget = smallest + (largest - smallest) * k / 30;
      const BudgetPlan exact = plan_bits(groups, budget), priced = plan_bits(groups, budget, kNoTable);
      ASSERT_TRUE(exact.is_exact);
      ASSERT_FALSE(priced.is_exact);
      expect_consistent(priced, groups, budget);
      const double rounding = 1e-12 * exact.curve.front().loss;  // for a few dozen float64 operations
      EXPECT_LE(priced.lower_bound, exact.loss + rounding);
      EXPECT_LE(exact.loss, priced.loss + rounding);
      EXPECT_LE(priced.loss - priced.lower_bound, largest_drop + rounding);
      num_gaps += priced.loss > exact.loss;
    }
  }
  EXPECT_GT(num_gaps, 0);  // otherwise the test would say nothing about the bound
}

TEST(BitBudget, BothWaysFindTheSameHull) {
  for (uint32_t seed = 400; seed < 420; ++seed) {
    const std::vector<BudgetGroup> groups = random_groups(6, 5, 3, seed);
    std::vector<CurvePoint> corners = plan_bits(groups, largest_size(groups)).curve;
    std::erase_if(corners, [](const CurvePoint& point) { return !point.on_hull; });
    const std::vector<CurvePoint> priced = plan_bits(groups, largest_size(groups), kNoTable).curve;
    ASSERT_EQ(priced.size(), corners.size()) << seed;
    for (size_t k = 0; k < corners.size(); ++k) {
      EXPECT_TRUE(priced[k].on_hull);
      EXPECT_EQ(priced[k].size_bytes, corners[k].size_bytes);
      EXPECT_EQ(priced[k].loss, corners[k].loss);
      // At a corner the relaxation is exact, and its bound shows it.
      const BudgetPlan at = plan_bits(groups, corners[k].size_bytes, kNoTable);
      EXPECT_EQ(at.loss, corners[k].loss);
      EXPECT_NEAR(at.lower_bound, corners[k].loss, 1e-12 * corners[0].loss);
    }
  }
}

TEST(BitBudget, ALargeModelIsSolvedExactly) {
  const std::vector<BudgetGroup> groups = model_groups(200, 9);
  const int64_t smallest = smallest_size(groups), largest = largest_size(groups);
  const BudgetPlan plan = plan_bits(groups, smallest + (largest - smallest) / 5);
  EXPECT_TRUE(plan.is_exact);
  EXPECT_GE(plan.curve.size(), 1000u);
}

TEST(BitBudget, SizeIsThatOfTheContainer) {
  for (const int bits : {2, 3, 4, 8}) {
    for (const bool symmetric : {true, false}) {
      for (const DType dtype : {DType::BF16, DType::F32}) {
        for (const int64_t group_size : {kPerChannel, int64_t{10}, int64_t{70}}) {
          const GridOptions grid{bits, group_size, symmetric, ScaleSearch::minmax, dtype};
          const int64_t num_out = 9, num_in = 70;  // the last words of rows and of columns are partly filled
          int64_t stored = 0;
          for (const OwnedTensor& tensor :
               pack_compressed_tensors(rtn(random_weight(num_out, num_in, 1), {}, grid), "m")) {
            stored += static_cast<int64_t>(tensor.data.size());
          }
          EXPECT_EQ(quantized_size_bytes(num_out, num_in, grid), stored);
        }
      }
    }
  }
}

TEST(BitBudget, RefusesWhatItCannotPlan) {
  const auto message_of = [](const std::vector<BudgetGroup>& groups, int64_t budget) -> std::string {
    try {
      plan_bits(groups, budget);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "no std::invalid_argument";
  };
  const std::vector<BudgetGroup> good = {{"qkv", {candidate(10, 1.0)}}, {"o", {candidate(7, 1.0), candidate(5, 2.0)}}};
  EXPECT_EQ(message_of(good, 15), "no std::invalid_argument");
  EXPECT_NE(message_of(good, 14).find("take 15"), std::string::npos);
  EXPECT_NE(message_of({}, 14).find("no"), std::string::npos);
  EXPECT_NE(message_of({{"gate", {}}}, 14).find("'gate'"), std::string::npos);
  EXPECT_NE(message_of({{"gate", std::vector(256, candidate(1, 1.0))}}, 14).find("256"), std::string::npos);
  for (const BitCandidate& bad : {candidate(0, 1.0), candidate(4, -1.0), candidate(4, NAN), candidate(4, INFINITY)}) {
    EXPECT_NE(message_of({{"gate", {bad}}}, 14).find("'gate'"), std::string::npos);
  }
}

TEST(BitBudget, StopsWhenInterrupted) {
  std::vector<BudgetGroup> groups(2, {"group", {candidate(10, 2.0), candidate(20, 1.0)}});
  request_interrupt();
  EXPECT_THROW(plan_bits(groups, 30, 1 << 20), Interrupted);
  clear_interrupt();
  EXPECT_EQ(plan_bits(groups, 30, 1 << 20).size_bytes, 30);
}

}  // namespace
}  // namespace pare
