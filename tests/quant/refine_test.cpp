#include "quant/refine.h"

#include <ATen/ops/diag.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_solve.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "quant/gptq.h"
#include "quant/rtn.h"
#include "quant/trace_descent.h"
#include "tests/quant/random_layer.h"

namespace pare {
using namespace quant;
using namespace runtime;
namespace {

// This many sweeps bring every row of these tests to rest.
constexpr int kToRest = 60;

GridOptions grid_for(int bits, int64_t group_size, bool symmetric, DType scale_dtype = DType::BF16) {
  return {bits, group_size, symmetric, ScaleSearch::hessian_diagonal, scale_dtype};
}

QuantizedWeight rounded(const at::Tensor& weight, const at::Tensor& hessian, const GridOptions& grid) {
  return rtn(weight, hessian.diagonal().contiguous(), grid);
}

// Returns E_r H E_r^T by plain loops in float64, for a row of values.
double row_trace(const at::Tensor& weight, const at::Tensor& hessian, int64_t row, const std::vector<double>& values) {
  const int64_t n = weight.size(1);
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      sum += (double(floats(weight)[row * n + i]) - values[i]) * floats(hessian)[i * n + j] *
             (double(floats(weight)[row * n + j]) - values[j]);
    }
  }
  return sum;
}

std::vector<double> row_values(const QuantizedWeight& weight, int64_t row) {
  std::vector<double> values(weight.num_in);
  for (int64_t i = 0; i < weight.num_in; ++i) {
    const int64_t group = weight.group(i);
    const uint8_t code = weight.codes_OI[row * weight.num_in + i];
    const double steps = weight.code->is_integer() ? code - weight.zero(row, group) : weight.code->value(code);
    values[i] = double(weight.scales_OG[row * weight.num_groups() + group]) / weight.tensor_scale * steps;
  }
  return values;
}

double row_trace(const at::Tensor& weight, const at::Tensor& hessian, int64_t row, const QuantizedWeight& found) {
  return row_trace(weight, hessian, row, row_values(found, row));
}

// Returns the next number of the scale's type, up or down.
float neighbour_of(float scale, DType dtype, int step) {
  if (dtype == DType::F8_E8M0) return step > 0 ? 2.0f * scale : scale / 2.0f;
  if (dtype == DType::F8_E4M3) return fp8_to_float(static_cast<uint8_t>(float_to_fp8(scale) + step));
  return bf16_to_float(static_cast<uint16_t>(float_to_bf16(scale) + step));
}

// Returns the largest relative fall of a row's trace that one change of one code, zero or scale would bring. A scale
// changes to the next number of its type, up or down.
double largest_fall(const at::Tensor& weight, const at::Tensor& hessian, int64_t row, const QuantizedWeight& found,
                    bool grids) {
  const double trace = row_trace(weight, hessian, row, found);
  double least = trace;
  const auto consider = [&](const QuantizedWeight& changed) {
    least = std::min(least, row_trace(weight, hessian, row, changed));
  };
  for (int64_t i = row * found.num_in; i < (row + 1) * found.num_in; ++i) {
    for (int code = 0; code < 1 << found.bits; ++code) {
      QuantizedWeight changed = found;
      changed.codes_OI[i] = static_cast<uint8_t>(code);
      consider(changed);
    }
  }
  if (grids) {
    for (int64_t g = row * found.num_groups(); g < (row + 1) * found.num_groups(); ++g) {
      for (const int step : {-1, 1}) {
        QuantizedWeight changed = found;
        changed.scales_OG[g] = neighbour_of(found.scales_OG[g], found.scale_dtype, step);
        if (!(changed.scales_OG[g] > 0.0f)) continue;  // beyond the type's range
        consider(changed);
        if (found.symmetric) continue;
        changed = found;
        const int zero = std::clamp(found.zeros_OG[g] + step, 0, (1 << found.bits) - 1);
        changed.zeros_OG[g] = static_cast<uint8_t>(zero);
        consider(changed);
      }
    }
  }
  return trace > 0.0 ? (trace - least) / trace : 0.0;
}

