#include "compress/report/plot.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>

#include "quant/pictures/picture_text.h"

namespace pare::compress {
namespace {

constexpr double kFontSize = 13.0;
constexpr double kCharacterWidth = 7.0;  // of that size in a sans-serif face, rounded up
constexpr double kLineHeight = 18.0;
constexpr size_t kNumColours = 8;

std::string at(double value) {
  return quant::fixed_digits(value, 1);
}

double text_width(const std::string& text) {
  const auto num_characters = std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; });  // of UTF-8
  return kCharacterWidth * static_cast<double>(num_characters);
}

// 1200, 250000, 0.05, 1e-07.
std::string tick_label(double value) {
  const bool is_whole = std::abs(value) < 1e7 && value == std::floor(value);
  return is_whole ? quant::fixed_digits(value, 0) : quant::short_digits(value, 5);
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
  Picture(const Plot& plot, double width, double height) : plot_(plot), width_(width), height_(height) {}

  std::string draw() {
    const std::string id = plot_.id + (width_ > 500.0 ? "-wide" : "-narrow");
    svg_ = "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plot\" role=\"img\" aria-labelledby=\"" + id + "-title " +
           id + "-text\" viewBox=\"0 0 " + at(width_) + " " + at(height_) + "\" width=\"" + at(width_) +
           "\" height=\"" + at(height_) + "\">\n<title id=\"" + id + "-title\">" + quant::xml_text(plot_.title) +
           "</title>\n<desc id=\"" + id + "-text\">" + quant::xml_text(plot_.description) + "</desc>\n";
    if (find_ranges()) {
      draw_legend();
      draw_axes();
      draw_mark_line();
      for (size_t s = 0; s < plot_.series.size(); ++s) draw_series(plot_.series[s], colour(s));
      if (plot_.names_points) draw_names();
    } else {
      text(width_ / 2.0, height_ / 2.0, "middle", "no value to show");
    }
    return svg_ + "</svg>\n";
  }

 private:
  static std::string colour(size_t series) { return "c" + std::to_string(series % kNumColours); }

  void text(double x, double y, const char* anchor, const std::string& words, const std::string& more = {}) {
    svg_ += "<text x=\"" + at(x) + "\" y=\"" + at(y) + "\" text-anchor=\"" + anchor + "\"" + more + ">" +
            quant::xml_text(words) + "</text>\n";
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
    widen(x_, /*from_zero=*/false);
    widen(y_, /*from_zero=*/has_bars());
    top_ = kLineHeight + 6.0;
    bottom_ = height_ - 2.0 * kLineHeight - 10.0;
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
      svg_ += "<rect class=\"" + colour(s) + " fill\" x=\"" + at(x) + "\" y=\"" + at(y - 10.0) +
              "\" width=\"12\" height=\"12\"/>\n";
      text(x + 18.0, y, "start", plot_.series[s].label);
      x += size;
    }
    top_ = y + kLineHeight + 10.0;
  }

  void draw_axes() {
    y_.from = bottom_;
    y_.to = top_ + 4.0;
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
      bool fits = true;
      for (size_t i = 1; i < across.size(); ++i) {
        const double gap = x_.place(across[i]) - x_.place(across[i - 1]);
        fits = fits && gap > (text_width(tick_label(across[i])) + text_width(tick_label(across[i - 1]))) / 2.0 + 8.0;
      }
      if (fits) break;
    }
    for (const double tick : ups) {
      const std::string y = at(y_.place(tick));
      svg_ += "<path class=\"grid\" d=\"M" + at(left_) + " " + y + "H" + at(right_) + "\"/>\n";
      text(left_ - 6.0, y_.place(tick) + 4.0, "end", tick_label(tick));
    }
    for (const double tick : across) {
      const std::string label = tick_label(tick);
      const double x = x_.place(tick);
      svg_ += "<path class=\"grid\" d=\"M" + at(x) + " " + at(bottom_) + "v5\"/>\n";
      const double half = text_width(label) / 2.0;
      text(std::clamp(x, half, width_ - half), bottom_ + kLineHeight, "middle", label);
    }
    svg_ += "<path class=\"axis\" d=\"M" + at(left_) + " " + at(top_) + "V" + at(bottom_) + "H" + at(right_) + "\"/>\n";
    text((left_ + right_) / 2.0, bottom_ + 2.0 * kLineHeight, "middle", plot_.x.label);
    text(4.0, top_ - 6.0, "start", plot_.y.label, " class=\"label\"");
  }

  void draw_mark_line() {
    if (!plot_.mark_x || !(*plot_.mark_x >= x_.low && *plot_.mark_x <= x_.high)) return;
    const double x = x_.place(*plot_.mark_x);
    svg_ += "<path class=\"mark\" d=\"M" + at(x) + " " + at(top_) + "V" + at(bottom_) + "\"/>\n";
    const bool is_right = x > (left_ + right_) / 2.0;
    text(is_right ? x - 6.0 : x + 6.0, top_ + 12.0, is_right ? "end" : "start", plot_.mark_label);
  }

  void draw_series(const PlotSeries& series, const std::string& colour_class) {
    std::string line;
    for (size_t i = 0; i < series.x.size(); ++i) {
      if (!is_drawn(plot_, series.x[i], series.y[i])) continue;
      const double x = x_.place(series.x[i]), y = y_.place(series.y[i]);
      const std::string name = series.names.empty() ? "" : "<title>" + quant::xml_text(series.names[i]) + "</title>";
      if (!series.error.empty() && std::isfinite(series.error[i]) && series.error[i] > 0.0)
        draw_error(series, i, colour_class);
      switch (series.mark) {
        case PlotMark::line:
          line += (line.empty() ? "" : " ") + at(x) + "," + at(y);
          break;
        case PlotMark::dots:
          svg_ += "<circle class=\"" + colour_class + " fill\" cx=\"" + at(x) + "\" cy=\"" + at(y) + "\" r=\"" +
                  (series.x.size() > 60 ? "2.5" : "4") + "\">" + name + "</circle>\n";
          taken_.push_back({x - 5.0, y - 5.0, x + 5.0, y + 5.0});
          break;
        case PlotMark::bars: {
          const double half = std::max(1.0, 0.42 * (right_ - left_) / static_cast<double>(series.x.size()));
          const double base = y_.place(y_.is_log ? y_.low : std::max(y_.low, 0.0));
          const double left = std::max(left_, x - half);
          svg_ += "<rect class=\"" + colour_class + " fill\" x=\"" + at(left) + "\" y=\"" + at(std::min(y, base)) +
                  "\" width=\"" + at(std::min(right_, x + half) - left) + "\" height=\"" + at(std::abs(base - y)) +
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
    svg_ += "<path class=\"" + colour_class + " line\" d=\"M" + at(x) + " " + at(y_.place(below)) + "V" +
            at(y_.place(series.y[i] + series.error[i])) + "\"/>\n";
  }

  // Where neither a dot nor another name is: to the right, the left, above or below.
  void draw_names() {
    for_each_point(plot_, [&](const PlotSeries& series, size_t i) {
      if (series.names.empty()) return;
      const double x = x_.place(series.x[i]), y = y_.place(series.y[i]), size = text_width(series.names[i]);
      struct Place {
        const char* anchor;
        double x, y, left;
      };
      for (const Place& place :
           {Place{"start", x + 8.0, y + 4.0, x + 8.0}, Place{"end", x - 8.0, y + 4.0, x - 8.0 - size},
            Place{"middle", x, y - 9.0, x - size / 2.0}, Place{"middle", x, y + 19.0, x - size / 2.0}}) {
        const Box box{place.left, place.y - kFontSize, place.left + size, place.y + 4.0};
        const bool is_inside = box.left >= left_ && box.right <= width_ && box.top >= top_ && box.bottom <= bottom_;
        if (!is_inside || std::ranges::any_of(taken_, [&](const Box& other) { return other.covers(box); })) continue;
        taken_.push_back(box);
        text(place.x, place.y, place.anchor, series.names[i], " class=\"name\"");
        return;
      }
    });
  }

  const Plot& plot_;
  double width_, height_;
  double left_ = 0.0, right_ = 0.0, top_ = 0.0, bottom_ = 0.0;
  Scale x_, y_;
  std::vector<Box> taken_;
  std::string svg_;
};

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
  std::string style =
      ".plot{max-width:100%;height:auto;font:13px sans-serif}.plot text{fill:var(--ink)}"
      ".plot .grid{stroke:var(--line);fill:none}.plot .axis{stroke:var(--soft);fill:none}"
      ".plot .mark{stroke:var(--soft);stroke-dasharray:4 4}.plot .line{fill:none;stroke-width:2}"
      ".plot .name{font-size:12px}\n";
  constexpr const char* kLight[kNumColours] = {"#0067a8", "#c24e00", "#007f5c", "#a8447f",
                                               "#7a6200", "#3d8fc4", "#6b4fa0", "#666666"};
  constexpr const char* kDark[kNumColours] = {"#5db7f0", "#ff9a52", "#3fd0a4", "#e59ac6",
                                              "#e0c54a", "#9ad1f5", "#b8a2ec", "#b0b0b0"};
  std::string dark;
  for (size_t i = 0; i < kNumColours; ++i) {
    const std::string name = "--c" + std::to_string(i);
    style += ".plot .c" + std::to_string(i) + ".fill{fill:var(" + name + ")}.plot .c" + std::to_string(i) +
             ".line{stroke:var(" + name + ")}\n";
    dark += name + ":" + kDark[i] + ";";
  }
  style += ":root{--ink:#1d1d1f;--soft:#6a6a70;--line:#e2e2e6;--paper:#ffffff;--raised:#f5f5f7;";
  for (size_t i = 0; i < kNumColours; ++i) style += "--c" + std::to_string(i) + ":" + kLight[i] + ";";
  return style + "}\n@media (prefers-color-scheme:dark){:root{--ink:#ececf0;--soft:#a0a0a8;--line:#38383e;" +
         "--paper:#161618;--raised:#222226;" + dark + "}}\n";
}

std::string plot_svg(const Plot& plot, double width, double height) {
  for (const PlotSeries& series : plot.series) {
    const size_t size = series.x.size();
    if (series.y.size() == size && (series.error.empty() || series.error.size() == size) &&
        (series.names.empty() || series.names.size() == size))
      continue;
    throw std::invalid_argument("plot: '" + series.label + "' has " + std::to_string(size) + " values of x and " +
                                std::to_string(series.y.size()) + " of y, or other numbers of errors or names");
  }
  return Picture(plot, width, height).draw();
}

std::string plot_figure(const Plot& plot) {
  return "<figure>\n<figcaption>" + quant::xml_text(plot.title) + "</figcaption>\n<div class=\"wide\">" +
         plot_svg(plot, 960.0, 380.0) + "</div>\n<div class=\"narrow\">" + plot_svg(plot, 360.0, 300.0) +
         "</div>\n</figure>\n";
}

}  // namespace pare::compress
