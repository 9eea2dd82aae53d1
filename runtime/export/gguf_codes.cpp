#include "runtime/export/gguf_codes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <variant>

namespace pare::runtime {
namespace {

constexpr int64_t kBlock = 32;

// Returns the grid of a type whose blocks hold integers; null for another.
const GgufGrid* grid_of_integers(GgufType type) {
  const GgufGrid* const grid = find_gguf_grid(type);
  return grid != nullptr && grid->has_integers() ? grid : nullptr;
}

void put_mxfp4(uint8_t exponent, const uint8_t* codes, std::span<std::byte> out) {
  out[0] = static_cast<std::byte>(exponent);
  for (size_t j = 0; j < kBlock / 2; ++j) {
    out[1 + j] = static_cast<std::byte>((codes[j] & 15) | (codes[j + kBlock / 2] & 15) << 4);
  }
}

// Finds the exponent with which each number of a block is a value of E2M1, which has magnitudes from 0.5 to 6. Returns
// whether there is one.
bool find_mxfp4(std::span<const float> x, uint8_t& exponent, std::array<uint8_t, kBlock>& codes) {
  float largest = 0.0f;
  for (const float value : x) largest = std::max(largest, std::abs(value));
  codes.fill(0);
  exponent = 0;
  if (largest == 0.0f) return true;
  const int power = std::ilogb(largest);
  for (int e = power - 2; e <= power + 1; ++e) {
    if (e < -127 || e > 127) continue;
    bool fits = true;
    for (size_t i = 0; i < kBlock && fits; ++i) {
      const float value = std::ldexp(std::abs(x[i]), -e);
      const auto found = std::find(kMxfp4Code.values.begin(), kMxfp4Code.values.begin() + 8, value);
      fits = found != kMxfp4Code.values.begin() + 8;
      codes[i] = static_cast<uint8_t>((found - kMxfp4Code.values.begin()) | (std::signbit(x[i]) ? 8 : 0));
    }
    exponent = static_cast<uint8_t>(e + 127);
    if (fits) return true;
  }
  return false;
}

}  // namespace

std::span<const GgufType> code_types() {
  static constexpr GgufType kTypes[] = {GgufType::MXFP4, GgufType::Q4_0, GgufType::Q4_1,
                                        GgufType::Q5_0,  GgufType::Q5_1, GgufType::Q8_0};
  return kTypes;
}

GgufTranscoder::GgufTranscoder(const LinearWeights& linear, GgufType type) : type_(type) {
  if (!linear.outlier_weight_OJ.empty() || linear.num_in() % kBlock != 0) return;
  weight_ = std::get_if<QuantizedWeight>(&linear.weight);
  if (weight_ == nullptr && type == GgufType::MXFP4) dense_ = &linear;
  holds_codes_ = dense_ != nullptr ? fits_dense() : weight_ != nullptr && fits();
}

bool GgufTranscoder::fits_dense() const {
  std::vector<float> row(static_cast<size_t>(dense_->num_in()));
  std::array<uint8_t, kBlock> codes;
  uint8_t exponent = 0;
  for (int64_t o = 0; o < dense_->num_out(); ++o) {
    weight_rows(*dense_, o, 1, row);
    for (size_t begin = 0; begin < row.size(); begin += kBlock) {
      if (!find_mxfp4(std::span(row).subspan(begin, kBlock), exponent, codes)) return false;
    }
  }
  return true;
}

bool GgufTranscoder::fits() const {
  if (type_ == GgufType::MXFP4) return weight_->code == &kMxfp4Code && weight_->group_of_I.empty();
  const GgufGrid* const grid = grid_of_integers(type_);
  if (grid == nullptr || !weight_->code->is_integer()) return false;
  // The columns of a block must share a scale.
  for (int64_t begin = 0; begin < weight_->num_in; begin += kBlock) {
    for (int64_t i = begin + 1; i < begin + kBlock; ++i) {
      if (weight_->group(i) != weight_->group(begin)) return false;
    }
  }
  if ((grid->has_minimum || weight_->symmetric) && weight_->bits <= grid->bits) return true;
  // Codes of more bits may be few enough, as those that were read from 5 bits are.
  for (int64_t o = 0; o < weight_->num_out; ++o) {
    for (int64_t i = 0; i < weight_->num_in; ++i) {
      const int held = held_code(*grid, o, i);
      if (held < 0 || held >= grid->num_levels()) return false;
    }
  }
  return true;
}

// A minimum holds the zero. Without one, the grid subtracts the same from every code.
int GgufTranscoder::held_code(const GgufGrid& grid, int64_t row, int64_t column) const {
  const int code = weight_->codes_OI[static_cast<size_t>(row * weight_->num_in + column)];
  return grid.has_minimum ? code : code - weight_->zero(row, weight_->group(column)) + grid.offset;
}

void GgufTranscoder::write_block(int64_t row, int64_t block, std::span<std::byte> out) const {
  const int64_t begin = block * kBlock, group = weight_->group(begin);
  const float scale = weight_->scales_OG[static_cast<size_t>(row * weight_->num_groups() + group)];
  if (type_ == GgufType::MXFP4) {
    put_mxfp4(float_to_e8m0(scale), weight_->codes_OI.data() + row * weight_->num_in + begin, out);
    return;
  }
  const GgufGrid& grid = *grid_of_integers(type_);
  GgufParts made;
  made.scale = scale;
  if (grid.has_minimum) made.minimum = -static_cast<float>(weight_->zero(row, group)) * scale;
  for (int64_t j = 0; j < kBlock; ++j) {
    made.codes[static_cast<size_t>(j)] = static_cast<uint8_t>(held_code(grid, row, begin + j));
  }
  put_together(grid, made, out);
}

void GgufTranscoder::write_row(int64_t row, std::span<std::byte> blocks) const {
  const int64_t num_blocks = (dense_ != nullptr ? dense_->num_in() : weight_->num_in) / kBlock;
  const size_t size = blocks.size() / static_cast<size_t>(num_blocks);
  if (dense_ != nullptr) {
    std::vector<float> x(static_cast<size_t>(dense_->num_in()));
    weight_rows(*dense_, row, 1, x);
    std::array<uint8_t, kBlock> codes;
    uint8_t exponent = 0;
    for (int64_t b = 0; b < num_blocks; ++b) {
      find_mxfp4(std::span(x).subspan(static_cast<size_t>(b * kBlock), kBlock), exponent, codes);
      put_mxfp4(exponent, codes.data(), blocks.subspan(static_cast<size_t>(b) * size, size));
    }
    return;
  }
  for (int64_t b = 0; b < num_blocks; ++b) write_block(row, b, blocks.subspan(static_cast<size_t>(b) * size, size));
}

}  // namespace pare::runtime
