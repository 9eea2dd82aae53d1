// GGUF version 2 and 3: llama.cpp's container of metadata and (block-quantized) tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/blocks/gguf_type.h"
#include "runtime/system/mapped_file.h"

namespace pare::runtime {

using GgufScalar = std::variant<bool, int64_t, uint64_t, double, std::string>;
// An array as it lies in the file, checked. Most are never asked for, and a parsed scalar takes 40 times a byte's room.
struct GgufArray {
  uint32_t item_type = 0;  // GGUF's number
  uint64_t size = 0;
  std::span<const std::byte> bytes;
};
using GgufValue = std::variant<bool, int64_t, uint64_t, double, std::string, GgufArray>;

struct GgufTensor {
  std::string name;
  std::vector<int64_t> shape;  // row-major: the file's order reversed, so that the contiguous dimension is last
  GgufType type = GgufType::F32;
  std::span<const std::byte> data;
  int64_t num_elements() const;
};

// Opening validates everything: magic, version, counts, types, sizes, offsets, alignment. Throws std::runtime_error
// naming the file, the key or tensor, expected and found.
class GgufFile {
 public:
  // The first of several parts (NAME-00001-of-00003.gguf) opens all of them as one file.
  static GgufFile open(const std::filesystem::path& path);
  // For tests and fuzzing. Tensors and arrays view `bytes`, which must outlive the result.
  static GgufFile parse(std::span<const std::byte> bytes, const std::string& where);

  const std::map<std::string, GgufValue>& metadata() const { return metadata_; }
  const std::map<std::string, GgufTensor>& tensors() const { return tensors_; }
  const std::string& where() const { return where_; }
  // The files that were opened; none when parsed from memory.
  const std::vector<std::filesystem::path>& paths() const { return paths_; }

  bool has(const std::string& key) const { return metadata_.contains(key); }
  // Returns the number of items of an array. Throws what the functions below throw.
  int64_t count(const std::string& key) const;
  // These throw std::runtime_error if the key is missing or of another type (key, expected, found).
  std::string text(const std::string& key) const;
  int64_t integer(const std::string& key) const;
  double number(const std::string& key) const;
  bool boolean(const std::string& key) const;
  std::vector<std::string> texts(const std::string& key) const;
  std::vector<int64_t> integers(const std::string& key) const;
  std::vector<double> numbers(const std::string& key) const;
  std::vector<bool> booleans(const std::string& key) const;
  const GgufTensor& tensor(const std::string& name) const;

  // Releases the resident pages of a tensor's data if the file is mapped.
  void drop_pages(const GgufTensor& tensor) const;

 private:
  static GgufFile open_part(const std::filesystem::path& path);
  void add_part(const std::filesystem::path& path, int64_t index, int64_t num_parts);
  const GgufValue& value(const std::string& key) const;
  std::string where_;
  std::vector<std::filesystem::path> paths_;
  std::vector<MappedFile> files_;  // one for each path
  std::map<std::string, GgufValue> metadata_;
  std::map<std::string, GgufTensor> tensors_;
};

}  // namespace pare::runtime
