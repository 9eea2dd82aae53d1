#include "runtime/containers/scale_blocks.h"

#include <numeric>
#include <stdexcept>

namespace pare::runtime {

int64_t group_of_block(const ScaleBlock& block, int64_t num_in) {
  return std::gcd(block.num_columns, num_in);
}

PackScheme scheme_with_block(PackScheme scheme, const ScaleBlock& block, const FindTensor& find,
                             const std::string& module, std::string_view suffix) {
  const TensorView* const weight = find(module + std::string(suffix));
  const bool is_matrix = weight != nullptr && weight->shape.size() == 2 && weight->shape[1] > 0;
  scheme.block = block;
  scheme.group_size = is_matrix ? group_of_block(block, weight->shape[1]) : block.num_columns;
  return scheme;
}

std::vector<int64_t> block_shape(const ScaleBlock& block, int64_t num_out, int64_t num_in) {
  const auto num_blocks = [](int64_t size, int64_t of_block) { return size / of_block + (size % of_block != 0); };
  return {num_blocks(num_out, block.num_rows), num_blocks(num_in, block.num_columns)};
}

std::vector<float> spread_block_scales(std::span<const float> scales, const ScaleBlock& block, int64_t num_out,
                                       int64_t num_in) {
  const int64_t group_size = group_of_block(block, num_in), num_groups = num_in / group_size;
  const int64_t num_column_blocks = block_shape(block, num_out, num_in)[1];
  std::vector<float> scales_OG(static_cast<size_t>(num_out * num_groups));
  for (int64_t row = 0; row < num_out; ++row) {
    const float* const of_row = scales.data() + row / block.num_rows * num_column_blocks;
    for (int64_t group = 0; group < num_groups; ++group) {
      scales_OG[static_cast<size_t>(row * num_groups + group)] = of_row[group * group_size / block.num_columns];
    }
  }
  return scales_OG;
}

std::vector<float> gather_block_scales(const QuantizedWeight& weight, const ScaleBlock& block,
                                       const std::string& module) {
  const std::vector<int64_t> shape = block_shape(block, weight.num_out, weight.num_in);
  const int64_t num_groups = weight.num_groups();
  std::vector<float> scales(static_cast<size_t>(shape[0] * shape[1]));
  for (int64_t row = 0; row < weight.num_out; ++row) {
    for (int64_t group = 0; group < num_groups; ++group) {
      const int64_t column = group * (weight.num_in / num_groups);
      float& known = scales[static_cast<size_t>(row / block.num_rows * shape[1] + column / block.num_columns)];
      const float scale = weight.scales_OG[static_cast<size_t>(row * num_groups + group)];
      const bool is_first = row % block.num_rows == 0 && column % block.num_columns == 0;
      if (is_first) known = scale;
      if (scale == known) continue;
      throw std::invalid_argument("module '" + module + "': expected one scale for each block of " +
                                  std::to_string(block.num_rows) + " x " + std::to_string(block.num_columns) +
                                  " weights, found " + std::to_string(known) + " and " + std::to_string(scale) +
                                  " in one, at row " + std::to_string(row) + ", column " + std::to_string(column));
    }
  }
  return scales;
}

}  // namespace pare::runtime