// float32 decides about a change by the sign of a difference. Its terms are as large as the change's own quadratic
// term, a few times the trace of these short rows. It errs by 2^-24 of them, with a few roundings.
constexpr double kFallTolerance = 2e-6;

TEST(Refine, ComesToRestWhereNoSingleChangeHelps) {
  struct Case {
    int64_t num_in, group_size;
    int bits;
  };
  for (const auto& [num_in, group_size, bits] :
       {Case{5, kPerChannel, 2}, Case{4, 2, 2}, Case{12, 4, 3}, Case{24, 8, 4}, Case{150, kPerChannel, 2}}) {
    const int64_t num_out = num_in > 100 ? 1 : 12;
    const at::Tensor weight = random_weight(num_out, num_in, 1), hessian = random_hessian(num_in, 2);
    for (const bool symmetric : {true, false}) {
      for (const bool grids : {true, false}) {
        const RefineResult result = refine(weight, rounded(weight, hessian, grid_for(bits, group_size, symmetric)),
                                           hessian, {.sweeps = kToRest, .damping = 0.0, .grids = grids});
        validate(result.weight, "refined");
        for (int64_t row = 0; row < num_out; ++row) {
          EXPECT_LE(largest_fall(weight, hessian, row, result.weight, grids), kFallTolerance)
              << num_in << " columns, row " << row << (grids ? ", grids" : "");
        }
      }
    }
  }
}

TEST(Refine, TablesComeToRestWhereNoSingleChangeHelps) {
  const at::Tensor weight = random_weight(12, 32, 41), hessian = random_hessian(32, 42);
  for (const WeightCode* code : {&kNvfp4Code, &kMxfp4Code, &kNf4Code}) {
    GridOptions grid = grid_for(4, code->block == 0 ? 8 : code->block, true);
    grid.code = code;
    grid.scale_dtype = code->scale_dtype.value_or(DType::BF16);
    const QuantizedWeight start = rounded(weight, hessian, grid);
    for (const bool grids : {true, false}) {
      const RefineResult result = refine(weight, start, hessian, {.sweeps = kToRest, .damping = 0.0, .grids = grids});
      validate(result.weight, "refined");
      EXPECT_EQ(result.weight.tensor_scale, start.tensor_scale);
      if (!grids) {
        EXPECT_EQ(result.weight.scales_OG, start.scales_OG);
      }
      EXPECT_LT(result.trace_after, result.trace_before) << code->name;
      for (int64_t row = 0; row < 12; ++row) {
        EXPECT_LE(largest_fall(weight, hessian, row, result.weight, grids), kFallTolerance)
            << code->name << ", row " << row << (grids ? ", grids" : "");
      }
    }
  }
}

TEST(Refine, TheSearchForAFallFindsPlantedFaults) {
  const at::Tensor weight = random_weight(4, 12, 3), hessian = random_hessian(12, 4);
  const RefineResult result =
      refine(weight, rounded(weight, hessian, grid_for(3, 4, false)), hessian, {.sweeps = kToRest, .damping = 0.0});
  for (const int64_t i : {0, 17, 47}) {
    QuantizedWeight faulty = result.weight;
    faulty.codes_OI[i] ^= 1;
    EXPECT_GT(largest_fall(weight, hessian, i / 12, faulty, false), 10 * kFallTolerance);
  }
  QuantizedWeight faulty = result.weight;
  faulty.scales_OG[0] *= 1.0625f;
  EXPECT_GT(largest_fall(weight, hessian, 0, faulty, true), 10 * kFallTolerance);
}

TEST(Refine, LiesBetweenTheBestPossibleCodesAndItsStart) {
  constexpr int64_t kRows = 40, kColumns = 5;
  const at::Tensor weight = random_weight(kRows, kColumns, 5), hessian = random_hessian(kColumns, 6);
  const QuantizedWeight start = rounded(weight, hessian, grid_for(2, kPerChannel, true));
  const RefineResult result = refine(weight, start, hessian, {.sweeps = kToRest, .damping = 0.0, .grids = false});
  double best_total = 0.0;
  for (int64_t row = 0; row < kRows; ++row) {
    double best = std::numeric_limits<double>::infinity();
    for (int combination = 0; combination < 1 << (2 * kColumns); ++combination) {
      std::vector<double> values(kColumns);
      for (int64_t i = 0; i < kColumns; ++i) values[i] = start.scales_OG[row] * ((combination >> (2 * i) & 3) - 2);
      best = std::min(best, row_trace(weight, hessian, row, values));
    }
    EXPECT_GE(row_trace(weight, hessian, row, result.weight), best * (1.0 - 1e-12));
    best_total += best;
  }
  EXPECT_LT(result.trace_after - best_total, 0.5 * (result.trace_before - best_total));
}

