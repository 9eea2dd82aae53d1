#include "runtime/blocks/block_integers.h"

#include <cmath>
#include <numeric>

#include "runtime/format/block_bytes.h"
#include "runtime/system/interrupt.h"

namespace pare::runtime {
namespace {

std::span<const std::byte> block_at(std::span<const std::byte> row, int64_t num_blocks, int64_t b) {
  const size_t size = row.size() / static_cast<size_t>(num_blocks);
  return row.subspan(static_cast<size_t>(b) * size, size);
}

}  // namespace

int integer_bits(const GgufGrid& grid) {
  return grid.bits == 4 ? 4 : 8;
}

int integer_offset(const GgufGrid& grid) {
  return grid.has_minimum ? 1 << (integer_bits(grid) - 1) : grid.offset;
}

std::optional<IntegerScale> integer_scale(const GgufGrid& grid, std::span<const std::byte> block) {
  const GgufParts parts = take_scales(grid, block);
  const float scale = parts.scale;
  if (!std::isfinite(scale)) return std::nullopt;
  const int bits = integer_bits(grid);
  if (!grid.has_minimum) return IntegerScale{scale, 1 << (bits - 1)};
  const float minimum = parts.minimum, wanted = scale == 0.0f ? 0.0f : -minimum / scale;
  if (!(wanted >= 0.0f && wanted < static_cast<float>(1 << bits))) return std::nullopt;
  const int zero = static_cast<int>(std::rint(wanted));
  if (zero >> bits != 0 || -static_cast<float>(zero) * scale != minimum) return std::nullopt;
  return IntegerScale{scale, zero};
}

std::optional<IntegerForm> find_integer_form(const GgufGrid* grid, int64_t num_rows, int64_t num_in,
                                             const std::function<std::span<const std::byte>(int64_t)>& row_of) {
  if (grid == nullptr || !grid->has_integers() || num_in % kIntegerBlock != 0) return std::nullopt;
  IntegerForm form{.bits = integer_bits(*grid)};
  const int middle = 1 << (form.bits - 1);
  const int64_t num_blocks = num_in / kIntegerBlock;
  int64_t blocks_of_group = num_blocks;  // as many as may share a scale
  for (int64_t r = 0; r < num_rows; ++r) {
    throw_if_interrupted();
    const std::span<const std::byte> row = row_of(r);
    IntegerScale last;
    for (int64_t b = 0; b < num_blocks; ++b) {
      const std::optional<IntegerScale> read = integer_scale(*grid, block_at(row, num_blocks, b));
      if (!read) return std::nullopt;
      form.symmetric = form.symmetric && read->zero == middle;
      // Groups end wherever a scale changes.
      if (b > 0 && (read->scale != last.scale || read->zero != last.zero)) {
        blocks_of_group = std::gcd(blocks_of_group, b);
      }
      last = *read;
    }
  }
  form.group_size = blocks_of_group == num_blocks ? kPerChannel : blocks_of_group * kIntegerBlock;
  return form;
}

std::optional<QuantizedWeight> integers_of_blocks(const QuantizedWeight& blocks) {
  const GgufGrid* const grid = find_gguf_grid(static_cast<GgufType>(blocks.code->gguf_type));
  const std::span<const std::byte> bytes = std::as_bytes(std::span(blocks.codes_OI));
  const auto row_bytes = static_cast<size_t>(block_row_bytes(*blocks.code, blocks.num_in));
  const auto row_of = [&](int64_t r) { return bytes.subspan(static_cast<size_t>(r) * row_bytes, row_bytes); };
  const std::optional<IntegerForm> form = find_integer_form(grid, blocks.num_out, blocks.num_in, row_of);
  if (!form) return std::nullopt;
  QuantizedWeight weight;
  weight.num_out = blocks.num_out;
  weight.num_in = blocks.num_in;
  weight.bits = form->bits;
  weight.group_size = form->group_size;
  weight.symmetric = form->symmetric;
  weight.scale_dtype = DType::F16;
  weight.pattern = blocks.pattern;
  const int64_t num_blocks = blocks.num_in / kIntegerBlock, blocks_of_group = num_blocks / weight.num_groups();
  const int shift = (1 << (form->bits - 1)) - integer_offset(*grid);
  for (int64_t r = 0; r < blocks.num_out; ++r) {
    throw_if_interrupted();
    for (int64_t b = 0; b < num_blocks; ++b) {
      const std::span<const std::byte> block = block_at(row_of(r), num_blocks, b);
      const GgufParts parts = take_apart(*grid, block);
      for (size_t i = 0; i < kIntegerBlock; ++i) {
        weight.codes_OI.push_back(static_cast<uint8_t>(parts.codes[i] + shift));
      }
      if (b % blocks_of_group != 0) continue;
      const IntegerScale read = *integer_scale(*grid, block);
      weight.scales_OG.push_back(read.scale);
      if (!weight.symmetric) weight.zeros_OG.push_back(static_cast<uint8_t>(read.zero));
    }
  }
  return weight;
}

}  // namespace pare::runtime
