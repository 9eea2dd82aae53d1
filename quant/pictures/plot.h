// Pictures of measurements as SVG: axes with ticks, lines, dots and bars, error bars, labels that do not cover one
// another. Colours follow the reader's choice of light or dark. The same input gives the same bytes in every locale.
// Pages of HTML and pictures that are files of their own are all drawn here.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pare::quant {

enum class PlotMark { line, dots, bars };

struct PlotSeries {
  std::string label;  // in the legend, which a plot of one series has not
  PlotMark mark = PlotMark::dots;
  std::vector<double> x, y;
  std::vector<double> error = {};       // of y, above and below; empty: none
  std::vector<std::string> names = {};  // of the points, shown under the pointer; empty: none
};

struct PlotAxis {
  std::string label;
  bool is_log = false;    // values that are not positive are left out
  bool is_whole = false;  // a count: there is no tick between whole numbers
};

struct Plot {
  std::string id;           // a word of ours, unique in the page: ids begin with it
  std::string title;        // read aloud, and above the picture
  std::string description;  // read aloud: what can be seen
  PlotAxis x, y;
  std::vector<PlotSeries> series;
  std::optional<double> mark_x = {};  // a dashed line, with words
  std::string mark_label = {};
  bool names_points = false;  // the names of points stand beside them where there is room
};

// Returns the colours and sizes that pictures in a page need: rules of CSS.
std::string plot_style();

// Returns an SVG element of that many CSS pixels, for a page with plot_style. Values that are not finite are left out.
// So are values that have no logarithm, and the picture counts them. A plot without any value says so. Throws
// std::invalid_argument where the lengths of x, y, error and names differ.
std::string plot_svg(const Plot& plot, double width, double height);

// Returns the picture with its title for an HTML page: in two sizes, of which the page shows the one that fits.
std::string plot_figure(const Plot& plot);

// Returns an SVG document with the plots and their titles below one another, each 720 x 420. It needs no page. Throws
// as plot_svg does, and for no plot.
std::string plot_document(std::span<const Plot> plots);

// Returns the values of ticks in [low, high], at most `most` (of two or more), or one more where none of those lies in
// it: multiples of 1, 2 or 5 times a power of ten. On a logarithmic axis they are powers of ten, with 2 and 5 times
// these where they fit, else as on a linear one.
std::vector<double> tick_values(double low, double high, bool is_log, int most);

}  // namespace pare::quant