TEST(Refine, NoRowBecomesWorse) {
  const at::Tensor weight = random_weight(110, 64, 7), hessian = random_hessian(64, 8);
  for (const int bits : {2, 3, 4, 8}) {
    for (const bool symmetric : {true, false}) {
      for (const int64_t group_size : {int64_t{16}, kPerChannel}) {
        const GridOptions grid = grid_for(bits, group_size, symmetric);
        for (const ActOrder act_order : {ActOrder::static_groups, ActOrder::group}) {
          const GptqResult start = gptq(weight, hessian, {.grid = grid, .act_order = act_order});
          for (const int sweeps : {1, 3}) {
            const RefineResult result = refine(weight, start.weight, hessian, {.sweeps = sweeps, .damping = 0.0});
            validate(result.weight, "refined");
            double before = 0.0, after = 0.0;
            for (int64_t row = 0; row < 110; ++row) {
              const double was = row_trace(weight, hessian, row, start.weight);
              const double is = row_trace(weight, hessian, row, result.weight);
              // Values are rounded to float32 before they are subtracted, which moves a trace by 2^-23 |W| / |E|.
              EXPECT_LE(is, was * (1.0 + 1e-4));
              before += was;
              after += is;
            }
            EXPECT_NEAR(result.trace_before, before, 1e-4 * before);
            EXPECT_NEAR(result.trace_after, after, 1e-4 * after);
            EXPECT_LT(after, 0.97 * before) << bits << " bits, " << sweeps << " sweeps";
            EXPECT_EQ(result.weight.group_of_I, start.weight.group_of_I);
          }
        }
      }
    }
  }
}

TEST(Refine, DampingIsAddedToTheHessianThatIsMinimized) {
  const int64_t num_in = 48;
  const at::Tensor weight = random_weight(20, num_in, 28), hessian = random_hessian(num_in, 29);
  const QuantizedWeight start = rounded(weight, hessian, grid_for(3, 16, false));
  const double added = 0.1 * hessian.diagonal().to(at::kDouble).mean().item<double>();
  const at::Tensor damped = hessian.clone();
  damped.diagonal().add_(added);
  const RefineResult found = refine(weight, start, hessian, {.sweeps = 2, .damping = 0.1});
  const RefineResult expected = refine(weight, start, damped, {.sweeps = 2, .damping = 0.0});
  int num_taken = 0;
  for (int64_t row = 0; row < 20; ++row) {
    const double was = row_trace(weight, hessian, row, start);
    const double is = row_trace(weight, hessian, row, expected.weight);
    const std::vector<double> values = row_values(is <= was ? expected.weight : start, row);
    EXPECT_EQ(row_values(found.weight, row), values);
    num_taken += is <= was;
  }
  EXPECT_GT(num_taken, 10);
  EXPECT_LT(found.trace_after, found.trace_before);
  EXPECT_NEAR(found.trace_after, plain_trace_error(weight, dequantize(found.weight), hessian),
              1e-4 * found.trace_after);
  // This is GPTQ's result with little damping. With much more damping the plain trace would rise, which no row allows.
  const GptqResult fitted = gptq(weight, hessian, {.grid = grid_for(3, 16, false), .damping = 0.001});
  const RefineResult kept = refine(weight, fitted.weight, hessian, {.damping = 1.0});
  for (int64_t row = 0; row < 20; ++row) {
    EXPECT_LE(row_trace(weight, hessian, row, kept.weight),
              row_trace(weight, hessian, row, fitted.weight) * (1.0 + 1e-4));
  }
  EXPECT_THROW(refine(weight, start, hessian, {.damping = -0.1}), std::invalid_argument);
  EXPECT_THROW(refine(weight, start, hessian, {.damping = NAN}), std::invalid_argument);
}

