#include "prune/sparsegpt.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cholesky_inverse.h>
#include <ATen/ops/diag.h>
#include <ATen/ops/linalg_cholesky.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>

#include "quant/refine.h"
#include "tests/quant/column_twin.h"
#include "tests/quant/random_layer.h"

namespace pare {
using namespace prune;
using namespace quant;
using namespace runtime;
namespace {

ColumnMask n_of_m(int64_t num_kept, int64_t group) {
  return {.kept_OI = {}, .pattern = {num_kept, group}, .ratio = 0.0};
}

ColumnMask share(double ratio) {
  return {.kept_OI = {}, .pattern = {}, .ratio = ratio};
}

// Returns the mask with about a third of the places not allowed.
ColumnMask within_some(ColumnMask mask, int64_t num_out, int64_t num_in) {
  std::mt19937 generator(31);
  mask.allowed_OI = at::ones({num_out, num_in}, at::kBool);
  for (int64_t i = 0; i < num_out * num_in; ++i) mask.allowed_OI.mutable_data_ptr<bool>()[i] = generator() % 3 != 0;
  return mask;
}

GptqOptions in_order(ActOrder act_order = ActOrder::none, double damping = 0.01) {
  return {.grid = {}, .damping = damping, .act_order = act_order};
}

// Runs Algorithm 1 in float64 with explicit inverses, all rows side by side. Where `grid` is given, codes are chosen on
// its grids.
struct Twin {
  std::vector<double> values_OI;  // in storage order, as everything here
  std::vector<char> kept_OI;
  std::vector<int> codes_OI;
  // The distance of each decision about a weight from the other choice: its mask's in parts of the largest weight at
  // that time, its code's in parts of the scale.
  std::vector<double> mask_margins_OI, code_margins_OI;
  double squared_errors = 0.0;  // the sum of all E^2, which is the trace under the damped H
};

class TwinLoop {
 public:
  TwinLoop(const at::Tensor& weight, const Matrix& rows, const std::vector<int64_t>& order, const QuantizedWeight* grid)
      : num_out_(weight.size(0)), num_in_(weight.size(1)), rows_(rows), order_(order), grid_(grid) {
    const size_t size = size_t(num_out_ * num_in_);
    twin_ = {std::vector<double>(size), std::vector<char>(size, 1), std::vector<int>(size),
             std::vector<double>(size, 1.0), std::vector<double>(size, 1.0)};
    for (size_t i = 0; i < size; ++i) twin_.values_OI[i] = floats(weight)[i];
  }

  Twin run(const ColumnMask& mask, int64_t block_size) {
    allowed_ = mask.allowed_OI.defined() ? mask.allowed_OI.const_data_ptr<bool>() : nullptr;
    for (int64_t k = 0; k < num_in_; ++k) {
      if (mask.ratio > 0.0 && k % block_size == 0) {
        std::vector<std::pair<int64_t, int64_t>> places;
        const int64_t end = std::min(k + block_size, num_in_);
        for (int64_t o = 0; o < num_out_; ++o) {
          for (int64_t p = k; p < end; ++p) places.emplace_back(o, p);
        }
        choose(places, int64_t(places.size()) - std::llround(mask.ratio * double(places.size())));
      }
      for (int64_t o = 0; o < num_out_; ++o) {
        if (mask.pattern.group > 0 && k % mask.pattern.group == 0) {
          std::vector<std::pair<int64_t, int64_t>> places;
          for (int64_t p = k; p < k + mask.pattern.group; ++p) places.emplace_back(o, p);
          choose(places, mask.pattern.num_kept);
        }
        settle(o, k);
      }
    }
    return twin_;
  }

 private:
  size_t place(int64_t o, int64_t p) const { return size_t(o * num_in_ + order_[p]); }
  bool may_keep(size_t here) const { return allowed_ == nullptr || allowed_[here]; }

