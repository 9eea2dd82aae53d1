// The trade-off of a bit budget as a picture: loss (logarithmic) against bits per weight, as plain SVG.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quant/bit_budget.h"

namespace pare {

// A model to compare with, e.g. "4 bits g32" for all layers.
struct PictureMark {
  std::string label;
  int64_t size_bytes = 0;
  double loss = 0.0;
};

struct BudgetPicture {
  std::string title;
  std::string loss_label;   // of the vertical axis, e.g. "predicted loss (nats per token)"
  int64_t num_weights = 0;  // of the layers that the sizes count
  std::vector<CurvePoint> curve;
  PictureMark chosen;
  std::vector<PictureMark> marks;
};

// An SVG document of 720 x 480: the curve as a line with dots at the corners of its hull, the chosen point filled,
// marks hollow, each with its label. A logarithm has no place for a loss of 0: such points of the curve and marks are
// left out, and the text under the axis says how many marks. The same input gives the same bytes in every locale.
// Throws std::invalid_argument: num_weights < 1, an empty curve, sizes or losses that are negative or not finite,
// nothing to draw because every loss is 0.
std::string budget_picture(const BudgetPicture& picture);

}  // namespace pare