TEST(Refine, RoundingIsAFixedPointWhenHessianIsIdentity) {
  const at::Tensor weight = random_weight(20, 96, 9), identity = at::eye(96, at::kFloat);
  for (const bool symmetric : {true, false}) {
    const QuantizedWeight start = rounded(weight, identity, grid_for(4, 32, symmetric));
    const RefineResult result = refine(weight, start, identity, {.sweeps = 3, .damping = 0.0, .grids = false});
    EXPECT_EQ(result.weight.codes_OI, start.codes_OI);
    EXPECT_EQ(result.weight.scales_OG, start.scales_OG);
    EXPECT_EQ(result.trace_after, result.trace_before);
  }
}

TEST(Refine, ScalesComeToTheMeanRatioWhenHessianIsDiagonal) {
  // With H diagonal, a group's least-squares scale for its codes is sum h w c / sum h c c.
  const at::Tensor weight = random_weight(10, 64, 10);
  const at::Tensor hessian = at::diag(random_hessian(64, 11).diagonal());
  const QuantizedWeight found = refine(weight, rounded(weight, hessian, grid_for(3, 16, true, DType::F32)), hessian,
                                       {.sweeps = kToRest, .damping = 0.0})
                                    .weight;
  for (int64_t g = 0; g < 40; ++g) {
    double numerator = 0.0, denominator = 0.0;
    for (int64_t i = g * 16; i < (g + 1) * 16; ++i) {
      const double h = floats(hessian)[i % 64 * 65], c = found.codes_OI[i] - 4;
      numerator += h * floats(weight)[i] * c;
      denominator += h * c * c;
    }
    EXPECT_NEAR(found.scales_OG[g], numerator / denominator, 1e-5 * found.scales_OG[g]);
  }
}

TEST(Refine, ScalesComeToTheLeastSquaresSolutionOfTheirRow) {
  // Solves (C^T H C) s = C^T H w for all groups of a row at once, densely and in float64.
  const int64_t num_in = 64, width = 16, num_groups = 4, num_out = 10;
  const at::Tensor weight = random_weight(num_out, num_in, 12), hessian = random_hessian(num_in, 13);
  const QuantizedWeight found = refine(weight, rounded(weight, hessian, grid_for(3, width, false, DType::F32)), hessian,
                                       {.sweeps = kMaxRefineSweeps, .damping = 0.0})
                                    .weight;
  const at::Tensor h = hessian.to(at::kDouble);
  for (int64_t row = 0; row < num_out; ++row) {
    at::Tensor steps = at::full({num_in, num_groups}, 0.0, at::kDouble);
    for (int64_t i = 0; i < num_in; ++i) {
      const int64_t g = i / width;
      steps.mutable_data_ptr<double>()[i * num_groups + g] = int(found.codes_OI[row * num_in + i]) - found.zero(row, g);
    }
    const at::Tensor normal = steps.t().mm(h).mm(steps);
    const at::Tensor right = steps.t().mm(h).mv(weight.select(0, row).to(at::kDouble));
    const at::Tensor scales = at::linalg_solve(normal, right);
    for (int64_t g = 0; g < num_groups; ++g) {
      const double expected = scales.const_data_ptr<double>()[g];
      EXPECT_NEAR(found.scales_OG[row * num_groups + g], expected, 1e-4 * std::abs(expected)) << row;
    }
  }
}

