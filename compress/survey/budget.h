// Chooses bits from a survey: the bits and group size of each stage of each block, so that the predicted loss is
// smallest within the recipe's budget (quant/bit_budget.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compress/plan/plan.h"
#include "compress/survey/survey.h"
#include "quant/bit_budget.h"
#include "quant/pictures/budget_picture.h"
#include "runtime/evaluate/perplexity.h"

namespace pare::compress {

struct ChosenBits {
  std::string name;
  std::vector<std::string> layers;
  int bits = 0;  // 16: the group is left as it is
  int64_t group_size = runtime::kPerChannel;
  int64_t size_bytes = 0;
  double loss_per_error = 0.0;  // measured (quant/sensitivity.h)
  bool is_floor = false;        // the measured value is within its error of 0, and that error is charged
  double loss = 0.0;            // predicted, nats per token
};

// Sizes and bits count the blocks' linears: codes, scales, zeros and shapes of compressed ones, and the weights of
// those that are left alone. The embedding and the head do not count.
struct BitChoice {
  std::vector<ChosenBits> groups;
  int64_t budget_bytes = 0;
  int64_t size_bytes = 0;
  int64_t num_weights = 0;
  double loss = 0.0;         // predicted, summed
  double lower_bound = 0.0;  // no choice within the budget has a smaller loss
  bool is_exact = false;
  std::vector<quant::CurvePoint> curve;   // the trade-off over all sizes
  std::vector<quant::PictureMark> marks;  // one scheme for all layers, with the same prediction
  double bits_per_weight() const { return 8.0 * static_cast<double>(size_bytes) / static_cast<double>(num_weights); }
};

// Returns the bytes that the recipe's budget leaves for the blocks' linears of the plan's model. Throws
// std::invalid_argument when the smallest allowed choice takes more (the message says how much).
int64_t budget_bytes(const BudgetRecipe& budget, const RunPlan& plan, const runtime::Checkpoint& checkpoint);

// Chooses the bits of each group within plan.budget_bytes. The error of its candidates is multiplied by the group's
// measured KL per error. That KL is the increase of the loss on text drawn from the model itself. On given text the
// increase is the same on average, and much noisier.
// Throws what plan_bits and loss_sensitivities throw. Throws std::runtime_error for a survey of other layers, or of
// other ways to store them, than the plan's (the message says which).
BitChoice choose_bits(const Survey& survey, const RunPlan& plan, const runtime::Checkpoint& checkpoint);

// Gives every surveyed layer its bits and group.
void apply_choice(const BitChoice& choice, RunPlan& plan);

// Returns the table of the choice and the curve at every quarter of a bit, for people. Names are shortened where
// num_columns have no room for them.
std::vector<std::string> to_lines(const BitChoice& choice, size_t num_columns);

// Returns one JSON object with what was chosen and predicted, which is the same in every run. With `curve` it has the
// curve as well.
std::string to_json(const BitChoice& choice, bool curve);

// Returns an SVG document.
std::string picture(const BitChoice& choice);

}  // namespace pare::compress
