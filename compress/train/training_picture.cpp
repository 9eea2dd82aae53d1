#include "compress/train/training_picture.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace pare::compress {

std::vector<quant::Plot> training_plots(const std::vector<TrainingPoint>& curve, int64_t kept_step,
                                        const std::string& id) {
  if (curve.empty()) throw std::invalid_argument("training_plots: expected at least one point");
  const auto kept = std::ranges::find(curve, kept_step, &TrainingPoint::step);
  if (kept == curve.end()) {
    throw std::invalid_argument("training_plots: expected a point at the step that is kept, " +
                                std::to_string(kept_step));
  }
  using Series = quant::PlotSeries;
  Series perplexity{"perplexity", quant::PlotMark::line, {}, {}}, loss{"trained loss", quant::PlotMark::line, {}, {}};
  const bool has_loss =
      std::ranges::any_of(curve, [](const TrainingPoint& point) { return point.validation_loss.has_value(); });
  Series held_out{has_loss ? "the same of held-out windows" : "KL from the teacher, held-out windows",
                  quant::PlotMark::line,
                  {},
                  {}};
  for (const TrainingPoint& point : curve) {
    if (!(point.validation_perplexity > 0.0) || !std::isfinite(point.validation_perplexity)) {
      throw std::invalid_argument("training_plots: a perplexity is not positive and finite");
    }
    const auto add = [&](const std::optional<double>& value, Series& series) {
      if (!value || !std::isfinite(*value)) return;
      series.x.push_back(static_cast<double>(point.num_tokens));
      series.y.push_back(*value);
    };
    add(point.validation_perplexity, perplexity);
    add(point.loss, loss);
    add(point.validation_loss ? point.validation_loss : point.validation_kl, held_out);
  }
  const auto mark_x = static_cast<double>(kept->num_tokens);
  const std::string mark_label = "kept: step " + std::to_string(kept_step);
  std::vector<quant::Plot> plots = {
      {.id = id + "-perplexity",
       .title = "Perplexity of held-out windows during the training",
       .description = "A line over the tokens trained on. A dashed line marks what was kept.",
       .x = {"tokens trained on"},
       .y = {"perplexity (logarithmic)", true},
       .series = {perplexity},
       .mark_x = mark_x,
       .mark_label = mark_label}};
  std::vector<Series> losses;
  for (Series* series : {&loss, &held_out}) {
    if (!series->x.empty()) losses.push_back(std::move(*series));
  }
  if (!losses.empty()) {
    plots.push_back({.id = id + "-loss",
                     .title = "Loss during the training",
                     .description = "Lines over the tokens trained on. A dashed line marks what was kept.",
                     .x = {"tokens trained on"},
                     .y = {"nats per token"},
                     .series = losses,
                     .mark_x = mark_x,
                     .mark_label = mark_label});
  }
  return plots;
}

}  // namespace pare::compress