// Does the sweep of refine.cpp by its formulas: one row at a time, in float64, with G computed afresh for every single
// change. A pruned place has the code of its zero and does not move. If kept is undefined, no place is pruned.
void twin_sweep(const at::Tensor& weight, const at::Tensor& hessian, const at::Tensor& kept, int64_t row,
                QuantizedWeight& found) {
  const int64_t n = weight.size(1), num_groups = found.num_groups();
  const auto is_kept = [&](int64_t i) { return !kept.defined() || kept.const_data_ptr<bool>()[row * n + i]; };
  const double levels = (1 << found.bits) - 1;
  const auto gradient = [&] {
    const std::vector<double> values = row_values(found, row);
    std::vector<double> g(n, 0.0);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        g[i] += double(floats(hessian)[i * n + j]) * (double(floats(weight)[row * n + j]) - values[j]);
      }
    }
    return g;
  };
  const auto slope_and_curvature = [&](const std::vector<double>& direction) {
    const std::vector<double> g = gradient();
    std::pair<double, double> sums{0.0, 0.0};
    for (int64_t i = 0; i < n; ++i) {
      sums.first += direction[i] * g[i];
      for (int64_t j = 0; j < n; ++j) sums.second += direction[i] * floats(hessian)[i * n + j] * direction[j];
    }
    return sums;
  };
  const auto falls = [](double amount, double curvature, double slope) {
    return amount * (amount * curvature - 2.0 * slope) < 0.0;
  };
  for (int64_t group = 0; group < num_groups; ++group) {
    float& scale = found.scales_OG[row * num_groups + group];
    std::vector<double> direction(n, 0.0);
    for (int64_t i = 0; i < n; ++i) {
      if (found.group(i) == group) direction[i] = int(found.codes_OI[row * n + i]) - found.zero(row, group);
    }
    if (const auto [slope, curvature] = slope_and_curvature(direction); curvature > 0.0) {
      const float stepped = round_to(float(scale + slope / curvature), found.scale_dtype);
      if (stepped > 0.0f && falls(double(stepped) - scale, curvature, slope)) scale = stepped;
    }
    if (!found.symmetric) {
      for (int64_t i = 0; i < n; ++i) direction[i] = found.group(i) == group && is_kept(i);
      const auto [slope, curvature] = slope_and_curvature(direction);
      uint8_t& zero = found.zeros_OG[row * num_groups + group];
      const double moved = std::clamp(std::nearbyint(zero - slope / (curvature * scale)), 0.0, levels);
      if (falls((zero - moved) * scale, curvature, slope)) zero = uint8_t(moved);
      for (int64_t i = 0; i < n; ++i) {
        if (found.group(i) == group && !is_kept(i)) found.codes_OI[row * n + i] = zero;
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      if (found.group(i) != group || !is_kept(i)) continue;
      const double slope = gradient()[i], curvature = floats(hessian)[i * n + i];
      uint8_t& code = found.codes_OI[row * n + i];
      const double moved = std::clamp(code + std::nearbyint(slope / (curvature * scale)), 0.0, levels);
      if (falls((moved - code) * scale, curvature, slope)) code = uint8_t(moved);
    }
  }
}

void expect_the_changes_of_the_twin(bool masked) {
  struct Case {
    int64_t num_out, num_in, group_size;
    ActOrder act_order;
  };
  int64_t num_rows = 0, num_different = 0;
  for (const auto& [num_out, num_in, group_size, act_order] :
       {Case{30, 48, 16, ActOrder::group}, Case{30, 48, 16, ActOrder::none}, Case{2, 270, kPerChannel, ActOrder::none},
        Case{97, 20, kPerChannel, ActOrder::none}, Case{3, 140, 70, ActOrder::static_groups}}) {
    const at::Tensor weight = random_weight(num_out, num_in, 14), hessian = random_hessian(num_in, 15);
    // The mask keeps about half.
    const at::Tensor kept = masked ? random_weight(num_out, num_in, 30).abs().gt(0.03) : at::Tensor();
    for (const int bits : {2, 4}) {
      for (const bool symmetric : {true, false}) {
        const GptqOptions options{.grid = grid_for(bits, group_size, symmetric), .act_order = act_order};
        const QuantizedWeight start =
            gptq(weight, factorize(hessian, options), options, {.kept_OI = kept, .pattern = {}, .ratio = 0.0}).weight;
        QuantizedWeight expected = start;
        for (int64_t row = 0; row < num_out; ++row) twin_sweep(weight, hessian, kept, row, expected);
        const QuantizedWeight found = refine(weight, start, hessian, {.sweeps = 1, .damping = 0.0}, kept).weight;
        const int64_t groups = found.num_groups();
        for (int64_t row = 0; row < num_out; ++row) {
          const auto same = [&](const auto& a, const auto& b, int64_t width) {
            return a.empty() ||
                   std::equal(a.begin() + row * width, a.begin() + (row + 1) * width, b.begin() + row * width);
          };
          num_rows += 1;
          num_different +=
              !(same(found.codes_OI, expected.codes_OI, num_in) && same(found.scales_OG, expected.scales_OG, groups) &&
                same(found.zeros_OG, expected.zeros_OG, groups));
        }
      }
    }
  }
  // Rows part at ties between codes or scales that are closer than float32 sees. That happens with a probability of
  // about 1e-5 per decision, and the longest rows make 270 decisions.
  EXPECT_LE(num_different * 50, num_rows) << num_different << " of " << num_rows;
}

