#include "runtime/format/stored_widths.h"

#include <algorithm>

namespace pare::runtime {
namespace {

constexpr int kLeast = 2, kMost = 8;

}  // namespace

bool is_stored_width(int bits) {
  return bits >= kLeast && bits <= kMost;
}

std::string stored_widths_text() {
  std::string text = std::to_string(kLeast);
  for (int bits = kLeast + 1; bits <= kMost; ++bits) text += (bits == kMost ? " or " : ", ") + std::to_string(bits);
  return text;
}

int multiplied_width(int bits) {
  while (!kIntegerCode.has_width(bits)) ++bits;
  return bits;
}

void widen_codes(QuantizedWeight& weight, int bits) {
  if (weight.bits == bits) return;
  const int shift = weight.symmetric ? weight.code->zero_code(bits) - weight.code->zero_code(weight.bits) : 0;
  for (uint8_t& code : weight.codes_OI) code = static_cast<uint8_t>(code + shift);
  weight.bits = bits;
}

}  // namespace pare::runtime
