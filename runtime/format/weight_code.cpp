#include "runtime/format/weight_code.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "runtime/format/input_format.h"

namespace pare::runtime {
namespace {

constexpr std::array kIntegerWidths = {2, 3, 4, 8};
constexpr std::array kEightBits = {8};
constexpr std::array kFourBits = {4};

// E2M1 of the OCP Microscaling Formats Specification 1.0, section 5.3.3: a sign, two bits of exponent with bias 1 and
// one of mantissa.
constexpr std::array<float, 16> kE2m1 = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                         -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// The values of the paper's appendix E.
constexpr std::array<float, 16> kNf4 = {-1.0f,
                                        -0.6961928009986877f,
                                        -0.5250730514526367f,
                                        -0.39491748809814453f,
                                        -0.28444138169288635f,
                                        -0.18477343022823334f,
                                        -0.09105003625154495f,
                                        0.0f,
                                        0.07958029955625534f,
                                        0.16093020141124725f,
                                        0.24611230194568634f,
                                        0.33791524171829224f,
                                        0.44070982933044434f,
                                        0.5626170039176941f,
                                        0.7229568362236023f,
                                        1.0f};

std::vector<const WeightCode*>& table() {
  static std::vector<const WeightCode*> rows = [] {
    std::vector<const WeightCode*> all = {&kIntegerCode, &kFp8Code, &kNvfp4Code, &kMxfp4Code, &kNf4Code};
    for (const WeightCode& code : block_codes()) all.push_back(&code);
    return all;
  }();
  return rows;
}

[[noreturn]] void refuse(const WeightCode& code, const std::string& what) {
  throw std::invalid_argument("register_weight_code: '" + std::string(code.name) + "': " + what);
}

}  // namespace

bool WeightCode::has_width(int bits) const {
  return std::find(widths.begin(), widths.end(), bits) != widths.end();
}

float WeightCode::value(uint8_t code) const {
  switch (numbers) {
    case CodeNumbers::integers:
      return static_cast<float>(code);
    case CodeNumbers::e4m3:
      return fp8_to_float(code);
    case CodeNumbers::blocks:
      return 0.0f;
    case CodeNumbers::table:
      break;
  }
  return values[code];
}

uint8_t WeightCode::zero_code(int bits) const {
  if (is_integer()) return static_cast<uint8_t>(1 << (bits - 1));
  if (numbers == CodeNumbers::e4m3 || is_blocks()) return 0;
  return static_cast<uint8_t>(std::find(values.begin(), values.end(), 0.0f) - values.begin());
}

float WeightCode::largest() const {
  if (numbers == CodeNumbers::e4m3) return kLargestFp8;
  float largest = 0.0f;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

constexpr WeightCode kIntegerCode{.name = "int", .numbers = CodeNumbers::integers, .widths = kIntegerWidths};

constexpr WeightCode kFp8Code{.name = "fp8", .numbers = CodeNumbers::e4m3, .widths = kEightBits};

constexpr WeightCode kNvfp4Code{.name = "nvfp4",
                                .widths = kFourBits,
                                .values = kE2m1,
                                .block = kNvfp4Block,
                                .scale_dtype = DType::F8_E4M3,
                                .has_tensor_scale = true};

constexpr WeightCode kMxfp4Code{
    .name = "mxfp4", .widths = kFourBits, .values = kE2m1, .block = 32, .scale_dtype = DType::F8_E8M0};

constexpr WeightCode kNf4Code{.name = "nf4", .widths = kFourBits, .values = kNf4};

std::span<const WeightCode* const> weight_codes() {
  return table();
}

const WeightCode* find_weight_code(std::string_view name) {
  const auto found =
      std::find_if(table().begin(), table().end(), [&](const WeightCode* code) { return code->name == name; });
  return found == table().end() ? nullptr : *found;
}

void register_weight_code(const WeightCode& code) {
  const WeightCode* const known = find_weight_code(code.name);
  if (known == &code) return;
  if (known != nullptr) refuse(code, "there is a code of that name already: expected another name");
  if (code.numbers != CodeNumbers::table || code.widths.size() != 1 || code.width() < 1 ||
      code.width() > kMaxTableBits) {
    refuse(code, "expected a table of one width of 1 to " + std::to_string(kMaxTableBits) + " bits");
  }
  if (code.values.size() != size_t{1} << code.width()) {
    refuse(code,
           "expected " + std::to_string(1 << code.width()) + " values, found " + std::to_string(code.values.size()));
  }
  const bool are_finite =
      std::all_of(code.values.begin(), code.values.end(), [](float value) { return std::isfinite(value); });
  if (!are_finite || code.largest() == 0.0f ||
      std::find(code.values.begin(), code.values.end(), 0.0f) == code.values.end()) {
    refuse(code, "expected finite values, a 0 and another number among them");
  }
  if (code.block < 0) refuse(code, "expected a block of at least 0 columns, found " + std::to_string(code.block));
  if (code.scale_dtype && !is_float_dtype(*code.scale_dtype) && *code.scale_dtype != DType::F8_E4M3 &&
      *code.scale_dtype != DType::F8_E8M0) {
    refuse(code, "expected scales of F32, F16, BF16, F8_E4M3 or F8_E8M0, found " +
                     std::string(dtype_name(*code.scale_dtype)));
  }
  table().push_back(&code);
}

std::string code_name(const WeightCode* code, int bits) {
  return "w" + (code == nullptr || code->is_integer() ? std::to_string(bits) : std::string(code->name));
}

std::string widths_text(const WeightCode& code) {
  std::string text;
  for (size_t i = 0; i < code.widths.size(); ++i) {
    if (i > 0) text += i + 1 == code.widths.size() ? " or " : ", ";
    text += std::to_string(code.widths[i]);
  }
  return text;
}

}  // namespace pare::runtime
