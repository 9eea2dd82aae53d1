#include "runtime/import/gguf_linear_codes.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "runtime/blocks/block_integers.h"
#include "runtime/containers/compressed_tensors.h"
#include "runtime/format/dtype.h"
#include "runtime/format/stored_scheme.h"
#include "runtime/import/gguf_places.h"
#include "runtime/import/gguf_rows.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {
namespace {

// One linear whose blocks all have such codes.
class CodedLinear {
 public:
  // Returns nullopt if they have not.
  static std::optional<CodedLinear> find(const std::shared_ptr<const GgufFile>& file, const GgufPlace& place);

  PackScheme scheme() const {
    return {
        .bits = form_.bits, .group_size = form_.group_size, .symmetric = form_.symmetric, .layout = CodeLayout::bytes};
  }
  const std::string& name() const { return linear_.name; }
  std::vector<StreamedTensor> tensors() const;

 private:
  CodedLinear(GgufRows rows, const GgufGrid& grid, const LinearDescription& linear, const IntegerForm& form)
      : rows_(std::move(rows)),
        grid_(&grid),
        linear_(linear),
        block_bytes_(gguf_block(static_cast<uint32_t>(rows_.type())).size_bytes),
        form_(form) {}
  int64_t num_blocks() const { return linear_.num_in / kIntegerBlock; }
  std::span<const std::byte> bytes_of_block(std::span<const std::byte> row, int64_t b) const {
    return row.subspan(static_cast<size_t>(b * block_bytes_), static_cast<size_t>(block_bytes_));
  }
  IntegerScale scale_of(std::span<const std::byte> row, int64_t b) const {
    return *integer_scale(*grid_, bytes_of_block(row, b));
  }
  // Calls visit(row) for each row and passes on the bytes that it returns.
  template <typename Visit>
  std::function<void(const ByteSink&)> by_rows(const Visit& visit) const;

  GgufRows rows_;
  const GgufGrid* grid_;
  LinearDescription linear_;
  int64_t block_bytes_;
  IntegerForm form_;
};

std::optional<CodedLinear> CodedLinear::find(const std::shared_ptr<const GgufFile>& file, const GgufPlace& place) {
  if (place.source.is_turned) return std::nullopt;
  const std::optional<GgufRows> rows = GgufRows::find(file, place);
  const GgufGrid* const grid = rows ? find_gguf_grid(rows->type()) : nullptr;
  if (grid == nullptr || !grid->has_integers()) return std::nullopt;
  const std::optional<IntegerForm> form =
      find_integer_form(grid, place.linear->num_out, place.linear->num_in, [&](int64_t r) { return rows->row(r); });
  if (!form) return std::nullopt;
  return CodedLinear(*rows, *grid, *place.linear, *form);
}

template <typename Visit>
std::function<void(const ByteSink&)> CodedLinear::by_rows(const Visit& visit) const {
  return [self = *this, visit](const ByteSink& sink) {
    for (int64_t r = 0; r < self.linear_.num_out; ++r) sink(visit(self, r));
  };
}

std::vector<StreamedTensor> CodedLinear::tensors() const {
  const PackScheme scheme = this->scheme();
  const int64_t num_out = linear_.num_out, num_groups = scheme.num_groups(linear_.num_in);
  const int64_t blocks_of_group = num_blocks() / num_groups;
  const int offset = 1 << (scheme.bits - 1);  // files count from -2^(bits-1)
  const int subtracted = integer_offset(*grid_);
  const auto codes = [subtracted](const CodedLinear& self, int64_t r) {
    std::vector<std::byte> bytes;
    const std::span<const std::byte> stored = self.rows_.row(r);
    for (int64_t b = 0; b < self.num_blocks(); ++b) {
      const GgufParts parts = take_apart(*self.grid_, self.bytes_of_block(stored, b));
      for (size_t i = 0; i < kIntegerBlock; ++i) bytes.push_back(static_cast<std::byte>(parts.codes[i] - subtracted));
    }
    return bytes;
  };
  const auto scales = [blocks_of_group](const CodedLinear& self, int64_t r) {
    std::vector<std::byte> bytes;
    const std::span<const std::byte> stored = self.rows_.row(r);
    for (int64_t b = 0; b < self.num_blocks(); b += blocks_of_group) {
      const uint16_t half = float_to_f16(self.scale_of(stored, b).scale);
      const std::span<const std::byte> half_bytes = std::as_bytes(std::span(&half, 1));
      bytes.insert(bytes.end(), half_bytes.begin(), half_bytes.end());
    }
    return bytes;
  };
  const auto zeros = [blocks_of_group, offset](const CodedLinear& self, int64_t r) {
    std::vector<std::byte> bytes;
    const std::span<const std::byte> stored = self.rows_.row(r);
    for (int64_t b = 0; b < self.num_blocks(); b += blocks_of_group) {
      bytes.push_back(static_cast<std::byte>(self.scale_of(stored, b).zero - offset));
    }
    return bytes;
  };
  std::vector<StreamedTensor> made;
  made.push_back({linear_.name + std::string(kPlainSuffix), DType::I8, {num_out, linear_.num_in}, by_rows(codes)});
  made.push_back({linear_.name + std::string(kScaleSuffix), DType::F16, {num_out, num_groups}, by_rows(scales)});
  if (!scheme.symmetric) {
    made.push_back({linear_.name + std::string(kZeroPointSuffix), DType::I8, {num_out, num_groups}, by_rows(zeros)});
  }
  return made;
}

}  // namespace

std::string keep_linear_codes(const std::shared_ptr<const GgufFile>& file, const DecoderFamily& family,
                              const ModelDescription& model, const std::string& config_json,
                              std::vector<StreamedTensor>& tensors) {
  std::set<std::string> in_blocks;
  for (const LinearDescription& linear : block_linears(model)) in_blocks.insert(linear.name);
  const auto has = [&](const std::string& name) { return file->tensors().contains(name); };
  std::vector<StoredModule> modules;
  std::vector<std::string> others;
  for (const GgufPlace& place : gguf_places(family, model, has)) {
    if (!place.linear || !in_blocks.contains(place.linear->name) || !place.name.ends_with(".weight")) continue;
    const std::optional<CodedLinear> coded = CodedLinear::find(file, place);
    if (!coded) {
      others.push_back(place.linear->name);
      continue;
    }
    std::erase_if(tensors, [&](const StreamedTensor& tensor) { return tensor.name == place.name; });
    for (StreamedTensor& tensor : coded->tensors()) tensors.push_back(std::move(tensor));
    modules.push_back({coded->name(), coded->scheme()});
  }
  if (modules.empty()) return config_json;
  if (!model.tied_head) others.push_back(model.head.name);
  nlohmann::ordered_json config = parse_ordered_json(config_json, "config.json");
  config["quantization_config"] = parse_ordered_json(quantization_config_json(modules, others), "quantization_config");
  return json_text(config, 2) + "\n";
}

}  // namespace pare::runtime
