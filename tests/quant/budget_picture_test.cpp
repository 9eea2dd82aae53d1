#include "quant/pictures/budget_picture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace pare {
using namespace quant;
namespace {

BudgetPicture example() {
  BudgetPicture picture;
  picture.title = "SmolLM2 <135M> & \"budget\"";
  picture.loss_label = "predicted loss";
  picture.num_weights = 8000;
  for (int k = 0; k <= 400; ++k) {
    const int64_t size_bytes = 2000 + 35 * k;
    picture.curve.push_back({size_bytes, k == 400 ? 0.0 : 10.0 * std::pow(0.98, k), k % 8 == 0});
  }
  picture.chosen = {"4.5 bits", 4500, 10.0 * std::pow(0.98, 71)};
  picture.marks = {{"4 bits g32", 4500, 4.0}, {"8 bits", 8125, 0.4}, {"16 bits", 16000, 0.0}};
  return picture;
}

struct Element {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::string text;
};

// Reads XML's plain subset (elements, quoted attributes, text, five entities) and fails on anything unbalanced.
std::vector<Element> parse_xml(const std::string& xml) {
  std::vector<Element> elements;
  std::vector<size_t> open;
  size_t at = 0;
  const auto fail = [&](const std::string& what) { throw std::runtime_error(what + " at " + std::to_string(at)); };
  const auto check_text = [&](const std::string& text) {
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '<' || text[i] == '>') fail("bare bracket");
      if (text[i] == '&' && !std::regex_search(text.substr(i, 7), std::regex("^&(amp|lt|gt|quot|apos);")))
        fail("entity");
    }
  };
  while (at < xml.size()) {
    const size_t bracket = xml.find('<', at);
    const std::string text = xml.substr(at, bracket - at);
    check_text(text);
    if (!open.empty()) elements[open.back()].text += text;
    if (bracket == std::string::npos) break;
    at = bracket;
    size_t end = at;
    for (bool quoted = false; end < xml.size() && (quoted || xml[end] != '>'); ++end) quoted ^= xml[end] == '"';
    if (end >= xml.size()) fail("unclosed tag");
    std::string tag = xml.substr(at + 1, end - at - 1);
    at = end + 1;
    if (tag[0] == '/') {
      if (open.empty() || elements[open.back()].name != tag.substr(1)) fail("unbalanced " + tag);
      open.pop_back();
      continue;
    }
    const bool is_empty = tag.back() == '/';
    if (is_empty) tag.pop_back();
    static const std::regex kTag("^([a-z]+)((\\s+[a-zA-Z0-9:-]+=\"[^\"<]*\")*)\\s*$");
    static const std::regex kAttribute("([a-zA-Z0-9:-]+)=\"([^\"]*)\"");
    std::smatch match;
    if (!std::regex_match(tag, match, kTag)) fail("tag <" + tag + ">");
    if (open.empty() && !elements.empty()) fail("second root");
    Element element{match[1], {}, ""};
    const std::string attributes = match[2];
    for (std::sregex_iterator it(attributes.begin(), attributes.end(), kAttribute), last; it != last; ++it) {
      check_text((*it)[2]);
      if (!element.attributes.emplace((*it)[1], (*it)[2]).second) fail("attribute twice");
    }
    elements.push_back(element);
    if (!is_empty) open.push_back(elements.size() - 1);
  }
  if (!open.empty()) fail("unclosed element");
  return elements;
}

TEST(BudgetPicture, TheParserOfTheseTestsFindsPlantedFaults) {
  EXPECT_EQ(parse_xml("<a b=\"1\"><c/>x &amp; y</a>").size(), 2u);
  for (const char* bad : {"<a>", "<a></b>", "<a/><b/>", "<a b=1/>", "<a>&</a>", "<a b=\"<\"/>", "<a>></a>", "<a"}) {
    EXPECT_THROW(parse_xml(bad), std::runtime_error) << bad;
  }
}

std::string document(const BudgetPicture& picture) {
  const Plot plot = budget_plot(picture);
  return plot_document({&plot, 1});
}

