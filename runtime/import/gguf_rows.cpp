#include "runtime/import/gguf_rows.h"

#include <algorithm>
#include <string>
#include <vector>

namespace pare::runtime {

std::optional<GgufRows> GgufRows::find(const std::shared_ptr<const GgufFile>& file, const GgufPlace& place) {
  const GgufSource& source = place.source;
  const std::string suffix = ".weight";
  const bool is_weight = place.linear && place.name == place.linear->name + suffix;
  if (!is_weight || !place.latent_values.empty() || !source.name.ends_with(suffix)) return std::nullopt;
  const std::string stem = source.name.substr(0, source.name.size() - suffix.size());
  if (file->tensors().contains(stem + ".scale")) return std::nullopt;
  GgufRows result;
  result.file_ = file;
  result.tensor_ = &file->tensor(source.name);
  const std::vector<int64_t>& shape = result.tensor_->shape;
  if (shape.size() < 2 || shape.back() != place.linear->num_in) return std::nullopt;
  const int64_t num_rows = result.tensor_->num_elements() / shape.back();
  result.row_of_ = source.row_of;
  result.first_row_ = source.part * (num_rows / std::max(source.num_parts, int64_t{1}));
  result.row_bytes_ = static_cast<int64_t>(result.tensor_->data.size()) / num_rows;
  return result;
}

std::span<const std::byte> GgufRows::row(int64_t r) const {
  const int64_t stored = first_row_ + (row_of_ ? row_of_(r) : r);
  return tensor_->data.subspan(static_cast<size_t>(stored * row_bytes_), static_cast<size_t>(row_bytes_));
}

}  // namespace pare::runtime
