#include "quant/pictures/picture_text.h"

#include <cfloat>
#include <charconv>
#include <stdexcept>

namespace pare::quant {
namespace {

// The buffer holds a sign, the digits before the point, the point and the decimals.
std::string text_of(double value, std::chars_format format, int precision) {
  std::string text(static_cast<size_t>(DBL_MAX_10_EXP + 3 + precision), '\0');
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value, format, precision);
  if (error != std::errc()) throw std::logic_error("a number has more digits than a double can have");
  text.resize(static_cast<size_t>(end - text.data()));
  return text;
}

}  // namespace

std::string fixed_digits(double value, int num_decimals) {
  return text_of(value, std::chars_format::fixed, num_decimals);
}

std::string short_digits(double value, int num_digits) {
  return text_of(value, std::chars_format::general, num_digits);
}

std::string xml_text(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else if (c == '"') {
      result += "&quot;";
    } else if (static_cast<unsigned char>(c) >= 0x20) {
      result += c;
    }
  }
  return result;
}

}  // namespace pare::quant