  // Keeps the best of these places, by w^2 / U_pp^2.
  void choose(const std::vector<std::pair<int64_t, int64_t>>& places, int64_t num_kept) {
    const auto score = [&](const auto& at) {
      const size_t here = place(at.first, at.second);
      return may_keep(here) ? std::abs(twin_.values_OI[here]) / pivot(at.second) : -1.0;
    };
    auto ranked = places;
    std::stable_sort(ranked.begin(), ranked.end(), [&](const auto& a, const auto& b) { return score(a) > score(b); });
    double largest = 0.0;
    for (const auto& [o, p] : ranked) largest = std::max(largest, std::abs(twin_.values_OI[place(o, p)]));
    for (size_t i = 0; i < ranked.size(); ++i) {
      const size_t here = place(ranked[i].first, ranked[i].second);
      const bool kept = int64_t(i) < num_kept && may_keep(here);
      twin_.kept_OI[here] = kept;
      if (num_kept == 0 || num_kept == int64_t(ranked.size()) || !may_keep(here)) continue;
      const double boundary = score(ranked[size_t(kept ? num_kept : num_kept - 1)]);
      twin_.mask_margins_OI[here] = std::abs(score(ranked[i]) - boundary) * pivot(ranked[i].second) / largest;
    }
  }

  void settle(int64_t o, int64_t k) {
    const size_t here = place(o, k);
    const double before = twin_.values_OI[here];
    double value = twin_.kept_OI[here] ? before : 0.0;
    if (grid_ != nullptr) {
      const int64_t group = grid_->group(order_[k]);
      const double scale = grid_->scales_OG[o * grid_->num_groups() + group], zero = grid_->zero(o, group);
      const double steps = value / scale;
      twin_.codes_OI[here] = int(std::clamp(std::nearbyint(steps) + zero, 0.0, double((1 << grid_->bits) - 1)));
      if (twin_.kept_OI[here]) twin_.code_margins_OI[here] = std::abs(steps - std::floor(steps) - 0.5);
      value = scale * (twin_.codes_OI[here] - zero);
    }
    const double error = (before - value) / pivot(k);
    twin_.squared_errors += error * error;
    for (int64_t j = k + 1; j < num_in_; ++j) twin_.values_OI[place(o, j)] -= error * rows_[k][j] / pivot(k);
    twin_.values_OI[here] = value;
  }

  double pivot(int64_t p) const { return std::sqrt(rows_[p][p]); }

