#include "quant/pictures/plot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/expect_error.h"

namespace pare::test {
using namespace quant;
namespace {

TEST(Plot, TicksAreRoundAndFew) {
  for (const auto& [low, high] :
       std::vector<std::pair<double, double>>{{0, 1}, {-3, 17}, {0.001, 0.0013}, {1e6, 9e9}}) {
    for (int most = 2; most <= 10; ++most) {
      const std::vector<double> ticks = tick_values(low, high, false, most);
      ASSERT_GE(ticks.size(), 1u);
      EXPECT_LE(ticks.size(), static_cast<size_t>(most) + 1);
      for (size_t i = 0; i < ticks.size(); ++i) {
        EXPECT_TRUE(ticks[i] >= low && ticks[i] <= high);
        if (i < 2) continue;
        EXPECT_NEAR(ticks[i] - ticks[i - 1], ticks[1] - ticks[0], 1e-9 * high);
      }
    }
  }
  EXPECT_EQ(tick_values(0.5, 2000, true, 4), (std::vector<double>{1, 10, 100, 1000}));
  EXPECT_EQ(tick_values(1, 10, true, 4), (std::vector<double>{1, 2, 5, 10}));
  EXPECT_EQ(tick_values(1e-9, 1e9, true, 5).size(), 5u);
  EXPECT_GE(tick_values(3.1, 3.9, true, 5).size(), 2u);
}

// Where points lie follows from the places of the ticks alone.
TEST(Plot, PointsLieWhereTheTicksSay) {
  const Plot plot{
      .id = "p",
      .title = "<&>",
      .description = "d",
      .x = {"x"},
      .y = {"y", true},
      .series = {{"s", PlotMark::dots, {0, 5, 10, 7, 3}, {1, 10, 100, std::nan(""), -1}, {0, 1, 10, 0, 0}}}};
  const std::string svg = plot_svg(plot, 600, 300);
  const auto values = [&](const std::string& before) {
    std::vector<double> found;
    for (size_t at = svg.find(before); at != std::string::npos; at = svg.find(before, at + 1)) {
      found.push_back(std::stod(svg.substr(at + before.size())));
    }
    return found;
  };
  const std::vector<double> x = values("cx=\""), y = values("cy=\"");
  ASSERT_EQ(x.size(), 3u);  // what is not finite, or has no logarithm, is left out
  EXPECT_NEAR(x[1] - x[0], x[2] - x[1], 0.21);
  EXPECT_NEAR(y[0] - y[1], y[1] - y[2], 0.21);
  EXPECT_GT(y[0], y[2]);
  EXPECT_NE(svg.find("&lt;&amp;&gt;</title>"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(plot_svg(plot, 600, 300), svg);
  EXPECT_NE(plot_svg({.id = "e", .title = "", .description = "", .x = {}, .y = {}, .series = {}}, 600, 300)
                .find("no value to show"),
            std::string::npos);
  Plot bad = plot;
  bad.series[0].y.pop_back();
  expect_error<std::invalid_argument>([&] { plot_svg(bad, 600, 300); }, {"'s'", "5", "4"});
  expect_error<std::invalid_argument>([&] { plot_document({&bad, 1}); }, {"'s'", "5", "4"});
  EXPECT_NE(svg.find("not drawn, 0 or less: 1<"), std::string::npos) << svg;
  for (const double huge : {1e61, 1e300, 1.7e308}) {
    Plot wide = plot;
    wide.series[0].y[2] = huge;
    EXPECT_EQ(plot_svg(wide, 600, 300).find("inf"), std::string::npos);
    EXPECT_LT(plot_svg(wide, 600, 300).size(), 8000u);
  }
}

TEST(Plot, CountsHaveNoTicksBetweenWholeNumbers) {
  Plot plot{.id = "p", .title = "", .description = "", .x = {.label = "x", .is_whole = true}, .y = {"y"}, .series = {}};
  plot.series = {{"s", PlotMark::dots, {0, 1, 2}, {1, 1, 1}}};
  EXPECT_EQ(plot_svg(plot, 900, 300).find(">0.5<"), std::string::npos);
  EXPECT_NE(plot_svg(plot, 900, 300).find(">2<"), std::string::npos);
  plot.x.is_whole = false;
  EXPECT_NE(plot_svg(plot, 900, 300).find(">0.5<"), std::string::npos);
}

// A document brings its own colours for light and dark, and fetches nothing.
TEST(Plot, ADocumentStandsAlone) {
  Plot first{.id = "a", .title = "First & <last>", .description = "d", .x = {"x"}, .y = {"y"}, .series = {}};
  first.series = {{"s", PlotMark::line, {0, 1}, {2, 3}}, {"t", PlotMark::dots, {0, 1}, {3, 2}}};
  Plot second = first;
  second.id = "b";
  const std::vector<Plot> plots = {first, second};
  const std::string svg = plot_document(plots);
  const auto count = [&](const std::string& word) {
    size_t num = 0;
    for (size_t at = svg.find(word); at != std::string::npos; at = svg.find(word, at + 1)) ++num;
    return num;
  };
  EXPECT_EQ(count("<svg"), 1u);
  EXPECT_EQ(count("<polyline"), 2u);
  EXPECT_EQ(count("<circle"), 4u);
  EXPECT_EQ(count("First &amp; &lt;last&gt;</text>"), 2u);
  EXPECT_EQ(count("prefers-color-scheme:dark"), 1u);
  EXPECT_EQ(count("var("), 0u) << "programs that are no browsers know no variables";
  EXPECT_EQ(count("://"), 1u) << "the name of SVG itself";
  for (const char* id : {"a-wide-title", "b-wide-title", "a-wide-text", "b-wide-text"}) {
    EXPECT_EQ(count(std::string("id=\"") + id + "\""), 1u) << id;
  }
  EXPECT_EQ(plot_document(plots), svg);
  EXPECT_THROW(plot_document({}), std::invalid_argument);
}

}  // namespace
}  // namespace pare::test
