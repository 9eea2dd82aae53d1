#include "quant/pictures/budget_picture.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "quant/pictures/picture_text.h"

namespace pare::quant {
namespace {

constexpr double kWidth = 720, kHeight = 480, kLeft = 80, kRight = 700, kTop = 48, kBottom = 410;

// Formats coordinates and sizes.
std::string number(double value, int digits = 2) {
  return fixed_digits(value, digits);
}

std::string shortest(double value) {
  return short_digits(value, 3);
}

// The ranges that the frame spans: bits per weight to the right, log10(loss) upwards.
struct Axes {
  double num_weights;
  double min_bits, max_bits;
  double min_log, max_log;

  double bits(int64_t size_bytes) const { return 8.0 * static_cast<double>(size_bytes) / num_weights; }
  double x(double bits_per_weight) const {
    return kLeft + (bits_per_weight - min_bits) / (max_bits - min_bits) * (kRight - kLeft);
  }
  double y(double log_loss) const { return kBottom - (log_loss - min_log) / (max_log - min_log) * (kBottom - kTop); }
  std::string place(int64_t size_bytes, double loss) const {
    return number(x(bits(size_bytes))) + "," + number(y(std::log10(loss)));
  }
};

std::vector<PictureMark> drawable_points(const BudgetPicture& picture) {
  std::vector<PictureMark> all = picture.marks;
  all.push_back(picture.chosen);
  for (const CurvePoint& point : picture.curve) all.push_back({"curve", point.size_bytes, point.loss});
  for (const PictureMark& point : all) {
    if (point.size_bytes >= 0 && std::isfinite(point.loss) && point.loss >= 0.0) continue;
    throw std::invalid_argument("picture: '" + point.label + "' has size " + std::to_string(point.size_bytes) +
                                " bytes and loss " + std::to_string(point.loss) +
                                "; expected finite values that are not negative");
  }
  std::erase_if(all, [](const PictureMark& point) { return point.loss == 0.0; });
  if (all.empty()) throw std::invalid_argument("picture: every loss is 0: there is nothing to draw");
  return all;
}

// Returns axes that hold every point with a little room. The loss axis spans at least half a decade.
Axes make_axes(const BudgetPicture& picture) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Axes axes{static_cast<double>(picture.num_weights), kInfinity, -kInfinity, kInfinity, -kInfinity};
  for (const PictureMark& point : drawable_points(picture)) {
    axes.min_bits = std::min(axes.min_bits, axes.bits(point.size_bytes));
    axes.max_bits = std::max(axes.max_bits, axes.bits(point.size_bytes));
    axes.min_log = std::min(axes.min_log, std::log10(point.loss));
    axes.max_log = std::max(axes.max_log, std::log10(point.loss));
  }
  const double bits_room = std::max(0.05 * (axes.max_bits - axes.min_bits), 0.1);
  axes.min_bits = std::max(0.0, axes.min_bits - bits_room);
  axes.max_bits += bits_room;
  const double log_room = std::max(0.06 * (axes.max_log - axes.min_log), 0.25);
  axes.min_log -= log_room;
  axes.max_log += log_room;
  return axes;
}

std::string line(double x1, double y1, double x2, double y2, const char* stroke) {
  return "<line x1=\"" + number(x1) + "\" y1=\"" + number(y1) + "\" x2=\"" + number(x2) + "\" y2=\"" + number(y2) +
         "\" stroke=\"" + stroke + "\"/>\n";
}

std::string text(double x, double y, const char* anchor, const std::string& content, const char* more = "") {
  return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" text-anchor=\"" + anchor + "\"" + more + ">" +
         xml_text(content) + "</text>\n";
}

// Returns the step of 1, 2 or 5 times a power of ten that gives at most 10 ticks.
double tick_step(double range) {
  const double power = std::pow(10.0, std::floor(std::log10(range / 10.0)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (range / (factor * power) <= 10.0) return factor * power;
  }
  return 10.0 * power;
}

std::string draw_axes(const Axes& axes, const BudgetPicture& picture) {
  std::string svg;
  const double step = tick_step(axes.max_bits - axes.min_bits);
  for (double tick = std::ceil(axes.min_bits / step); tick * step <= axes.max_bits; ++tick) {
    const double x = axes.x(tick * step);
    svg += line(x, kTop, x, kBottom, "#e4e4e4") + text(x, kBottom + 18, "middle", shortest(tick * step));
  }
  // Ticks stand at every power of ten, and where those are few also at 2 and 5 times it.
  const bool has_few = axes.max_log - axes.min_log < 3.0;
  for (int power = static_cast<int>(std::floor(axes.min_log)); power <= axes.max_log; ++power) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double log_loss = power + std::log10(factor);
      if (log_loss < axes.min_log || log_loss > axes.max_log || (factor > 1.0 && !has_few)) continue;
      const double y = axes.y(log_loss);
      svg += line(kLeft, y, kRight, y, "#e4e4e4") +
             text(kLeft - 8, y + 4, "end", shortest(factor * std::pow(10.0, power)));
    }
  }
  svg += "<rect x=\"" + number(kLeft) + "\" y=\"" + number(kTop) + "\" width=\"" + number(kRight - kLeft) +
         "\" height=\"" + number(kBottom - kTop) + "\" fill=\"none\" stroke=\"#333333\"/>\n";
  svg += text((kLeft + kRight) / 2, 28, "middle", picture.title, " font-size=\"16\"");
  svg += text((kLeft + kRight) / 2, kBottom + 40, "middle", "bits per weight, scales included");
  static_assert((kTop + kBottom) / 2 == 229, "the centre of the rotation below");
  svg += text(18, 229, "middle", picture.loss_label, " transform=\"rotate(-90 18 229)\"");
  return svg;
}