  int64_t num_out_, num_in_;
  const bool* allowed_ = nullptr;
  const Matrix& rows_;
  const std::vector<int64_t>& order_;
  const QuantizedWeight* grid_;
  Twin twin_;
};

// Rows must agree up to their first tie. float32 rounds a weight (relative 2^-24) once for each of at most I updates,
// and each has a few roundings of its own. Masks whose scores are closer than that are ties, as in column_twin.h. Where
// the mask is chosen among all rows, the comparison ends with the first tie.
struct TwinComparison {
  int64_t num_compared = 0, num_left_at_ties = 0, num_wrong = 0;
};

TwinComparison compare(const at::Tensor& kept, const QuantizedWeight* codes, const Twin& twin,
                       const std::vector<int64_t>& order, bool rows_together) {
  const int64_t num_out = kept.size(0), num_in = kept.size(1);
  const double tie = 4.0 * double(num_in) * 0x1p-24;
  TwinComparison result;
  bool has_tie = false;
  for (int64_t o = 0; o < num_out && !has_tie; ++o) {
    ++result.num_compared;
    for (const int64_t column : order) {
      const auto i = size_t(o * num_in + column);
      const bool same_mask = kept.const_data_ptr<bool>()[i] == (twin.kept_OI[i] != 0);
      if (same_mask && (codes == nullptr || codes->codes_OI[i] == twin.codes_OI[i])) continue;
      const bool at_tie =
          same_mask ? twin.code_margins_OI[i] <= tie * (1 << codes->bits) : twin.mask_margins_OI[i] <= tie;
      (at_tie ? result.num_left_at_ties : result.num_wrong) += 1;
      has_tie = at_tie && rows_together;
      break;
    }
  }
  return result;
}

struct Shape {
  int64_t num_out, num_in, block_size;
};

TEST(SparseGpt, PrunesAndMovesWeightsAsItsFloat64TwinDoes) {
  int64_t num_compared = 0, num_left = 0;
  for (const auto& [num_out, num_in, block_size] :
       {Shape{5, 16, 128}, Shape{97, 48, 128}, Shape{20, 48, 16}, Shape{20, 96, 20}, Shape{9, 192, 128}}) {
    const at::Tensor weight = random_weight(num_out, num_in, 1), hessian = random_hessian(num_in, 2);
    for (const ColumnMask& mask :
         {n_of_m(2, 4), n_of_m(4, 8), n_of_m(1, 4), n_of_m(3, 4), n_of_m(1, 2), n_of_m(7, 16), share(0.5), share(0.8),
          share(0.03), within_some(n_of_m(2, 4), num_out, num_in), within_some(n_of_m(4, 8), num_out, num_in),
          within_some(share(0.5), num_out, num_in), within_some(share(0.1), num_out, num_in)}) {
      for (const ActOrder act_order : {ActOrder::none, ActOrder::static_groups}) {
        SCOPED_TRACE(std::to_string(mask.pattern.num_kept) + ":" + std::to_string(mask.pattern.group) + " or " +
                     std::to_string(mask.ratio) + " of " + std::to_string(num_out) + " x " + std::to_string(num_in));
        const GptqFactor factor = factorize(hessian, in_order(act_order), std::max<int64_t>(mask.pattern.group, 1));
        const Matrix rows = elimination_rows(hessian, 0.01, factor.order_I);
        const SparseGptResult found = sparsegpt(weight, factor, mask, block_size);
        const Twin twin = TwinLoop(weight, rows, factor.order_I, nullptr).run(mask, block_size);
        const TwinComparison comparison = compare(found.kept_OI, nullptr, twin, factor.order_I, mask.ratio > 0.0);
        EXPECT_EQ(comparison.num_wrong, 0);
        num_compared += comparison.num_compared;
        num_left += comparison.num_left_at_ties;
        if (comparison.num_left_at_ties > 0) continue;
        const double tolerance = 4.0 * double(num_in) * 0x1p-24 * weight.abs().max().item<double>();
        for (int64_t i = 0; i < num_out * num_in; ++i) {
          ASSERT_NEAR(floats(found.weight_OI)[i], twin.values_OI[size_t(i)], 4.0 * tolerance);
          ASSERT_TRUE(found.kept_OI.const_data_ptr<bool>()[i] || floats(found.weight_OI)[i] == 0.0f);
          ASSERT_TRUE(!mask.allowed_OI.defined() || mask.allowed_OI.const_data_ptr<bool>()[i] ||
                      !found.kept_OI.const_data_ptr<bool>()[i]);
        }
        // The trace under the damped H is the sum of all E^2.
        const at::Tensor damped = hessian.clone();
        damped.diagonal().add_(0.01 * hessian.diagonal().to(at::kDouble).mean().item<double>());
        EXPECT_NEAR(trace_error(weight, found.weight_OI, damped), twin.squared_errors, 1e-4 * twin.squared_errors);
        EXPECT_LT(found.trace_error, twin.squared_errors);
      }
    }
  }
  EXPECT_LE(num_left * 20, num_compared) << "so many ties that the comparison says little";
}

TEST(SparseGpt, TheComparisonWithTheTwinFindsPlantedFaults) {
  const at::Tensor weight = random_weight(6, 32, 3), hessian = random_hessian(32, 4);
  const GptqFactor factor = factorize(hessian, in_order());
  const SparseGptResult found = sparsegpt(weight, factor, n_of_m(2, 4));
  const auto num_wrong = [&](double damping, const at::Tensor& kept) {
    const Matrix rows = elimination_rows(hessian, damping, factor.order_I);
    return compare(kept, nullptr, TwinLoop(weight, rows, factor.order_I, nullptr).run(n_of_m(2, 4), 128),
                   factor.order_I, false)
        .num_wrong;
  };
  EXPECT_EQ(num_wrong(0.01, found.kept_OI), 0);
  EXPECT_GT(num_wrong(0.5, found.kept_OI), 0);
  at::Tensor faulty = found.kept_OI.clone();
  faulty.mutable_data_ptr<bool>()[3 * 32 + 17] ^= true;
  EXPECT_EQ(num_wrong(0.01, faulty), 1);
}

// The authors' code (sparsegpt.py, fasterprune) in the same operations of PyTorch, in float64.
at::Tensor authors_algorithm(const at::Tensor& weight, const at::Tensor& hessian, int64_t num_pruned, int64_t group,
                             int64_t block_size) {
  at::Tensor w = weight.to(at::kDouble), h = hessian.to(at::kDouble);
  const int64_t n = w.size(1);
  h.diagonal().add_(0.01 * h.diagonal().mean().item<double>());
  const at::Tensor upper = at::linalg_cholesky(at::cholesky_inverse(at::linalg_cholesky(h)), /*upper=*/true);
  for (int64_t begin = 0; begin < n; begin += block_size) {
    const int64_t end = std::min(begin + block_size, n);
    const at::Tensor block = w.narrow(1, begin, end - begin).clone(), values = at::zeros_like(block);
    const at::Tensor errors = at::zeros_like(block), mask = at::zeros_like(block, at::kBool);
    const at::Tensor square = upper.narrow(0, begin, end - begin).narrow(1, begin, end - begin);
    for (int64_t i = 0; i < end - begin; ++i) {
      if (i % group == 0) {
        const at::Tensor scores =
            block.narrow(1, i, group).square() / square.diagonal().narrow(0, i, group).square().unsqueeze(0);
        mask.scatter_(1, std::get<1>(at::topk(scores, num_pruned, 1, /*largest=*/false)) + i, true);
      }
      const at::Tensor column = block.select(1, i);
      const at::Tensor value = at::where(mask.select(1, i), at::zeros_like(column), column);
      const at::Tensor error = (column - value) / square[i][i];
      values.select(1, i).copy_(value);
      block.narrow(1, i, end - begin - i)
          .sub_(error.unsqueeze(1).mm(square[i].narrow(0, i, end - begin - i).unsqueeze(0)));
      errors.select(1, i).copy_(error);
    }
    w.narrow(1, begin, end - begin).copy_(values);
    if (end < n) w.narrow(1, end, n - end).sub_(errors.mm(upper.narrow(0, begin, end - begin).narrow(1, end, n - end)));
  }
  return w;
}

TEST(SparseGpt, GivesWhatTheAuthorsCodeGives) {
  const int64_t num_in = 160;
  const at::Tensor weight = random_weight(50, num_in, 5), hessian = random_hessian(num_in, 6);
  for (const auto& [num_kept, group] : {std::array<int64_t, 2>{2, 4}, {4, 8}, {1, 4}}) {
    const SparseGptResult found = sparsegpt(weight, factorize(hessian, in_order()), n_of_m(num_kept, group), 32);
    const at::Tensor expected = authors_algorithm(weight, hessian, group - num_kept, group, 32);
    // This compares float64 with float32: rows may part at a tie between scores.
    int64_t num_equal = 0;
    for (int64_t row = 0; row < 50; ++row) {
      num_equal += found.weight_OI[row].to(at::kDouble).allclose(expected[row], 0.0, 1e-4);
    }
    EXPECT_GE(num_equal, 48);
    EXPECT_NEAR(found.trace_error, trace_error(weight, expected.to(at::kFloat), hessian), 0.02 * found.trace_error);
  }
}

TEST(SparseGpt, OneWeightIsPrunedAtTheLeastCost) {
  // One weight of one row and one block is pruned: that with the least w^2 / U_kk^2, which is what it then costs.
  const int64_t num_in = 24;
  const at::Tensor hessian = random_hessian(num_in, 7);
  const GptqFactor factor = factorize(hessian, in_order(ActOrder::none, 0.0));
  const Matrix rows = elimination_rows(hessian, 0.0, factor.order_I);
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const at::Tensor weight = random_weight(1, num_in, 100 + seed);
    const SparseGptResult found = sparsegpt(weight, factor, share(1.0 / num_in));
    double least = std::numeric_limits<double>::infinity();
    for (int64_t k = 0; k < num_in; ++k) {
      least = std::min(least, double(floats(weight)[k]) * floats(weight)[k] / rows[k][k]);
    }
    EXPECT_EQ(found.kept_OI.sum().item<int64_t>(), num_in - 1);
    EXPECT_NEAR(found.trace_error, least, 1e-3 * least);
  }
}

TEST(SparseGpt, LiesBetweenTheBestMaskAndMagnitudes) {
  // The test tries all 36 masks of 2:4 on eight columns, and solves the kept weights of each exactly. A set P of pruned
  // weights then costs w_P ((H^-1)_PP)^-1 w_P^T.
  constexpr int64_t kRows = 40, kColumns = 8;
  const at::Tensor weight = random_weight(kRows, kColumns, 8), hessian = random_hessian(kColumns, 9);
  Matrix h(kColumns, std::vector<double>(kColumns));
  for (int64_t i = 0; i < kColumns * kColumns; ++i) h[size_t(i / kColumns)][size_t(i % kColumns)] = floats(hessian)[i];
  const Matrix inverted = inverse(h);
  const SparseGptResult found = sparsegpt(weight, factorize(hessian, in_order(ActOrder::none, 0.0)), n_of_m(2, 4));
  double total_of_best = 0.0, total_of_magnitudes = 0.0;
  for (int64_t row = 0; row < kRows; ++row) {
    const float* w = floats(weight) + row * kColumns;
    double best = std::numeric_limits<double>::infinity();
    for (int set = 0; set < 1 << kColumns; ++set) {
      if (__builtin_popcount(unsigned(set) & 15u) != 2 || __builtin_popcount(unsigned(set) >> 4) != 2) continue;
      std::vector<size_t> pruned;
      for (size_t i = 0; i < kColumns; ++i) {
        if (set >> i & 1) pruned.push_back(i);
      }
      Matrix part(pruned.size(), std::vector<double>(pruned.size()));
      for (size_t a = 0; a < pruned.size(); ++a) {
        for (size_t b = 0; b < pruned.size(); ++b) part[a][b] = inverted[pruned[a]][pruned[b]];
      }
      const Matrix solved = inverse(part);
      double cost = 0.0;
      for (size_t a = 0; a < pruned.size(); ++a) {
        for (size_t b = 0; b < pruned.size(); ++b) cost += double(w[pruned[a]]) * solved[a][b] * w[pruned[b]];
      }
      best = std::min(best, cost);
    }
    std::vector<float> values(w, w + kColumns);
    for (int64_t begin = 0; begin < kColumns; begin += 4) {
      std::array<int64_t, 4> order = {begin, begin + 1, begin + 2, begin + 3};
      std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return std::abs(w[a]) < std::abs(w[b]); });
      values[size_t(order[0])] = values[size_t(order[1])] = 0.0f;
    }
    const at::Tensor weight_row = weight.narrow(0, row, 1);
    EXPECT_GE(trace_error(weight_row, found.weight_OI.narrow(0, row, 1), hessian), best * (1.0 - 1e-4));
    total_of_best += best;
    total_of_magnitudes += plain_trace_error(weight_row, values, hessian);
  }
  EXPECT_LT(found.trace_error - total_of_best, 0.3 * (total_of_magnitudes - total_of_best));
}