TEST(Refine, ASweepMakesTheChangesOfItsFloat64Twin) {
  expect_the_changes_of_the_twin(/*masked=*/false);
}

TEST(Refine, ASweepWithAMaskMakesTheChangesOfItsFloat64Twin) {
  expect_the_changes_of_the_twin(/*masked=*/true);
}

TEST(Refine, ColumnsOfAGroupIndexAreAPermutation) {
  const at::Tensor weight = random_weight(30, 96, 16), hessian = random_hessian(96, 17);
  const GptqOptions options{.grid = grid_for(3, 32, false), .act_order = ActOrder::group};
  const GptqResult start = gptq(weight, hessian, options);
  std::vector<int64_t> order(96);
  for (int64_t i = 0; i < 96; ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return start.weight.group(a) < start.weight.group(b); });
  QuantizedWeight sorted = start.weight;
  sorted.group_of_I.clear();
  for (int64_t i = 0; i < 30 * 96; ++i) sorted.codes_OI[i] = start.weight.codes_OI[i / 96 * 96 + order[i % 96]];
  const at::Tensor index = at::tensor(order);
  const RefineResult found = refine(weight, start.weight, hessian, {.sweeps = 2, .damping = 0.0});
  const RefineResult expected =
      refine(weight.index_select(1, index), sorted, hessian.index_select(0, index).index_select(1, index),
             {.sweeps = 2, .damping = 0.0});
  EXPECT_EQ(found.weight.scales_OG, expected.weight.scales_OG);
  EXPECT_EQ(found.weight.zeros_OG, expected.weight.zeros_OG);
  EXPECT_EQ(found.trace_after, expected.trace_after);
  for (int64_t i = 0; i < 30 * 96; ++i) {
    ASSERT_EQ(found.weight.codes_OI[i / 96 * 96 + order[i % 96]], expected.weight.codes_OI[i]);
  }
}

TEST(Refine, DeadColumnsAndEmptyRangesStayAsTheyAre) {
  at::Tensor weight = random_weight(6, 32, 18), hessian = random_hessian(32, 19);
  for (const int64_t i : {0, 13, 31}) {
    hessian.select(0, i).zero_();
    hessian.select(1, i).zero_();
  }
  weight.narrow(1, 16, 16).select(0, 2).zero_();
  const QuantizedWeight start = rounded(weight, hessian, grid_for(4, 16, true));
  const QuantizedWeight found = refine(weight, start, hessian, {.sweeps = 4, .damping = 0.0}).weight;
  EXPECT_NE(found.codes_OI, start.codes_OI);
  for (int64_t row = 0; row < 6; ++row) {
    for (const int64_t i : {0, 13, 31}) EXPECT_EQ(found.codes_OI[row * 32 + i], start.codes_OI[row * 32 + i]);
  }
  QuantizedWeight without_range = start;
  without_range.scales_OG[3] = 0.0f;  // another tool may store a group of zeros so
  validate(refine(weight, without_range, hessian, {.sweeps = 4, .damping = 0.0}).weight, "refined");
  const at::Tensor dead = at::full({32, 32}, 0.0f);
  EXPECT_EQ(refine(weight, start, dead, {.sweeps = 2}).weight.codes_OI, start.codes_OI);
}