// Draws the curve as a line with dots at the hull's corners. Between corners it keeps at most one point for each column
// of pixels.
std::string draw_curve(const Axes& axes, const std::vector<CurvePoint>& curve) {
  std::string points, dots, last;
  for (const CurvePoint& point : curve) {
    if (point.loss == 0.0) continue;
    const std::string place = axes.place(point.size_bytes, point.loss);
    if (point.on_hull) {
      dots += "<circle cx=\"" + number(axes.x(axes.bits(point.size_bytes))) + "\" cy=\"" +
              number(axes.y(std::log10(point.loss))) + "\" r=\"1.6\" fill=\"#1f5fa8\"/>\n";
    }
    const std::string column = number(axes.x(axes.bits(point.size_bytes)), 0);
    if (column == last && !point.on_hull) continue;
    last = column;
    points += (points.empty() ? "" : " ") + place;
  }
  return "<polyline points=\"" + points + "\" fill=\"none\" stroke=\"#1f5fa8\" stroke-width=\"1.5\"/>\n" + dots;
}

std::string draw_mark(const Axes& axes, const PictureMark& mark, bool is_chosen) {
  if (mark.loss == 0.0) return "";
  const double x = axes.x(axes.bits(mark.size_bytes)), y = axes.y(std::log10(mark.loss));
  const bool is_right = x > (kLeft + kRight) / 2;  // the label goes where there is more room
  return "<circle cx=\"" + number(x) + "\" cy=\"" + number(y) + "\" r=\"5\" fill=\"" +
         (is_chosen ? "#c0392b" : "none") + "\" stroke=\"#c0392b\" stroke-width=\"1.5\"/>\n" +
         text(is_right ? x - 9 : x + 9, y - 6, is_right ? "end" : "start", mark.label);
}

}  // namespace

std::string budget_picture(const BudgetPicture& picture) {
  if (picture.num_weights < 1) {
    throw std::invalid_argument("picture: expected at least one weight, found " + std::to_string(picture.num_weights));
  }
  if (picture.curve.empty()) throw std::invalid_argument("picture: expected a curve, found no point");
  const Axes axes = make_axes(picture);
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + number(kWidth, 0) + "\" height=\"" +
                    number(kHeight, 0) + "\" viewBox=\"0 0 " + number(kWidth, 0) + " " + number(kHeight, 0) +
                    "\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222222\">\n"
                    "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
  svg += draw_axes(axes, picture) + draw_curve(axes, picture.curve);
  size_t num_left_out = picture.chosen.loss == 0.0;
  for (const PictureMark& mark : picture.marks) {
    num_left_out += mark.loss == 0.0;
    svg += draw_mark(axes, mark, false);
  }
  svg += draw_mark(axes, picture.chosen, true);
  if (num_left_out > 0) {
    svg += text(kRight, kBottom + 60, "end", "not drawn, loss 0: " + std::to_string(num_left_out));
  }
  return svg + "</svg>\n";
}

}  // namespace pare::quant
