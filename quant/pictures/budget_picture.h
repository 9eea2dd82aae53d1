// The trade-off of a bit budget as a picture: loss (logarithmic) against bits per weight.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quant/bit_budget.h"
#include "quant/pictures/plot.h"

namespace pare::quant {

// A model to compare with, e.g. "4 bits g32" for all layers.
struct PictureMark {
  std::string label;
  int64_t size_bytes = 0;
  double loss = 0.0;
};

struct BudgetPicture {
  std::string title;
  std::string loss_label;   // the vertical axis's, e.g. "predicted loss (nats per token)"
  int64_t num_weights = 0;  // in the layers that the sizes count
  std::vector<CurvePoint> curve;
  PictureMark chosen;
  std::vector<PictureMark> marks;
};

// Returns the curve as a line, of which one point in a thousandth of its width is kept, and the chosen point and the
// marks as dots with their labels. A loss of 0 has no logarithm: such points are left out, and the picture counts them.
// Throws std::invalid_argument for num_weights < 1, an empty curve, and sizes or losses that are negative or not
// finite.
Plot budget_plot(const BudgetPicture& picture);

}  // namespace pare::quant