TEST(Refine, ScalesStayInTheirTypeAndAboveItsSmallest) {
  at::Tensor weight = random_weight(20, 64, 20), hessian = random_hessian(64, 21);
  weight.narrow(0, 0, 10).mul_(1e-6);
  for (const DType dtype : {DType::F16, DType::BF16, DType::F32}) {
    const QuantizedWeight start = rounded(weight, hessian, grid_for(2, 16, true, dtype));
    const QuantizedWeight found = refine(weight, start, hessian, {.sweeps = 4, .damping = 0.0}).weight;
    EXPECT_NE(found.scales_OG, start.scales_OG);
    for (const float scale : found.scales_OG) {
      EXPECT_EQ(round_to(scale, dtype), scale);
      EXPECT_GE(scale, smallest_scale(dtype));
    }
  }
}

TEST(Refine, NoSweepAndNoGridsChangeNothingTheyShouldNot) {
  const at::Tensor weight = random_weight(8, 32, 22), hessian = random_hessian(32, 23);
  const QuantizedWeight start = rounded(weight, hessian, grid_for(3, 16, false));
  const RefineResult none = refine(weight, start, hessian, {.sweeps = 0, .damping = 0.0});
  EXPECT_EQ(none.weight.codes_OI, start.codes_OI);
  EXPECT_EQ(none.trace_after, none.trace_before);
  const RefineResult fixed = refine(weight, start, hessian, {.sweeps = 3, .damping = 0.0, .grids = false});
  EXPECT_NE(fixed.weight.codes_OI, start.codes_OI);
  EXPECT_EQ(fixed.weight.scales_OG, start.scales_OG);
  EXPECT_EQ(fixed.weight.zeros_OG, start.zeros_OG);
}

TEST(Refine, WhatDoesNotFitIsRefused) {
  const at::Tensor weight = random_weight(4, 32, 24), hessian = random_hessian(32, 25);
  const QuantizedWeight start = rounded(weight, hessian, grid_for(4, 16, true));
  EXPECT_THROW(refine(random_weight(5, 32, 24), start, hessian, {}), std::invalid_argument);
  EXPECT_THROW(refine(weight, start, random_hessian(16, 25), {}), std::invalid_argument);
  EXPECT_THROW(refine(weight, start, hessian, {.sweeps = -1}), std::invalid_argument);
  EXPECT_THROW(refine(weight, start, hessian, {.sweeps = kMaxRefineSweeps + 1}), std::invalid_argument);
  at::Tensor bad = weight.clone();
  bad.mutable_data_ptr<float>()[40] = NAN;
  EXPECT_THROW(refine(bad, start, hessian, {}), std::invalid_argument);
  QuantizedWeight broken = start;
  broken.scales_OG[3] = NAN;
  EXPECT_THROW(refine(weight, broken, hessian, {}), std::runtime_error);
}

// The oracle of a bound is the same sum in float64. Columns of H that nearly cancel make float32 err as much as it can.
TEST(Refine, TracesInFloat32StayWithinTheirBounds) {
  for (const int64_t num_in : {1, 40, 128, 300, 700}) {
    const at::Tensor hessian = random_hessian(num_in, 51);
    const at::Tensor errors_IR = random_weight(num_in, 24, 52);
    for (int64_t i = 0; i + 1 < num_in; i += 2) {  // rows 0 to 11 cancel
      errors_IR.narrow(1, 0, 12).select(0, i + 1).copy_(errors_IR.narrow(1, 0, 12).select(0, i).neg());
    }
    std::vector<double> products_IR(static_cast<size_t>(num_in * 24), 0.0);
    add_product(hessian, errors_IR, products_IR);
    const std::vector<double> bounds_R = trace_bounds(errors_IR, row_norms(hessian));
    const std::vector<double> exact_R = row_traces(errors_IR, hessian, 0.0).plain_R;
    for (int64_t r = 0; r < 24; ++r) {
      double found = 0.0, sizes = 0.0;
      for (int64_t i = 0; i < num_in; ++i) {
        found += floats(errors_IR)[i * 24 + r] * products_IR[static_cast<size_t>(i * 24 + r)];
        for (int64_t j = 0; j < num_in; ++j) {
          sizes += std::abs(double(floats(errors_IR)[i * 24 + r]) * floats(hessian)[i * num_in + j] *
                            floats(errors_IR)[j * 24 + r]);
        }
      }
      EXPECT_LE(std::abs(found - exact_R[r]), bounds_R[r]) << num_in << " columns, row " << r;
      const double least = std::min<double>(kPieceColumns, double(num_in)) * 0x1p-24 * sizes;
      EXPECT_GE(bounds_R[r], least) << num_in << " columns, row " << r;
      EXPECT_LE(bounds_R[r], 12.0 * least)
          << num_in << " columns, row " << r;  // by Cauchy's inequality, at most sqrt(128)
    }
  }
}

