#include <cctype>
#include <string>
#include <utility>
#include <vector>

#include "runtime/blocks/gguf_parts.h"
#include "runtime/format/block_bytes.h"

namespace pare::runtime {

std::span<const WeightCode> block_codes() {
  struct Row {
    std::string name;
    int width;
  };
  static const std::vector<Row> rows = [] {
    std::vector<Row> all;
    for (const GgufGrid& grid : gguf_grids()) {
      std::string name(gguf_block(static_cast<uint32_t>(grid.type)).name);
      for (char& letter : name) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
      all.push_back({std::move(name), grid.bits});
    }
    return all;
  }();
  static const std::vector<WeightCode> codes = [] {
    std::vector<WeightCode> all;
    for (size_t i = 0; i < rows.size(); ++i) {
      all.push_back({.name = rows[i].name,
                     .numbers = CodeNumbers::blocks,
                     .widths = {&rows[i].width, 1},
                     .block = gguf_grids()[i].group,
                     .scale_dtype = DType::F16,
                     .gguf_type = static_cast<uint32_t>(gguf_grids()[i].type)});
    }
    return all;
  }();
  return codes;
}

int64_t block_elements(const WeightCode& code) {
  return gguf_block(code.gguf_type).num_elements;
}

int64_t block_row_bytes(const WeightCode& code, int64_t width) {
  return gguf_row_bytes(static_cast<GgufType>(code.gguf_type), width);
}

void decode_blocks(const WeightCode& code, std::span<const std::byte> blocks, std::span<float> out) {
  decode_gguf_blocks(static_cast<GgufType>(code.gguf_type), blocks, out);
}

}  // namespace pare::runtime
