// From a survey to bits: which bits and group size each stage of each block gets, so that the predicted loss is
// smallest within the recipe's budget (quant/bit_budget.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compress/plan/plan.h"
#include "compress/survey/survey.h"
#include "quant/bit_budget.h"
#include "quant/budget_picture.h"
#include "runtime/evaluate/evaluate.h"

namespace pare {

struct ChosenBits {
  std::string name;
  std::vector<std::string> layers;
  int bits = 0;  // 16: left as it is
  int64_t group_size = kPerChannel;
  int64_t size_bytes = 0;
  double loss_per_error = 0.0;  // measured (quant/sensitivity.h)
  bool is_floor = false;        // what was measured is within its error of 0: charged with that error
  double loss = 0.0;            // predicted, nats per token
};

// Sizes and bits count the blocks' linears: codes, scales, zeros and shapes of compressed ones, the weights of those
// that are left alone; no embedding, no head.
struct BitChoice {
  std::vector<ChosenBits> groups;
  int64_t budget_bytes = 0;
  int64_t size_bytes = 0;
  int64_t num_weights = 0;
  double loss = 0.0;         // predicted, summed
  double lower_bound = 0.0;  // of every choice within the budget
  bool is_exact = false;
  std::vector<CurvePoint> curve;   // of all sizes
  std::vector<PictureMark> marks;  // one scheme for all layers, by the same prediction
  double bits_per_weight() const { return 8.0 * static_cast<double>(size_bytes) / static_cast<double>(num_weights); }
};

// The bytes that the recipe's budget leaves for the blocks' linears of the plan's model. Throws std::invalid_argument
// when the smallest of what is allowed takes more (and how much that is).
int64_t budget_bytes(const BudgetRecipe& budget, const RunPlan& plan, const Checkpoint& checkpoint);

// The error of each group's candidates counts with the group's measured KL per error: the increase of the loss that
// text drawn from the model itself would see. On given text the increase is the same on average, and much noisier.
// Throws what plan_bits and loss_sensitivities throw, and std::runtime_error for a survey of other layers or other ways
// to store them than the plan's (which).
BitChoice choose_bits(const Survey& survey, const RunPlan& plan, const Checkpoint& checkpoint, int64_t budget_bytes);

// Gives every surveyed layer its bits and group.
void apply_choice(const BitChoice& choice, RunPlan& plan);

// The table of the choice and the curve at every quarter of a bit, for people; names are shortened where num_columns have
// no room for them.
std::vector<std::string> to_lines(const BitChoice& choice, size_t num_columns);

// One JSON object: what was chosen and predicted, which is the same in every run; with `curve` also that.
std::string to_json(const BitChoice& choice, bool curve);

// An SVG document.
std::string picture(const BitChoice& choice);

}  // namespace pare