TEST(SparseGpt, PatternsAndRatiosAreMetExactly) {
  const int64_t num_out = 30, num_in = 120;
  const at::Tensor weight = random_weight(num_out, num_in, 10), hessian = random_hessian(num_in, 11);
  const GptqFactor factor = factorize(hessian, in_order());
  for (const auto& [num_kept, group] : {std::array<int64_t, 2>{2, 4}, {4, 8}, {1, 4}, {2, 3}, {1, 120}, {119, 120}}) {
    const at::Tensor kept = sparsegpt(weight, factor, n_of_m(num_kept, group), 25).kept_OI;
    EXPECT_TRUE(kept.reshape({-1, group}).sum(1).eq(num_kept).all().item<bool>()) << num_kept << ":" << group;
  }
  for (const double ratio : {0.001, 0.3, 0.5, 0.77, 0.999, 1.0}) {
    const SparseGptResult found = sparsegpt(weight, factor, share(ratio), 50);
    int64_t expected = 0;
    for (const int64_t width : {50, 50, 20}) expected += std::llround(ratio * double(num_out * width));
    EXPECT_EQ(num_out * num_in - found.kept_OI.sum().item<int64_t>(), expected);
    EXPECT_EQ(found.weight_OI.eq(0.0).sum().item<int64_t>(), expected);
  }
  const SparseGptResult all = sparsegpt(weight, factor, share(0.0));
  EXPECT_TRUE(all.weight_OI.equal(weight));
  EXPECT_TRUE(all.kept_OI.all().item<bool>());
  EXPECT_EQ(all.trace_error, 0.0);
  EXPECT_NEAR(sparsegpt(weight, factor, share(1.0)).relative_error, 1.0, 1e-12);
}

