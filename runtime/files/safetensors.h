// The safetensors container: u64 header length, JSON header, byte buffer (little-endian, row-major, no holes).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/format/dtype.h"
#include "runtime/format/tensor_view.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/mapped_file.h"

namespace pare {

// A mapped file whose header has been validated in full: length within the file and 100 MB, valid JSON without
// duplicate keys, known dtypes, non-negative shapes without overflow, offsets in range, matching shape x dtype, no
// overlap and no hole. Throws std::runtime_error naming file, tensor, expected and found.
class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::filesystem::path& path);
  // The header check alone, for tests and fuzzing: the tensors view `bytes`.
  static std::map<std::string, TensorView> parse(std::span<const std::byte> bytes, const std::string& where);

  const std::map<std::string, TensorView>& tensors() const { return tensors_; }
  const MappedFile& file() const { return file_; }

 private:
  explicit SafetensorsFile(MappedFile file) : file_(std::move(file)) {}
  MappedFile file_;
  std::map<std::string, TensorView> tensors_;
};

struct NamedTensor {
  std::string name;
  DType dtype = DType::F32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
};

// Writes tensors sorted as the reference writer does (descending type, hence alignment, then name), header padded to 8
// bytes, __metadata__ {"format":"pt"}: the same tensors always give the same bytes. The file is written beside `path`
// under a temporary name, fsynced and renamed. Throws std::invalid_argument (repeated names, data that do not match
// type and shape) and std::runtime_error (path, reason: disk full, ...), leaving nothing behind.
void write_safetensors(const std::filesystem::path& path, std::vector<NamedTensor> tensors);

// A tensor whose bytes are made only while the file is written, so that a model larger than memory can pass through.
struct StreamedTensor {
  std::string name;
  DType dtype = DType::F32;
  std::vector<int64_t> shape;
  std::function<void(const ByteSink&)> produce;  // hands over exactly as many bytes as type and shape ask for
};

// The same file, streamed. Throws also std::runtime_error when a producer hands over another number of bytes, and
// whatever a producer throws.
void write_safetensors(const std::filesystem::path& path, std::vector<StreamedTensor> tensors);

}  // namespace pare
