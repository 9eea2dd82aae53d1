#include "compress/train/training_picture.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <stdexcept>

#include "quant/pictures/picture_text.h"

namespace pare::compress {
namespace {

constexpr double kWidth = 720, kHeight = 480, kLeft = 80, kRight = 640, kTop = 40, kBottom = 420;
constexpr const char *kBlue = "#1f5fa8", *kOrange = "#d95f02", *kGreen = "#2a8a4a";

struct Range {
  double low = 0.0, high = 1.0;
  void widen() {
    if (high - low < 1e-9) {
      low -= 0.5;
      high += 0.5;
    }
  }
  double place(double value, double from, double to) const { return from + (value - low) / (high - low) * (to - from); }
};

// Of one quantity, where it was measured: at so many tokens.
struct Line {
  std::vector<double> tokens, values;
  void add(double at, const std::optional<double>& value) {
    if (!value || !std::isfinite(*value)) return;
    tokens.push_back(at);
    values.push_back(*value);
  }
};

Range range_of(std::vector<double> values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  Range range{*low, *high};
  range.widen();
  return range;
}

std::string text_at(double x, double y, const char* anchor, const std::string& text, const char* colour = "black") {
  return "<text x=\"" + quant::fixed_digits(x, 1) + "\" y=\"" + quant::fixed_digits(y, 1) + "\" text-anchor=\"" +
         anchor + "\" fill=\"" + colour + "\">" + quant::xml_text(text) + "</text>\n";
}

std::string draw(const Line& line, const Range& across, const Range& up, const char* colour) {
  std::string points;
  for (size_t i = 0; i < line.tokens.size(); ++i) {
    points += (i > 0 ? " " : "") + quant::fixed_digits(across.place(line.tokens[i], kLeft, kRight), 2) + "," +
              quant::fixed_digits(up.place(line.values[i], kBottom, kTop), 2);
  }
  return "<polyline fill=\"none\" stroke=\"" + std::string(colour) + "\" stroke-width=\"2\" points=\"" + points +
         "\"/>\n";
}

// Of a perplexity with that logarithm: two decimals, or the power of ten where there would be many digits before them.
std::string tick_text(double log10_value) {
  const double value = std::min(std::pow(10.0, log10_value), std::numeric_limits<double>::max());
  return value < 1e6 ? quant::fixed_digits(value, 2) : quant::short_digits(value, 3);
}

// A dashed line at the point whose values are kept, a dot where it is on the perplexity's line, and its step.
std::string mark_kept(const TrainingPoint& kept, const Range& across, const Range& up) {
  const double x = across.place(static_cast<double>(kept.num_tokens), kLeft, kRight);
  const double y = up.place(std::log10(kept.validation_perplexity), kBottom, kTop);
  const bool is_right = x > (kLeft + kRight) / 2;  // the words go where there is more room
  return "<path d=\"M" + quant::fixed_digits(x, 2) + " " + quant::fixed_digits(kTop, 0) + "V" +
         quant::fixed_digits(kBottom, 0) + "\" stroke=\"#666666\" stroke-dasharray=\"4 4\"/>\n<circle cx=\"" +
         quant::fixed_digits(x, 2) + "\" cy=\"" + quant::fixed_digits(y, 2) + "\" r=\"5\" fill=\"" + kBlue + "\"/>\n" +
         text_at(is_right ? x - 6 : x + 6, kTop + 14, is_right ? "end" : "start",
                 "kept: step " + std::to_string(kept.step), "#666666");
}

}  // namespace

std::string training_picture(const std::vector<TrainingPoint>& curve, int64_t kept_step) {
  if (curve.empty()) throw std::invalid_argument("training_picture: expected at least one point");
  const auto kept =
      std::find_if(curve.begin(), curve.end(), [&](const TrainingPoint& point) { return point.step == kept_step; });
  if (kept == curve.end()) {
    throw std::invalid_argument("training_picture: expected a point at the step that is kept, " +
                                std::to_string(kept_step));
  }
  Line perplexity, loss, held_out;
  for (const TrainingPoint& point : curve) {
    if (!(point.validation_perplexity > 0.0) || !std::isfinite(point.validation_perplexity)) {
      throw std::invalid_argument("training_picture: a perplexity is not positive and finite");
    }
    const auto tokens = static_cast<double>(point.num_tokens);
    perplexity.add(tokens, std::log10(point.validation_perplexity));
    loss.add(tokens, point.loss);
    held_out.add(tokens, point.validation_loss ? point.validation_loss : point.validation_kl);
  }
  const Range across = range_of(perplexity.tokens), up = range_of(perplexity.values);
  std::vector<double> losses = loss.values;
  losses.insert(losses.end(), held_out.values.begin(), held_out.values.end());
  const Range down = losses.empty() ? Range{} : range_of(losses);
  std::string svg =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + quant::fixed_digits(kWidth, 0) + "\" height=\"" +
      quant::fixed_digits(kHeight, 0) + "\" font-family=\"sans-serif\" font-size=\"13\">\n" +
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<path d=\"M" + quant::fixed_digits(kLeft, 0) + " " +
      quant::fixed_digits(kTop, 0) + "V" + quant::fixed_digits(kBottom, 0) + "H" + quant::fixed_digits(kRight, 0) +
      "V" + quant::fixed_digits(kTop, 0) + "\" fill=\"none\" stroke=\"black\"/>\n";
  constexpr int kTicks = 4;
  for (int i = 0; i <= kTicks; ++i) {
    const double share = static_cast<double>(i) / kTicks;
    const double x = kLeft + share * (kRight - kLeft), y = kBottom + share * (kTop - kBottom);
    svg += text_at(x, kBottom + 20, "middle", quant::fixed_digits(across.low + share * (across.high - across.low), 0));
    svg += text_at(kLeft - 8, y + 4, "end", tick_text(up.low + share * (up.high - up.low)));
    if (!losses.empty()) {
      svg += text_at(kRight + 8, y + 4, "start", quant::fixed_digits(down.low + share * (down.high - down.low), 3));
    }
  }
  svg += text_at((kLeft + kRight) / 2, kBottom + 44, "middle", "tokens trained on");
  svg += text_at(kLeft, kTop - 24, "start", "held-out perplexity (left, logarithmic)", kBlue);
  if (!losses.empty()) {
    svg += text_at(kRight, kTop - 24, "end", "trained loss, nats per token (right)", kOrange);
    if (!held_out.values.empty()) {
      svg += text_at(kRight, kTop - 8, "end",
                     curve.front().validation_loss ? "the same of held-out windows (right)"
                                                   : "KL from the teacher, held-out windows (right)",
                     kGreen);
      svg += draw(held_out, across, down, kGreen);
    }
    svg += draw(loss, across, down, kOrange);
  }
  svg += draw(perplexity, across, up, kBlue);
  svg += mark_kept(*kept, across, up);
  return svg + "</svg>\n";
}

}  // namespace pare::compress
