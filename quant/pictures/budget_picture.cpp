#include "quant/pictures/budget_picture.h"

#include <cmath>
#include <stdexcept>

namespace pare::quant {
namespace {

void check_point(const std::string& label, int64_t size_bytes, double loss) {
  if (size_bytes >= 0 && std::isfinite(loss) && loss >= 0.0) return;
  throw std::invalid_argument("picture: '" + label + "' has size " + std::to_string(size_bytes) + " bytes and loss " +
                              std::to_string(loss) + "; expected finite values that are not negative");
}

}  // namespace

Plot budget_plot(const BudgetPicture& picture) {
  if (picture.num_weights < 1) {
    throw std::invalid_argument("picture: expected at least one weight, found " + std::to_string(picture.num_weights));
  }
  if (picture.curve.empty()) throw std::invalid_argument("picture: expected a curve, found no point");
  const auto bits = [&](int64_t size_bytes) {
    return 8.0 * static_cast<double>(size_bytes) / static_cast<double>(picture.num_weights);
  };
  PlotSeries curve{"best choices", PlotMark::line, {}, {}};
  const double step = 0.001 * (bits(picture.curve.back().size_bytes) - bits(picture.curve.front().size_bytes));
  for (size_t i = 0; i < picture.curve.size(); ++i) {
    const CurvePoint& point = picture.curve[i];
    check_point("curve", point.size_bytes, point.loss);
    const bool is_end = i == 0 || i + 1 == picture.curve.size();
    if (!is_end && bits(point.size_bytes) - curve.x.back() < step) continue;
    curve.x.push_back(bits(point.size_bytes));
    curve.y.push_back(point.loss);
  }
  PlotSeries marks{"one scheme for all", PlotMark::dots, {}, {}}, chosen{"chosen", PlotMark::dots, {}, {}};
  const auto add = [&](const PictureMark& mark, PlotSeries& series) {
    check_point(mark.label, mark.size_bytes, mark.loss);
    series.x.push_back(bits(mark.size_bytes));
    series.y.push_back(mark.loss);
    series.names.push_back(mark.label);
  };
  for (const PictureMark& mark : picture.marks) add(mark, marks);
  add(picture.chosen, chosen);
  return {.id = "budget-curve",
          .title = picture.title,
          .description = "The best choices of bits for each size, the chosen one, and one scheme for all layers.",
          .x = {"bits per weight, scales included"},
          .y = {picture.loss_label, true},
          .series = {curve, marks, chosen},
          .names_points = true};
}

}  // namespace pare::quant
