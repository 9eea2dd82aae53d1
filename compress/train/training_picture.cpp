#include "compress/train/training_picture.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <stdexcept>

namespace pare {
namespace {

constexpr double kWidth = 720, kHeight = 480, kLeft = 80, kRight = 640, kTop = 40, kBottom = 420;

std::string number(double value, int digits) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::fixed, digits);
  return {text, end.ptr};
}

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

Range range_of(const std::vector<double>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  Range range{*low, *high};
  range.widen();
  return range;
}

std::string text_at(double x, double y, const char* anchor, const std::string& text) {
  return "<text x=\"" + number(x, 1) + "\" y=\"" + number(y, 1) + "\" text-anchor=\"" + anchor + "\">" + text +
         "</text>\n";
}

std::string line_of(const std::vector<double>& x, const std::vector<double>& y, const Range& across, const Range& up,
                    const char* colour) {
  std::string points;
  for (size_t i = 0; i < x.size(); ++i) {
    points += (i > 0 ? " " : "") + number(across.place(x[i], kLeft, kRight), 2) + "," +
              number(up.place(y[i], kBottom, kTop), 2);
  }
  return "<polyline fill=\"none\" stroke=\"" + std::string(colour) + "\" stroke-width=\"2\" points=\"" + points +
         "\"/>\n";
}

}  // namespace

std::string training_picture(const std::vector<TrainingPoint>& curve) {
  if (curve.empty()) throw std::invalid_argument("training_picture: expected at least one point");
  std::vector<double> tokens, perplexity, loss_tokens, loss;
  for (const TrainingPoint& point : curve) {
    if (!(point.validation_perplexity > 0.0) || !std::isfinite(point.validation_perplexity)) {
      throw std::invalid_argument("training_picture: a perplexity is not positive and finite");
    }
    tokens.push_back(static_cast<double>(point.num_tokens));
    perplexity.push_back(std::log10(point.validation_perplexity));
    if (point.step == 0 || !std::isfinite(point.loss)) continue;
    loss_tokens.push_back(static_cast<double>(point.num_tokens));
    loss.push_back(point.loss);
  }
  const Range across = range_of(tokens), up = range_of(perplexity);
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + number(kWidth, 0) + "\" height=\"" +
                    number(kHeight, 0) + "\" font-family=\"sans-serif\" font-size=\"13\">\n" +
                    "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<path d=\"M" + number(kLeft, 0) + " " +
                    number(kTop, 0) + "V" + number(kBottom, 0) + "H" + number(kRight, 0) + "V" + number(kTop, 0) +
                    "\" fill=\"none\" stroke=\"black\"/>\n";
  constexpr int kTicks = 4;
  const Range down = loss.empty() ? Range{} : range_of(loss);
  for (int i = 0; i <= kTicks; ++i) {
    const double share = static_cast<double>(i) / kTicks;
    const double x = kLeft + share * (kRight - kLeft), y = kBottom + share * (kTop - kBottom);
    svg += text_at(x, kBottom + 20, "middle", number(across.low + share * (across.high - across.low), 0));
    svg += text_at(kLeft - 8, y + 4, "end", number(std::pow(10.0, up.low + share * (up.high - up.low)), 2));
    if (!loss.empty()) svg += text_at(kRight + 8, y + 4, "start", number(down.low + share * (down.high - down.low), 3));
  }
  svg += text_at((kLeft + kRight) / 2, kBottom + 44, "middle", "tokens trained on");
  svg += text_at(kLeft, kTop - 14, "start", "validation perplexity (blue)");
  if (!loss.empty()) {
    svg += text_at(kRight, kTop - 14, "end", "loss, nats per token (orange)");
    svg += line_of(loss_tokens, loss, across, down, "#d95f02");
  }
  svg += line_of(tokens, perplexity, across, up, "#1f5fa8");
  return svg + "</svg>\n";
}

}  // namespace pare
