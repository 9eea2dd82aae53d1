// Blocks of the .gguf file that a checkpoint was imported from, which an export copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "runtime/files/gguf.h"
#include "runtime/import/gguf_places.h"
#include "runtime/import/gguf_rows.h"

namespace pare::runtime {

class GgufCopies {
 public:
  // There are none.
  GgufCopies() = default;
  // `model` is what the import of the file describes. Throws what GgufFile::open throws.
  GgufCopies(const std::filesystem::path& file, const DecoderFamily& family, const ModelDescription& model);

  // Returns the type of the blocks that hold this part of a tensor; nullopt if it is in floating point, or if its rows
  // are not the file's.
  std::optional<GgufType> type_of(const GgufPlace& place) const;
  // Returns the blocks of row r of Hugging Face's weight. The place has a type.
  std::span<const std::byte> row(const GgufPlace& place, int64_t r) const;
  // Returns general.file_type, llama.cpp's number for the file's types.
  std::optional<int> file_type() const;

 private:
  std::shared_ptr<const GgufFile> file_;
  std::map<std::string, GgufRows> rows_;  // by Hugging Face's names
};

}  // namespace pare::runtime
