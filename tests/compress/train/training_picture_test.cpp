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

TEST(TrainingPicture, IsWellFormedAndHasEveryPoint) {
  const auto point = [](int64_t step, std::optional<double> loss, double perplexity,
                        std::optional<double> held_out = {}) {
    return TrainingPoint{.step = step,
                         .num_tokens = 10 * step,
                         .loss = loss,
                         .validation_perplexity = perplexity,
                         .validation_loss = held_out};
  };
  const std::string svg = training_picture({point(0, {}, 100.0), point(1, 3.0, 10.0), point(2, 2.0, 31.6)}, 1);
  expect_well_formed(svg);
  EXPECT_TRUE(svg.starts_with("<svg "));
  std::vector<std::string> lines = polylines(svg);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(std::count(lines[0].begin(), lines[0].end(), ','), 2) << "the loss has no point before the first step";
  EXPECT_EQ(std::count(lines[1].begin(), lines[1].end(), ','), 3);
  // The largest perplexity is at the top left, the smallest at the bottom.
  EXPECT_TRUE(lines[1].starts_with("80.00,40.00 360.00,420.00 640.00,")) << lines[1];
  // The axis is labelled, and the step that is kept is marked at its perplexity.
  EXPECT_NE(svg.find("logarithmic"), std::string::npos);
  EXPECT_NE(svg.find("kept: step 1"), std::string::npos);
  EXPECT_NE(svg.find("cx=\"360.00\" cy=\"420.00\""), std::string::npos) << svg;
  // The loss of held-out windows is on the loss axis: 1 is its lowest value, 3 its highest.
  lines = polylines(training_picture({point(0, {}, 100.0, 1.0), point(1, 3.0, 10.0, 2.0)}, 0));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], "80.00,420.00 640.00,230.00");
  // The curves have one point, equal points, and a model that was destroyed.
  expect_well_formed(training_picture({point(0, {}, 5.0)}, 0));
  expect_well_formed(training_picture({point(0, {}, 5.0), point(1, 2.0, 5.0), point(2, 2.0, 5.0)}, 2));
  for (const double huge : {1e61, 1e65, 1e300, std::numeric_limits<double>::max()}) {
    const std::string destroyed = training_picture({point(0, {}, 5.0), point(1, 2.0, huge)}, 0);
    expect_well_formed(destroyed);
    EXPECT_TRUE(
        std::all_of(destroyed.begin(), destroyed.end(), [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); }));
    EXPECT_LT(destroyed.size(), 4000u);
  }
  EXPECT_THROW(training_picture({}, 0), std::invalid_argument);
  EXPECT_THROW(training_picture({point(0, {}, 5.0)}, 1), std::invalid_argument);
  EXPECT_THROW(training_picture({point(0, {}, 0.0)}, 0), std::invalid_argument);
  EXPECT_THROW(training_picture({point(0, {}, std::nan(""))}, 0), std::invalid_argument);
}

}  // namespace
}  // namespace pare
