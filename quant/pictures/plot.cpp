#include "quant/pictures/plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <utility>

#include "quant/pictures/picture_text.h"

namespace pare::quant {
namespace {

constexpr double kCharacterWidth = 7.0;                   // of 13 pixels in a sans-serif face, rounded up
constexpr double kNameAscent = 10.0, kNameDescent = 3.0;  // of 12 pixels
constexpr double kLineHeight = 18.0;
constexpr size_t kNumColours = 8;

std::string px(double value) {
  return fixed_digits(value, 1);
}

double text_width(const std::string& text) {
  const auto num_characters = std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; });  // of UTF-8
  return kCharacterWidth * static_cast<double>(num_characters);
}

// 1200, 250000, 0.05, 1e-07.
std::string tick_label(double value) {
  const bool is_whole = std::abs(value) < 1e7 && value == std::floor(value);
  return is_whole ? fixed_digits(value, 0) : short_digits(value, 5);
}

struct Box {
  double left, top, right, bottom;
  bool covers(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

// A range of values and of pixels.
struct Scale {
  double low = 0.0, high = 1.0, from = 0.0, to = 1.0;
  bool is_log = false;
  double place(double value) const {
    const auto rate = [this](double v) { return is_log ? std::log10(v) : v; };
    return from + (rate(value) - rate(low)) / (rate(high) - rate(low)) * (to - from);
  }
};

bool is_drawn(const Plot& plot, double x, double y) {
  return std::isfinite(x) && std::isfinite(y) && (!plot.x.is_log || x > 0.0) && (!plot.y.is_log || y > 0.0);
}

bool has_no_logarithm(const Plot& plot, double x, double y) {
  return std::isfinite(x) && std::isfinite(y) && !is_drawn(plot, x, y);
}

void for_each_point(const Plot& plot, const std::function<void(const PlotSeries&, size_t)>& use) {
  for (const PlotSeries& series : plot.series) {
    for (size_t i = 0; i < series.x.size(); ++i) {
      if (is_drawn(plot, series.x[i], series.y[i])) use(series, i);
    }
  }
}

// The range of all values with a little room around them.
void widen(Scale& scale, bool from_zero) {
  if (scale.is_log) {
    const double room = std::max(0.04 * std::log10(scale.high / scale.low), 0.05);
    scale.low = std::max(scale.low / std::pow(10.0, room), std::numeric_limits<double>::min());
    scale.high = std::min(scale.high * std::pow(10.0, room), std::numeric_limits<double>::max());
    return;
  }
  if (from_zero) scale.low = std::min(scale.low, 0.0);
  const double size = std::max({std::abs(scale.low), std::abs(scale.high), 1e-300});
  double room = 0.05 * (scale.high - scale.low);
  if (!(room > 1e-9 * size)) room = 0.05 * size;
  if (!from_zero || scale.low < 0.0) scale.low -= room;
  scale.high += room;
  scale.low = std::max(scale.low, std::numeric_limits<double>::lowest());
  scale.high = std::min(scale.high, std::numeric_limits<double>::max());
}

class Picture {
 public:
  Picture(const Plot& plot, double width, double height)
      : plot_(plot), id_(plot.id + (width > 500.0 ? "-wide" : "-narrow")), width_(width), height_(height) {}

  // Returns the attributes that say which elements are the picture's name and description.
  std::string names() const { return "role=\"img\" aria-labelledby=\"" + id_ + "-title " + id_ + "-text\""; }

  // The elements of the picture: into an element with these names.
  std::string draw() {
    svg_ = "<title id=\"" + id_ + "-title\">" + xml_text(plot_.title) + "</title>\n<desc id=\"" + id_ + "-text\">" +
           xml_text(plot_.description) + "</desc>\n";
    if (find_ranges()) {
      draw_legend();
      draw_axes();
      draw_mark_line();
      for (const bool draws_lines : {true, false}) {  // dots lie on lines
        for (size_t s = 0; s < plot_.series.size(); ++s) {
          if ((plot_.series[s].mark == PlotMark::line) == draws_lines) draw_series(plot_.series[s], colour(s));
        }
      }
      if (plot_.names_points) draw_names();
    } else {
      text(width_ / 2.0, height_ / 2.0, "middle", "no value to show");
    }
    return svg_;
  }

 private:
  static std::string colour(size_t series) { return "c" + std::to_string(series % kNumColours); }

  void text(double x, double y, const char* anchor, const std::string& words, const std::string& more = {}) {
    svg_ += "<text x=\"" + px(x) + "\" y=\"" + px(y) + "\" text-anchor=\"" + anchor + "\"" + more + ">" +
            xml_text(words) + "</text>\n";
  }

  bool has_bars() const {
    return std::ranges::any_of(plot_.series, [](const PlotSeries& s) { return s.mark == PlotMark::bars; });
  }

  bool find_ranges() {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    x_ = {kInfinity, -kInfinity, 0.0, 0.0, plot_.x.is_log};
    y_ = {kInfinity, -kInfinity, 0.0, 0.0, plot_.y.is_log};
    for_each_point(plot_, [&](const PlotSeries& series, size_t i) {
      x_.low = std::min(x_.low, series.x[i]);
      x_.high = std::max(x_.high, series.x[i]);
      const double error = series.error.empty() || !std::isfinite(series.error[i]) ? 0.0 : series.error[i];
      const double below = series.y[i] - error;
      y_.low = std::min(y_.low, plot_.y.is_log && below <= 0.0 ? series.y[i] : below);
      y_.high = std::max(y_.high, series.y[i] + error);
    });
    if (x_.low > x_.high) return false;
    for (const PlotSeries& series : plot_.series) {
      for (size_t i = 0; i < series.x.size(); ++i) num_left_out_ += has_no_logarithm(plot_, series.x[i], series.y[i]);
    }
    widen(x_, /*from_zero=*/false);
    widen(y_, /*from_zero=*/has_bars());
    top_ = kLineHeight + 6.0;
    bottom_ = height_ - (num_left_out_ > 0 ? 3.0 : 2.0) * kLineHeight - 10.0;
    return true;
  }

  // In rows above the frame.
  void draw_legend() {
    if (plot_.series.size() < 2) return;
    double x = 4.0;
    double y = kLineHeight;
    for (size_t s = 0; s < plot_.series.size(); ++s) {
      const double size = 20.0 + text_width(plot_.series[s].label) + 12.0;
      if (x > 4.0 && x + size > width_) {
        x = 4.0;
        y += kLineHeight;
      }
      svg_ += "<rect class=\"" + colour(s) + " fill\" x=\"" + px(x) + "\" y=\"" + px(y - 10.0) +
              "\" width=\"12\" height=\"12\"/>\n";
      text(x + 18.0, y, "start", plot_.series[s].label);
      x += size;
    }
    top_ = y + kLineHeight + 10.0;
  }

  void draw_axes() {
    const double room_for_names = plot_.names_points ? kLineHeight : 0.0;  // above the highest dot, below the lowest
    y_.from = bottom_ - room_for_names;
    y_.to = top_ + 4.0 + room_for_names;
    const std::vector<double> ups =
        tick_values(y_.low, y_.high, y_.is_log, std::max(2, static_cast<int>((bottom_ - top_) / 34.0)));
    double widest = 0.0;
    for (const double tick : ups) widest = std::max(widest, text_width(tick_label(tick)));
    left_ = widest + 14.0;
    right_ = width_ - 14.0;
    x_.from = left_;
    x_.to = right_;
    // As many ticks as have room for their labels beside one another.
    std::vector<double> across;
    for (int most = 10; most >= 2; --most) {
      across = tick_values(x_.low, x_.high, x_.is_log, most);
      if (plot_.x.is_whole) std::erase_if(across, [](double tick) { return tick != std::floor(tick); });
      bool fits = true;
      for (size_t i = 1; i < across.size(); ++i) {
        const double gap = x_.place(across[i]) - x_.place(across[i - 1]);
        fits = fits && gap > (text_width(tick_label(across[i])) + text_width(tick_label(across[i - 1]))) / 2.0 + 8.0;
      }
      if (fits) break;
    }
    for (const double tick : ups) {
      const std::string y = px(y_.place(tick));
      svg_ += "<path class=\"grid\" d=\"M" + px(left_) + " " + y + "H" + px(right_) + "\"/>\n";
      text(left_ - 6.0, y_.place(tick) + 4.0, "end", tick_label(tick));
    }
    for (const double tick : across) {
      const std::string label = tick_label(tick);
      const double x = x_.place(tick);
      svg_ += "<path class=\"grid\" d=\"M" + px(x) + " " + px(bottom_) + "v5\"/>\n";
      const double half = text_width(label) / 2.0;
      text(std::clamp(x, half, width_ - half), bottom_ + kLineHeight, "middle", label);
    }
    svg_ += "<path class=\"axis\" d=\"M" + px(left_) + " " + px(top_) + "V" + px(bottom_) + "H" + px(right_) + "\"/>\n";
    text((left_ + right_) / 2.0, bottom_ + 2.0 * kLineHeight, "middle", plot_.x.label);
    text(4.0, top_ - 6.0, "start", plot_.y.label, " class=\"label\"");
    if (num_left_out_ > 0) {
      text(right_, bottom_ + 3.0 * kLineHeight, "end", "not drawn, 0 or less: " + std::to_string(num_left_out_));
    }
  }

  void draw_mark_line() {
    if (!plot_.mark_x || !(*plot_.mark_x >= x_.low && *plot_.mark_x <= x_.high)) return;
    const double x = x_.place(*plot_.mark_x);
    svg_ += "<path class=\"mark\" d=\"M" + px(x) + " " + px(top_) + "V" + px(bottom_) + "\"/>\n";
    const bool is_right = x > (left_ + right_) / 2.0;
    text(is_right ? x - 6.0 : x + 6.0, top_ + 12.0, is_right ? "end" : "start", plot_.mark_label);
  }

  void draw_series(const PlotSeries& series, const std::string& colour_class) {
    std::string line;
    for (size_t i = 0; i < series.x.size(); ++i) {
      if (!is_drawn(plot_, series.x[i], series.y[i])) continue;
      const double x = x_.place(series.x[i]), y = y_.place(series.y[i]);
      const std::string name = series.names.empty() ? "" : "<title>" + xml_text(series.names[i]) + "</title>";
      if (!series.error.empty() && std::isfinite(series.error[i]) && series.error[i] > 0.0)
        draw_error(series, i, colour_class);
      switch (series.mark) {
        case PlotMark::line:
          line += (line.empty() ? "" : " ") + px(x) + "," + px(y);
          break;
        case PlotMark::dots:
          svg_ += "<circle class=\"" + colour_class + " fill\" cx=\"" + px(x) + "\" cy=\"" + px(y) + "\" r=\"" +
                  (series.x.size() > 60 ? "2.5" : "4") + "\">" + name + "</circle>\n";
          taken_.push_back({x - 5.0, y - 5.0, x + 5.0, y + 5.0});
          break;
        case PlotMark::bars: {
          const double half = std::max(1.0, 0.42 * (right_ - left_) / static_cast<double>(series.x.size()));
          const double base = y_.place(y_.is_log ? y_.low : std::max(y_.low, 0.0));
          const double left = std::max(left_, x - half);
          svg_ += "<rect class=\"" + colour_class + " fill\" x=\"" + px(left) + "\" y=\"" + px(std::min(y, base)) +
                  "\" width=\"" + px(std::min(right_, x + half) - left) + "\" height=\"" + px(std::abs(base - y)) +
                  "\">" + name + "</rect>\n";
          break;
        }
      }
    }
    if (!line.empty()) svg_ += "<polyline class=\"" + colour_class + " line\" points=\"" + line + "\"/>\n";
  }

  void draw_error(const PlotSeries& series, size_t i, const std::string& colour_class) {
    const double x = x_.place(series.x[i]);
    const double below = std::max(series.y[i] - series.error[i], y_.low);
    svg_ += "<path class=\"" + colour_class + " line\" d=\"M" + px(x) + " " + px(y_.place(below)) + "V" +
            px(y_.place(series.y[i] + series.error[i])) + "\"/>\n";
  }

  // No name covers a line.
  void take_line(const PlotSeries& series) {
    std::optional<std::pair<double, double>> last;
    for (size_t i = 0; i < series.x.size(); ++i) {
      if (!is_drawn(plot_, series.x[i], series.y[i])) continue;
      const double x = x_.place(series.x[i]), y = y_.place(series.y[i]);
      const auto [from_x, from_y] = last.value_or(std::pair(x, y));
      const int num_parts = 1 + static_cast<int>(std::max(std::abs(x - from_x), std::abs(y - from_y)) / 4.0);
      for (int k = 1; k <= num_parts; ++k) {
        const double share = static_cast<double>(k) / num_parts;
        const double at_x = from_x + share * (x - from_x), at_y = from_y + share * (y - from_y);
        taken_.push_back({at_x - 2.0, at_y - 2.0, at_x + 2.0, at_y + 2.0});
      }
      last = {x, y};
    }
  }

  // Where nothing else is: to the right, the left, above or below. What stands last is named first.
  void draw_names() {
    for (const PlotSeries& series : plot_.series) {
      if (series.mark == PlotMark::line) take_line(series);
    }
    for (size_t s = plot_.series.size(); s-- > 0;) {
      const PlotSeries& series = plot_.series[s];
      for (size_t i = 0; i < series.names.size(); ++i) {
        if (is_drawn(plot_, series.x[i], series.y[i])) draw_name(series, i);
      }
    }
  }

  void draw_name(const PlotSeries& series, size_t i) {
    const double x = x_.place(series.x[i]), y = y_.place(series.y[i]), size = text_width(series.names[i]);
    struct Place {
      const char* anchor;
      double x, y, left;
    };
    for (const Place& place :
         {Place{"start", x + 8.0, y + 4.0, x + 8.0}, Place{"end", x - 8.0, y + 4.0, x - 8.0 - size},
          Place{"middle", x, y - 9.0, x - size / 2.0}, Place{"middle", x, y + 19.0, x - size / 2.0},
          Place{"start", x + 5.0, y - 7.0, x + 5.0}, Place{"end", x - 5.0, y + 17.0, x - 5.0 - size},
          Place{"start", x + 5.0, y + 17.0, x + 5.0}, Place{"end", x - 5.0, y - 7.0, x - 5.0 - size}}) {
      const Box box{place.left, place.y - kNameAscent, place.left + size, place.y + kNameDescent};
      const bool is_inside = box.left >= left_ && box.right <= width_ && box.top >= top_ && box.bottom <= bottom_;
      if (!is_inside || std::ranges::any_of(taken_, [&](const Box& other) { return other.covers(box); })) continue;
      taken_.push_back(box);
      text(place.x, place.y, place.anchor, series.names[i], " class=\"name\"");
      return;
    }
  }

  const Plot& plot_;
  std::string id_;
  double width_, height_;
  int64_t num_left_out_ = 0;  // points that have no logarithm
  double left_ = 0.0, right_ = 0.0, top_ = 0.0, bottom_ = 0.0;
  Scale x_, y_;
  std::vector<Box> taken_;
  std::string svg_;
};

void check(const Plot& plot) {
  for (const PlotSeries& series : plot.series) {
    const size_t size = series.x.size();
    if (series.y.size() == size && (series.error.empty() || series.error.size() == size) &&
        (series.names.empty() || series.names.size() == size))
      continue;
    throw std::invalid_argument("plot: '" + series.label + "' has " + std::to_string(size) + " values of x and " +
                                std::to_string(series.y.size()) + " of y, or other numbers of errors or names");
  }
}

struct Colours {
  std::string ink, soft, line, paper;
  std::array<std::string, kNumColours> series = {};
};

Colours light_colours() {
  return {"#1d1d1f",
          "#6a6a70",
          "#e2e2e6",
          "#ffffff",
          {"#0067a8", "#c24e00", "#007f5c", "#a8447f", "#7a6200", "#3d8fc4", "#6b4fa0", "#666666"}};
}

Colours dark_colours() {
  return {"#ececf0",
          "#a0a0a8",
          "#38383e",
          "#161618",
          {"#5db7f0", "#ff9a52", "#3fd0a4", "#e59ac6", "#e0c54a", "#9ad1f5", "#b8a2ec", "#b0b0b0"}};
}

std::string variables(const Colours& colours) {
  std::string text = "--ink:" + colours.ink + ";--soft:" + colours.soft + ";--line:" + colours.line +
                     ";--paper:" + colours.paper + ";";
  for (size_t i = 0; i < kNumColours; ++i) text += "--c" + std::to_string(i) + ":" + colours.series[i] + ";";
  return text;
}

// Rules of CSS for pictures in these colours.
std::string rules(const Colours& colours) {
  std::string text = ".plot{max-width:100%;height:auto;font:13px sans-serif}.plot text{fill:" + colours.ink +
                     "}.plot .grid{stroke:" + colours.line + ";fill:none}.plot .axis{stroke:" + colours.soft +
                     ";fill:none}.plot .mark{stroke:" + colours.soft +
                     ";stroke-dasharray:4 4}.plot .line{fill:none;stroke-width:2}.plot .name{font-size:12px}"
                     ".plot .title{font-size:15px;font-weight:600}.paper{fill:" +
                     colours.paper + "}\n";
  for (size_t i = 0; i < kNumColours; ++i) {
    const std::string name = ".plot .c" + std::to_string(i);
    text += name + ".fill{fill:" + colours.series[i] + "}" + name + ".line{stroke:" + colours.series[i] + "}\n";
  }
  return text;
}

}  // namespace

std::vector<double> tick_values(double low, double high, bool is_log, int most) {
  std::vector<double> ticks;
  if (is_log) {
    const double first = std::floor(std::log10(low)), last = std::ceil(std::log10(high));
    for (const std::vector<double>& factors : {std::vector{1.0, 2.0, 5.0}, std::vector{1.0, 3.0}, std::vector{1.0}}) {
      ticks.clear();
      for (double power = first; power <= last; ++power) {
        for (const double factor : factors) {
          const double tick = factor * std::pow(10.0, power);
          if (tick >= low && tick <= high) ticks.push_back(tick);
        }
      }
      if (ticks.size() >= 2 && ticks.size() <= static_cast<size_t>(most)) return ticks;
    }
    if (ticks.size() > static_cast<size_t>(most)) {  // powers of ten with gaps
      const size_t step = (ticks.size() + static_cast<size_t>(most) - 1) / static_cast<size_t>(most);
      std::vector<double> some;
      for (size_t i = 0; i < ticks.size(); i += step) some.push_back(ticks[i]);
      return some;
    }
    ticks.clear();
  }
  const double range = high - low;
  if (!(range > 0.0) || !std::isfinite(range)) return {low};
  double step = 0.0;
  for (double power = std::pow(10.0, std::floor(std::log10(range / most))); step == 0.0; power *= 10.0) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (range / (factor * power) > most - 1) continue;
      step = factor * power;
      break;
    }
  }
  for (double tick = std::ceil(low / step); tick * step <= high; ++tick) ticks.push_back(tick * step + 0.0);
  return ticks.empty() ? tick_values(low, high, false, most + 1) : ticks;
}

