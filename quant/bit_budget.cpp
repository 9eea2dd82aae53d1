#include "quant/bit_budget.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "quant/grid.h"
#include "runtime/format/bit_stream.h"
#include "runtime/system/interrupt.h"

namespace pare::quant {
namespace {

// A candidate worth considering: no other of its group is at most as large and at most as lossy.
struct Option {
  int64_t size_bytes;
  double loss;
  int candidate;  // its index in the group
};

void check(const BudgetGroup& group) {
  const size_t num_candidates = group.candidates.size();
  if (num_candidates == 0 || num_candidates > 255) {
    throw std::invalid_argument("budget: group '" + group.name + "' has " + std::to_string(num_candidates) +
                                " candidates; expected 1 to 255");
  }
  for (const BitCandidate& candidate : group.candidates) {
    if (candidate.size_bytes > 0 && std::isfinite(candidate.loss) && candidate.loss >= 0.0) continue;
    throw std::invalid_argument(
        "budget: group '" + group.name + "', " + std::to_string(candidate.bits) + " bits in groups of " +
        std::to_string(candidate.group_size) + ": size " + std::to_string(candidate.size_bytes) + " bytes and loss " +
        std::to_string(candidate.loss) + "; expected a positive size and a finite loss that is not negative");
  }
}

// Returns the options by ascending size and strictly descending loss.
std::vector<Option> undominated(const BudgetGroup& group) {
  std::vector<Option> all;
  for (size_t c = 0; c < group.candidates.size(); ++c) {
    all.push_back({group.candidates[c].size_bytes, group.candidates[c].loss, static_cast<int>(c)});
  }
  std::stable_sort(all.begin(), all.end(), [](const Option& a, const Option& b) {
    return a.size_bytes != b.size_bytes ? a.size_bytes < b.size_bytes : a.loss < b.loss;
  });
  std::vector<Option> kept;
  for (const Option& option : all) {
    if (kept.empty() || option.loss < kept.back().loss) kept.push_back(option);
  }
  return kept;
}

// Returns the loss that each further byte saves between two points.
template <typename Point>
double slope(const Point& smaller, const Point& larger) {
  return (smaller.loss - larger.loss) / static_cast<double>(larger.size_bytes - smaller.size_bytes);
}

// Returns the indices of the corners of the lower convex hull of points of ascending size and descending loss. The
// slopes between corners fall strictly.
template <typename Point>
std::vector<size_t> hull_corners(const std::vector<Point>& points) {
  std::vector<size_t> corners;
  for (size_t i = 0; i < points.size(); ++i) {
    while (corners.size() >= 2 && slope(points[corners[corners.size() - 2]], points[corners.back()]) <=
                                      slope(points[corners.back()], points[i])) {
      corners.pop_back();
    }
    corners.push_back(i);
  }
  return corners;
}

// Sums the chosen options in the order of their groups; `choice[g]` indexes options[g].
CurvePoint total(const std::vector<std::vector<Option>>& options, const std::vector<size_t>& choice) {
  CurvePoint sum;
  for (size_t g = 0; g < options.size(); ++g) {
    sum.size_bytes += options[g][choice[g]].size_bytes;
    sum.loss += options[g][choice[g]].loss;
  }
  return sum;
}

BudgetPlan plan_of(const std::vector<std::vector<Option>>& options, const std::vector<size_t>& choice) {
  BudgetPlan plan;
  for (size_t g = 0; g < options.size(); ++g) plan.chosen.push_back(options[g][choice[g]].candidate);
  const CurvePoint sum = total(options, choice);
  plan.size_bytes = sum.size_bytes;
  plan.loss = plan.lower_bound = sum.loss;
  return plan;
}

// One move along a group's hull, from corner to corner.
struct Step {
  size_t group;
  size_t to;  // index into options[group]
  int64_t size_bytes;
  double slope;
};

// Returns all groups' hull steps, those that save most per byte first. The steps of one group stay in order.
std::vector<Step> hull_steps(const std::vector<std::vector<Option>>& options) {
  std::vector<Step> steps;
  for (size_t g = 0; g < options.size(); ++g) {
    const std::vector<size_t> corners = hull_corners(options[g]);
    for (size_t k = 1; k < corners.size(); ++k) {
      const Option &from = options[g][corners[k - 1]], &to = options[g][corners[k]];
      steps.push_back({g, corners[k], to.size_bytes - from.size_bytes, slope(from, to)});
    }
  }
  std::stable_sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.slope > b.slope; });
  return steps;
}

// Takes hull steps while they fit, best first. Before the first step that does not fit (slope v), every group minimizes
// loss + v * size. So no choice of size <= budget can have a loss below loss - v * (budget - size), which is the bound.
BudgetPlan plan_by_price(const std::vector<std::vector<Option>>& options, int64_t budget_bytes) {
  std::vector<size_t> choice(options.size(), 0);
  CurvePoint at = total(options, choice);
  std::vector<CurvePoint> curve{{at.size_bytes, at.loss, true}};
  std::vector<size_t> on_curve = choice;
  std::vector<bool> is_blocked(options.size(), false);
  double lower_bound = -1.0;
  double last_slope = std::numeric_limits<double>::infinity();
  for (const Step& step : hull_steps(options)) {
    on_curve[step.group] = step.to;
    const CurvePoint next = total(options, on_curve);
    if (step.slope == last_slope) curve.pop_back();  // on the line between its neighbours: no corner
    last_slope = step.slope;
    curve.push_back({next.size_bytes, next.loss, true});

    if (is_blocked[step.group]) continue;
    if (step.size_bytes > budget_bytes - at.size_bytes) {
      is_blocked[step.group] = true;
      if (lower_bound < 0.0) {
        lower_bound = std::max(0.0, at.loss - step.slope * static_cast<double>(budget_bytes - at.size_bytes));
      }
      continue;
    }
    choice[step.group] = step.to;
    at = total(options, choice);
  }
  BudgetPlan plan = plan_of(options, choice);
  if (lower_bound >= 0.0) plan.lower_bound = lower_bound;
  plan.curve = std::move(curve);
  return plan;
}