TEST(SparseGpt, TiesKeepTheEarlierColumnAndRow) {
  const at::Tensor weight = at::ones({3, 8}, at::kFloat), identity = at::diag(at::ones({8}, at::kFloat));
  const GptqFactor factor = factorize(identity, in_order());
  const at::Tensor kept = sparsegpt(weight, factor, n_of_m(2, 4)).kept_OI;
  for (int64_t i = 0; i < 24; ++i) EXPECT_EQ(kept.const_data_ptr<bool>()[i], i % 4 < 2);
  const at::Tensor of_all = sparsegpt(weight, factor, share(0.5)).kept_OI;
  for (int64_t i = 0; i < 24; ++i) EXPECT_EQ(of_all.const_data_ptr<bool>()[i], i < 12);
}

TEST(SparseGpt, AGivenMaskIsTheChosenOneAgain) {
  const at::Tensor weight = random_weight(100, 64, 12), hessian = random_hessian(64, 13);
  const GptqFactor factor = factorize(hessian, in_order());
  for (const ColumnMask& mask : {n_of_m(2, 4), share(0.6)}) {
    const SparseGptResult chosen = sparsegpt(weight, factor, mask);
    const SparseGptResult given = sparsegpt(weight, factor, {.kept_OI = chosen.kept_OI, .pattern = {}, .ratio = 0.0});
    EXPECT_TRUE(given.weight_OI.equal(chosen.weight_OI));
    EXPECT_TRUE(given.kept_OI.equal(chosen.kept_OI));
  }
}

