#include "quant/pictures/picture_text.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <vector>

namespace pare {
using namespace quant;
namespace {

std::string printed(const char* format, int precision, double value) {
  std::vector<char> text(2000);
  std::snprintf(text.data(), text.size(), format, precision, value);
  return text.data();
}

TEST(PictureText, NumbersOfAnySizeAreWhole) {
  for (const double size :
       {0.0, DBL_TRUE_MIN, 1e-7, 0.125, 2.0 / 3.0, 1.0, 999.995, 1e22, 9.9e59, 1e61, 1e64, 1e300, DBL_MAX}) {
    for (const double value : {size, -size}) {
      for (const int precision : {0, 1, 2, 17, 400}) {
        EXPECT_EQ(fixed_digits(value, precision), printed("%.*f", precision, value));
        EXPECT_EQ(short_digits(value, precision), printed("%.*g", precision, value));
      }
    }
  }
  EXPECT_EQ(short_digits(1.23456e61, 3), "1.23e+61");
}

TEST(PictureText, TextsAreXml) {
  EXPECT_EQ(xml_text("a <b> & \"c\"\n\x01 d"), "a &lt;b&gt; &amp; &quot;c&quot; d");
}

}  // namespace
}  // namespace pare
