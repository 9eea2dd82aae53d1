#include "runtime/export/gguf_copies.h"

namespace pare::runtime {

GgufCopies::GgufCopies(const std::filesystem::path& file, const DecoderFamily& family, const ModelDescription& model)
    : file_(std::make_shared<GgufFile>(GgufFile::open(file))) {
  const auto has = [&](const std::string& name) { return file_->tensors().contains(name); };
  for (const GgufPlace& place : gguf_places(family, model, has)) {
    const std::optional<GgufRows> rows = GgufRows::find(file_, place);
    if (!rows || gguf_block(static_cast<uint32_t>(rows->type())).num_elements == 1) continue;
    rows_.emplace(place.name, *rows);
  }
}

std::optional<GgufType> GgufCopies::type_of(const GgufPlace& place) const {
  const auto found = rows_.find(place.name);
  return found == rows_.end() ? std::nullopt : std::optional(found->second.type());
}

std::span<const std::byte> GgufCopies::row(const GgufPlace& place, int64_t r) const {
  return rows_.at(place.name).row(r);
}

std::optional<int> GgufCopies::file_type() const {
  constexpr const char* kKey = "general.file_type";
  if (!file_ || !file_->has(kKey)) return std::nullopt;
  return static_cast<int>(file_->integer(kKey));
}

}  // namespace pare::runtime