std::string plot_style() {
  const Colours light = light_colours(), dark = dark_colours();
  Colours names = {.ink = "var(--ink)", .soft = "var(--soft)", .line = "var(--line)", .paper = "var(--paper)"};
  for (size_t i = 0; i < kNumColours; ++i) names.series[i] = "var(--c" + std::to_string(i) + ")";
  return rules(names) + ":root{" + variables(light) + "--raised:#f5f5f7}\n@media (prefers-color-scheme:dark){:root{" +
         variables(dark) + "--raised:#222226}}\n";
}

std::string plot_svg(const Plot& plot, double width, double height) {
  check(plot);
  Picture picture(plot, width, height);
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plot\" " + picture.names() + " viewBox=\"0 0 " + px(width) +
         " " + px(height) + "\" width=\"" + px(width) + "\" height=\"" + px(height) + "\">\n" + picture.draw() +
         "</svg>\n";
}

std::string plot_document(std::span<const Plot> plots) {
  constexpr double kWidth = 720.0, kHeight = 420.0, kTitle = 30.0, kMargin = 12.0;
  if (plots.empty()) throw std::invalid_argument("a picture needs at least one plot");
  const double height = static_cast<double>(plots.size()) * kHeight;
  // No variables: programs that are no browsers know none.
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + px(kWidth) + " " + px(height) +
                    "\" width=\"" + px(kWidth) + "\" height=\"" + px(height) + "\">\n<style>\n" +
                    rules(light_colours()) + "@media (prefers-color-scheme:dark){\n" + rules(dark_colours()) +
                    "}\n</style>\n<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n";
  for (size_t i = 0; i < plots.size(); ++i) {
    check(plots[i]);
    Picture picture(plots[i], kWidth - 2.0 * kMargin, kHeight - kTitle - kMargin);
    const double top = static_cast<double>(i) * kHeight;
    svg += "<g class=\"plot\" transform=\"translate(" + px(kMargin) + " " + px(top + kTitle) + ")\" " +
           picture.names() + ">\n" + picture.draw() + "<text class=\"title\" x=\"4.0\" y=\"-8.0\">" +
           xml_text(plots[i].title) + "</text>\n</g>\n";
  }
  return svg + "</svg>\n";
}

std::string plot_figure(const Plot& plot) {
  return "<figure>\n<figcaption>" + xml_text(plot.title) + "</figcaption>\n<div class=\"wide\">" +
         plot_svg(plot, 960.0, 380.0) + "</div>\n<div class=\"narrow\">" + plot_svg(plot, 360.0, 300.0) +
         "</div>\n</figure>\n";
}

}  // namespace pare::quant