TEST(SparseGpt, DeadColumnsArePrunedFirst) {
  at::Tensor weight = random_weight(12, 32, 14), hessian = random_hessian(32, 15);
  for (const int64_t i : {1, 2, 13}) {
    hessian.select(0, i).zero_();
    hessian.select(1, i).zero_();
    weight.select(1, i).mul_(100.0);
  }
  for (const ColumnMask& mask : {n_of_m(2, 4), share(0.5)}) {
    const SparseGptResult found = sparsegpt(weight, factorize(hessian, in_order()), mask);
    for (const int64_t i : {1, 2, 13}) EXPECT_FALSE(found.kept_OI.select(1, i).any().item<bool>());
    EXPECT_EQ(found.events.num_dead_columns, 3);
  }
}

TEST(SparseGpt, WithoutAFactorItPrunesByTheDiagonal) {
  // No damping up to 1 makes this matrix positive definite, because 1 - 2.5 < -1.
  at::Tensor hessian = at::diag(at::arange(1, 5, at::kFloat)).contiguous();
  hessian.mutable_data_ptr<float>()[1] = hessian.mutable_data_ptr<float>()[4] = 9.0f;
  const at::Tensor weight = random_weight(20, 4, 16);
  const SparseGptResult found = sparsegpt(weight, factorize(hessian, in_order()), n_of_m(2, 4));
  EXPECT_TRUE(found.events.fell_back_to_rounding);
  for (int64_t row = 0; row < 20; ++row) {
    std::array<double, 4> scores;
    for (int64_t i = 0; i < 4; ++i) scores[size_t(i)] = std::pow(floats(weight)[row * 4 + i], 2.0) * double(i + 1);
    std::array<double, 4> sorted = scores;
    std::sort(sorted.begin(), sorted.end());
    for (int64_t i = 0; i < 4; ++i) {
      const bool kept = scores[size_t(i)] >= sorted[2];
      EXPECT_EQ(found.kept_OI.const_data_ptr<bool>()[row * 4 + i], kept);
      EXPECT_EQ(floats(found.weight_OI)[row * 4 + i], kept ? floats(weight)[row * 4 + i] : 0.0f);
    }
  }
}

