// Checks the curve of a training as a table and as a picture.
#include "compress/train/training_picture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "compress/train/training_state.h"

namespace pare {
using namespace compress;
namespace {

// A comma follows each value but the last of a line. Every number must read back as it was.
TEST(TrainingCurve, CsvReadsBack) {
  const std::vector<TrainingPoint> curve = {{0, 0, {}, 12.345678901234567, 0.1, {}, 0.0},
                                            {7, 7168, 1.0 / 3.0, 1e-7, {}, -1e-9, 1e-4},
                                            {1000000, 1LL << 40, 2.5, 1e300, {}, {}, 0.1}};
  std::istringstream lines(curve_csv(curve));
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(line, "step,tokens,loss,validation_perplexity,validation_loss,validation_kl,learning_rate");
  for (const TrainingPoint& point : curve) {
    ASSERT_TRUE(std::getline(lines, line));
    std::istringstream cells(line);
    std::vector<std::optional<double>> values;
    for (std::string cell; std::getline(cells, cell, ',');) {
      if (cell.empty()) {  // this was not measured
        values.emplace_back();
        continue;
      }
      double value = 0.0;
      const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
      EXPECT_TRUE(error == std::errc() && end == cell.data() + cell.size()) << cell;
      values.emplace_back(value);
    }
    EXPECT_EQ(values,
              (std::vector<std::optional<double>>{
                  static_cast<double>(point.step), static_cast<double>(point.num_tokens), point.loss,
                  point.validation_perplexity, point.validation_loss, point.validation_kl, point.learning_rate}));
  }
  EXPECT_FALSE(std::getline(lines, line));
}

// Expects that every element is closed in order, attributes are quoted, and there is one root. That is enough for XML
// without entities.
void expect_well_formed(const std::string& svg) {
  std::vector<std::string> open;
  int num_roots = 0;
  for (size_t begin = svg.find('<'); begin != std::string::npos; begin = svg.find('<', begin + 1)) {
    const size_t end = svg.find('>', begin);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = svg.substr(begin + 1, end - begin - 1);
    ASSERT_EQ(std::count(tag.begin(), tag.end(), '"') % 2, 0) << tag;
    if (tag.starts_with('/')) {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(tag.substr(1), open.back());
      open.pop_back();
    } else if (!tag.ends_with('/')) {
      num_roots += open.empty();
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_EQ(num_roots, 1);
  EXPECT_EQ(svg.find('&'), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

std::vector<std::string> polylines(const std::string& svg) {
  std::vector<std::string> found;
  for (size_t at = svg.find("points=\""); at != std::string::npos; at = svg.find("points=\"", at + 1)) {
    found.push_back(svg.substr(at + 8, svg.find('"', at + 8) - at - 8));
  }
  return found;
}

std::string picture(const std::vector<TrainingPoint>& curve, int64_t kept_step) {
  return quant::plot_document(training_plots(curve, kept_step, "training"));
}

TEST(TrainingPicture, IsWellFormedAndHasEveryPoint) {
  const auto point = [](int64_t step, std::optional<double> loss, double perplexity,
                        std::optional<double> held_out = {}) {
    return TrainingPoint{.step = step,
                         .num_tokens = 10 * step,
                         .loss = loss,
                         .validation_perplexity = perplexity,
                         .validation_loss = held_out};
  };
  const std::vector<TrainingPoint> curve = {point(0, {}, 100.0), point(1, 3.0, 10.0), point(2, 2.0, 31.6)};
  const std::vector<quant::Plot> plots = training_plots(curve, 1, "training");
  ASSERT_EQ(plots.size(), 2u);
  ASSERT_EQ(plots[0].series.size(), 1u);
  EXPECT_EQ(plots[0].series[0].x, (std::vector<double>{0.0, 10.0, 20.0}));
  EXPECT_EQ(plots[0].series[0].y, (std::vector<double>{100.0, 10.0, 31.6}));
  EXPECT_TRUE(plots[0].y.is_log);
  ASSERT_EQ(plots[1].series.size(), 1u);
  EXPECT_EQ(plots[1].series[0].x, (std::vector<double>{10.0, 20.0})) << "the loss has no point before the first step";
  EXPECT_EQ(plots[1].series[0].y, (std::vector<double>{3.0, 2.0}));
  for (const quant::Plot& plot : plots) EXPECT_EQ(plot.mark_x, 10.0);
  const std::string svg = picture(curve, 1);
  expect_well_formed(svg);
  EXPECT_TRUE(svg.starts_with("<svg "));
  const std::vector<std::string> lines = polylines(svg);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(std::count(lines[0].begin(), lines[0].end(), ','), 3);
  EXPECT_EQ(std::count(lines[1].begin(), lines[1].end(), ','), 2);
  EXPECT_NE(svg.find("logarithmic"), std::string::npos);
  EXPECT_NE(svg.find("kept: step 1"), std::string::npos);
  // What was measured of held-out windows beside their perplexity stands beside the loss.
  const std::vector<quant::Plot> both = training_plots({point(0, {}, 100.0, 1.0), point(1, 3.0, 10.0, 2.0)}, 0, "t");
  ASSERT_EQ(both[1].series.size(), 2u);
  EXPECT_EQ(both[1].series[1].y, (std::vector<double>{1.0, 2.0}));
  // The curves have one point, equal points, and a model that was destroyed.
  expect_well_formed(picture({point(0, {}, 5.0)}, 0));
  expect_well_formed(picture({point(0, {}, 5.0), point(1, 2.0, 5.0), point(2, 2.0, 5.0)}, 2));
  for (const double huge : {1e61, 1e65, 1e300, std::numeric_limits<double>::max()}) {
    const std::string destroyed = picture({point(0, {}, 5.0), point(1, 2.0, huge)}, 0);
    expect_well_formed(destroyed);
    EXPECT_TRUE(
        std::all_of(destroyed.begin(), destroyed.end(), [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); }));
    EXPECT_LT(destroyed.size(), 12000u);
  }
  EXPECT_THROW(training_plots({}, 0, "t"), std::invalid_argument);
  EXPECT_THROW(training_plots({point(0, {}, 5.0)}, 1, "t"), std::invalid_argument);
  EXPECT_THROW(training_plots({point(0, {}, 0.0)}, 0, "t"), std::invalid_argument);
  EXPECT_THROW(training_plots({point(0, {}, std::nan(""))}, 0, "t"), std::invalid_argument);
}

}  // namespace
}  // namespace pare
