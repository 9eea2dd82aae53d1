// Draws the trade-off of a bit budget, loss (logarithmic) against bits per weight, as plain SVG.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quant/bit_budget.h"

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

// Returns an SVG document of 720 x 480. The curve is a line with dots at the corners of its hull. The chosen point is
// filled and the marks are hollow, each with its label. A loss of 0 has no logarithm: such points and marks are left
// out, and the text under the axis counts the marks. The same input gives the same bytes in every locale.
// Throws std::invalid_argument for num_weights < 1, an empty curve, sizes or losses that are negative or not finite,
// and where every loss is 0, so that there is nothing to draw.
std::string budget_picture(const BudgetPicture& picture);

}  // namespace pare::quant