TEST(SparseGpt, JointlyPrunesAndRoundsAsItsFloat64TwinDoes) {
  int64_t num_compared = 0, num_left = 0;
  for (const auto& [num_out, num_in, block_size] : {Shape{20, 48, 128}, Shape{97, 64, 16}, Shape{9, 160, 128}}) {
    const at::Tensor weight = random_weight(num_out, num_in, 17), hessian = random_hessian(num_in, 18);
    for (const ColumnMask& mask :
         {n_of_m(2, 4), n_of_m(4, 8), n_of_m(1, 4), share(0.5), within_some(n_of_m(2, 4), num_out, num_in),
          within_some(share(0.5), num_out, num_in)}) {
      for (const int bits : {2, 3, 4, 8}) {
        for (const bool symmetric : {true, false}) {
          for (const ActOrder act_order : {ActOrder::none, ActOrder::static_groups, ActOrder::group}) {
            GptqOptions options = in_order(act_order);
            options.grid = {.bits = bits, .group_size = 16, .symmetric = symmetric};
            options.block_size = block_size;
            const GptqFactor factor = factorize(hessian, options, std::max<int64_t>(mask.pattern.group, 1));
            const Matrix rows = elimination_rows(hessian, 0.01, factor.order_I);
            const GptqResult found = gptq(weight, factor, options, mask);
            validate(found.weight, "joint");
            const std::vector<float> values = dequantize(found.weight);
            for (size_t i = 0; i < values.size(); ++i) {
              ASSERT_TRUE(found.kept_OI.const_data_ptr<bool>()[i] || values[i] == 0.0f);
            }
            const Twin twin = TwinLoop(weight, rows, factor.order_I, &found.weight).run(mask, block_size);
            const TwinComparison comparison =
                compare(found.kept_OI, &found.weight, twin, factor.order_I, mask.ratio > 0.0);
            EXPECT_EQ(comparison.num_wrong, 0) << bits << " bits, order " << int(act_order);
            num_compared += comparison.num_compared;
            num_left += comparison.num_left_at_ties;
          }
        }
      }
    }
  }
  EXPECT_LE(num_left * 20, num_compared) << "so many ties that the comparison says little";
}

TEST(SparseGpt, AnyNumberOfThreadsGivesTheSameBits) {
  const int threads = omp_get_max_threads();
  const at::Tensor weight = random_weight(230, 320, 19), hessian = random_hessian(320, 20);
  const GptqFactor factor = factorize(hessian, in_order());
  for (const ColumnMask& mask : {n_of_m(2, 4), share(0.5)}) {
    omp_set_num_threads(1);
    const SparseGptResult expected = sparsegpt(weight, factor, mask);
    for (const int num_threads : {2, 3}) {
      omp_set_num_threads(num_threads);
      const SparseGptResult found = sparsegpt(weight, factor, mask);
      EXPECT_TRUE(found.weight_OI.equal(expected.weight_OI));
      EXPECT_TRUE(found.kept_OI.equal(expected.kept_OI));
      EXPECT_EQ(found.trace_error, expected.trace_error);
    }
  }
  omp_set_num_threads(threads);
}

TEST(SparseGpt, WhatDoesNotFitIsRefused) {
  const at::Tensor weight = random_weight(4, 32, 21), hessian = random_hessian(32, 22);
  const GptqFactor factor = factorize(hessian, in_order());
  EXPECT_THROW(sparsegpt(random_weight(4, 16, 21), factor, n_of_m(2, 4)), std::invalid_argument);
  EXPECT_THROW(sparsegpt(weight, factor, n_of_m(2, 4), 0), std::invalid_argument);
  EXPECT_THROW(sparsegpt(weight, factor, n_of_m(2, 5)), std::invalid_argument);
  EXPECT_THROW(sparsegpt(weight, factorize(hessian, in_order(ActOrder::static_groups)), n_of_m(2, 4)),
               std::invalid_argument);
  at::Tensor bad = weight.clone();
  bad.mutable_data_ptr<float>()[7] = NAN;
  EXPECT_THROW(sparsegpt(bad, factor, n_of_m(2, 4)), std::invalid_argument);
}

}  // namespace
}  // namespace pare