// A fall that float32 cannot tell from its rounding is decided in float64.
TEST(Refine, FallsBelowFloat32AreTaken) {
  const int64_t num_in = 256, num_out = 8;
  const at::Tensor weight = random_weight(num_out, num_in, 61);
  at::Tensor hessian = random_hessian(num_in, 62);
  // The last input hardly ever fires. Its codes are all that can change.
  hessian.select(0, num_in - 1).mul_(3e-5);
  hessian.select(1, num_in - 1).mul_(3e-5);
  const GridOptions grid = grid_for(2, 64, true);
  const QuantizedWeight rest =
      refine(weight, rounded(weight, hessian, grid), hessian, {.sweeps = kToRest, .damping = 0.0, .grids = false})
          .weight;
  QuantizedWeight start = rest;
  int num_moved = 0;
  for (int64_t row = 0; row < num_out; ++row) {
    uint8_t& code = start.codes_OI[row * num_in + num_in - 1];
    code = static_cast<uint8_t>(code < 2 ? code + 1 : code - 1);
  }
  const RefineResult found = refine(weight, start, hessian, {.sweeps = 1, .damping = 0.0, .grids = false});
  for (int64_t row = 0; row < num_out; ++row) {
    const double was = row_trace(weight, hessian, row, start), is = row_trace(weight, hessian, row, found.weight);
    EXPECT_LE(is, was) << row;
    num_moved += is < was;
  }
  EXPECT_GT(num_moved, 0);
}

TEST(Refine, OneHessianServesAllLayersOfAnInput) {
  const at::Tensor weight = random_weight(20, 96, 71), hessian = random_hessian(96, 72);
  const QuantizedWeight start = rounded(weight, hessian, grid_for(3, 32, false));
  const RefineOptions options{.sweeps = 2, .damping = 0.02};
  const DampedHessian shared = damped_hessian(hessian, 0.02);
  const RefineResult found = refine(weight, start, shared, options), alone = refine(weight, start, hessian, options);
  EXPECT_EQ(found.weight.codes_OI, alone.weight.codes_OI);
  EXPECT_EQ(found.trace_after, alone.trace_after);
  const double signal = plain_trace_error(weight, std::vector<float>(20 * 96, 0.0f), hessian);
  EXPECT_NEAR(found.signal, signal, 1e-5 * signal);
  EXPECT_THROW(refine(weight, start, shared, {.sweeps = 2, .damping = 0.03}), std::invalid_argument);
}

TEST(Refine, AnyNumberOfThreadsGivesTheSameBits) {
  const int threads = omp_get_max_threads();
  const at::Tensor weight = random_weight(230, 160, 26), hessian = random_hessian(160, 27);
  const QuantizedWeight start = rounded(weight, hessian, grid_for(4, 32, false));
  omp_set_num_threads(1);
  const RefineResult expected = refine(weight, start, hessian, {.sweeps = 2, .damping = 0.0});
  for (const int num_threads : {2, 3}) {
    omp_set_num_threads(num_threads);
    const RefineResult found = refine(weight, start, hessian, {.sweeps = 2, .damping = 0.0});
    EXPECT_EQ(found.weight.codes_OI, expected.weight.codes_OI);
    EXPECT_EQ(found.weight.scales_OG, expected.weight.scales_OG);
    EXPECT_EQ(found.weight.zeros_OG, expected.weight.zeros_OG);
    EXPECT_EQ(found.trace_after, expected.trace_after);
  }
  omp_set_num_threads(threads);
}

}  // namespace
}  // namespace pare