TEST(BudgetPicture, IsWellFormedWithEverythingInsideThePicture) {
  const std::vector<Element> elements = parse_xml(document(example()));
  ASSERT_EQ(elements[0].name, "svg");
  int num_circles = 0, num_line_points = 0, num_grid_lines = 0;
  std::string texts;
  const auto expect_inside = [&](double x, double y) {
    EXPECT_TRUE(x >= 0 && x <= 720 - 2 * 12 && y >= -30 && y <= 420 - 30) << x << ", " << y;
  };
  for (const Element& element : elements) {
    const auto value = [&](const char* name) { return std::stod(element.attributes.at(name)); };
    if (element.name == "circle") {
      ++num_circles;
      expect_inside(value("cx"), value("cy"));
    } else if (element.name == "path") {
      num_grid_lines += element.attributes.at("class") == "grid";
    } else if (element.name == "text") {
      texts += element.text + "\n";
      expect_inside(value("x"), value("y"));
    } else if (element.name == "polyline") {
      std::istringstream points(element.attributes.at("points"));
      double x, y, last_x = -1.0, last_y = -1.0;
      for (char comma; points >> x >> comma >> y; ++num_line_points) {
        expect_inside(x, y);
        EXPECT_GE(x, last_x);  // the curve falls to the right, and y grows downwards on the page
        EXPECT_GE(y, last_y);
        last_x = x;
        last_y = y;
      }
    }
  }
  EXPECT_EQ(num_circles, 3);  // the chosen point, and two marks with a loss
  EXPECT_EQ(num_line_points, 400);
  EXPECT_GT(num_grid_lines, 10);
  for (const char* expected : {"SmolLM2 &lt;135M&gt; &amp; &quot;budget&quot;", "predicted loss", "bits per weight",
                               "4.5 bits", "4 bits g32", "8 bits", "0 or less: 2"}) {
    EXPECT_NE(texts.find(expected), std::string::npos) << expected << texts;
  }
}

// Computes the places of points from the axes' own labels: 4 bits lie between the ticks 2 and 6, linearly, and so on.
TEST(BudgetPicture, PointsLieWhereTheTicksSay) {
  const std::vector<Element> elements = parse_xml(document(example()));
  std::map<double, double> x_of_bits, y_of_loss;
  for (const Element& element : elements) {
    if (element.name != "text") continue;
    char* end = nullptr;
    const double value = std::strtod(element.text.c_str(), &end);
    if (element.text.empty() || *end != '\0') continue;
    const bool is_loss = element.attributes.at("text-anchor") == "end";
    (is_loss ? y_of_loss : x_of_bits)[value] =
        std::stod(element.attributes.at(is_loss ? "y" : "x")) - (is_loss ? 4.0 : 0.0);
  }
  ASSERT_GE(x_of_bits.size(), 3u);
  ASSERT_GE(y_of_loss.size(), 3u);
  const auto first_x = *x_of_bits.begin(), last_x = *x_of_bits.rbegin();
  const auto first_y = *y_of_loss.begin(), last_y = *y_of_loss.rbegin();
  const auto expected_x = [&](double bits) {
    return first_x.second + (bits - first_x.first) / (last_x.first - first_x.first) * (last_x.second - first_x.second);
  };
  const auto expected_y = [&](double loss) {
    return first_y.second +
           std::log(loss / first_y.first) / std::log(last_y.first / first_y.first) * (last_y.second - first_y.second);
  };
  const Element* last = nullptr;  // the chosen point is drawn last
  for (const Element& element : elements) {
    if (element.name == "circle") last = &element;
  }
  ASSERT_NE(last, nullptr);
  EXPECT_NEAR(std::stod(last->attributes.at("cx")), expected_x(4.5), 0.2);  // coordinates have one digit
  EXPECT_NEAR(std::stod(last->attributes.at("cy")), expected_y(10.0 * std::pow(0.98, 71)), 0.2);
}

TEST(BudgetPicture, OfACrowdedCurveOnePointInAThousandthIsKept) {
  BudgetPicture picture = example();
  picture.curve.clear();
  for (int k = 0; k <= 100000; ++k) picture.curve.push_back({2000 + k, 1.0 + 100000.0 - k, false});
  const PlotSeries curve = budget_plot(picture).series[0];
  EXPECT_LE(curve.x.size(), 1002u);
  EXPECT_GE(curve.x.size(), 990u);
  EXPECT_EQ(curve.y.front(), 100001.0);
  EXPECT_EQ(curve.y.back(), 1.0);
}

TEST(BudgetPicture, DrawsASinglePointAndNone) {
  BudgetPicture picture;
  picture.num_weights = 100;
  picture.curve = {{50, 1.0, true}};
  picture.chosen = {"only", 50, 1.0};
  EXPECT_NO_THROW(parse_xml(document(picture)));
  picture.curve[0].loss = picture.chosen.loss = 0.0;
  EXPECT_NE(document(picture).find("no value to show"), std::string::npos);
}

TEST(BudgetPicture, RefusesWhatItCannotDraw) {
  const auto refuses = [](const std::function<void(BudgetPicture&)>& spoil) {
    BudgetPicture bad = example();
    spoil(bad);
    EXPECT_THROW(budget_plot(bad), std::invalid_argument);
  };
  refuses([](BudgetPicture& bad) { bad.num_weights = 0; });
  refuses([](BudgetPicture& bad) { bad.curve.clear(); });
  refuses([](BudgetPicture& bad) { bad.curve[3].loss = std::numeric_limits<double>::quiet_NaN(); });
  refuses([](BudgetPicture& bad) { bad.marks[0].loss = -1.0; });
  refuses([](BudgetPicture& bad) { bad.chosen.size_bytes = -1; });
}

}  // namespace
}  // namespace pare