// The dynamic program over sizes. least_S[s] is the smallest loss of the groups so far with at most s units above their
// smallest sizes. taken_GS[g, s] is the option that group g takes in that choice.
BudgetPlan plan_by_table(const std::vector<std::vector<Option>>& options, int64_t budget_bytes, int64_t unit,
                         int64_t num_sizes) {
  const size_t num_groups = options.size();
  const int64_t smallest_bytes = total(options, std::vector<size_t>(num_groups, 0)).size_bytes;
  std::vector<double> least_S(num_sizes, 0.0), next_S(num_sizes);
  std::vector<uint8_t> taken_GS(num_groups * num_sizes, 0);
  for (size_t g = 0; g < num_groups; ++g) {
    uint8_t* taken_S = taken_GS.data() + g * num_sizes;
    for (int64_t s = 0; s < num_sizes; ++s) next_S[s] = least_S[s] + options[g][0].loss;
    for (size_t k = 1; k < options[g].size(); ++k) {
      runtime::throw_if_interrupted();
      const int64_t step = (options[g][k].size_bytes - options[g][0].size_bytes) / unit;
      for (int64_t s = step; s < num_sizes; ++s) {
        const double loss = least_S[s - step] + options[g][k].loss;
        if (loss >= next_S[s]) continue;
        next_S[s] = loss;
        taken_S[s] = static_cast<uint8_t>(k);
      }
    }
    least_S.swap(next_S);
  }

  int64_t size = std::min((budget_bytes - smallest_bytes) / unit, num_sizes - 1);
  while (size > 0 && least_S[size - 1] == least_S[size]) --size;
  std::vector<size_t> choice(num_groups, 0);
  for (size_t g = num_groups; g-- > 0;) {
    choice[g] = taken_GS[g * num_sizes + size];
    size -= (options[g][choice[g]].size_bytes - options[g][0].size_bytes) / unit;
  }

  BudgetPlan plan = plan_of(options, choice);
  plan.is_exact = true;
  for (int64_t s = 0; s < num_sizes; ++s) {
    if (s == 0 || least_S[s] < least_S[s - 1]) plan.curve.push_back({smallest_bytes + s * unit, least_S[s], false});
  }
  for (const size_t corner : hull_corners(plan.curve)) plan.curve[corner].on_hull = true;
  return plan;
}

}  // namespace

int64_t quantized_size_bytes(int64_t num_out, int64_t num_in, const GridOptions& grid) {
  check_grid_options(grid, num_in);
  constexpr int64_t kWordBytes = 4, kShapeBytes = 16;
  const int64_t num_groups = num_in / group_width(grid, num_in);
  const int64_t codes = num_out * runtime::bit_stream_words(num_in, grid.bits) * kWordBytes;
  const int64_t scales = num_out * num_groups * static_cast<int64_t>(runtime::dtype_size_bytes(grid.scale_dtype));
  const int64_t zeros = grid.symmetric ? 0 : runtime::bit_stream_words(num_out, grid.bits) * num_groups * kWordBytes;
  return codes + scales + zeros + kShapeBytes;
}

BudgetPlan plan_bits(const std::vector<BudgetGroup>& groups, int64_t budget_bytes, int64_t max_table_bytes) {
  if (groups.empty()) throw std::invalid_argument("budget: expected at least one group of layers, found none");
  std::vector<std::vector<Option>> options;
  int64_t smallest_bytes = 0, range_bytes = 0, unit = 0;
  for (const BudgetGroup& group : groups) {
    check(group);
    options.push_back(undominated(group));
    const std::vector<Option>& kept = options.back();
    smallest_bytes += kept.front().size_bytes;
    range_bytes += kept.back().size_bytes - kept.front().size_bytes;
    for (const Option& option : kept) unit = std::gcd(unit, option.size_bytes - kept.front().size_bytes);
  }
  if (budget_bytes < smallest_bytes) {
    throw std::invalid_argument("budget: " + std::to_string(budget_bytes) +
                                " bytes are too few: the smallest candidates of all groups take " +
                                std::to_string(smallest_bytes) + "; raise the budget or allow fewer bits");
  }
  unit = std::max<int64_t>(unit, 1);  // it is 0 if every group has one option
  const int64_t num_sizes = range_bytes / unit + 1;
  const int64_t num_groups = static_cast<int64_t>(groups.size());
  if (num_sizes > max_table_bytes / (num_groups + 16)) return plan_by_price(options, budget_bytes);
  return plan_by_table(options, budget_bytes, unit, num_sizes);
}

}  // namespace pare::quant
