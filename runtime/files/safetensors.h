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

namespace pare::runtime {

// A mapped file whose header has been validated in full. Its length is within the file and 100 MB. It is valid JSON
// without duplicate keys. Dtypes are known, and shapes non-negative without overflow. Offsets are in range and match
// shape x dtype, with no overlap and no hole. Throws std::runtime_error naming file, tensor, expected and found.
class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::filesystem::path& path);
  // Only checks the header, for tests and fuzzing. The tensors view `bytes`.
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

// Writes tensors sorted as the reference writer does (descending type, hence alignment, then name), with the header
// padded to 8 bytes and __metadata__ {"format":"pt"}. The same tensors always give the same bytes. The file is written
// beside `path` under a temporary name, fsynced and renamed. Throws std::invalid_argument (repeated names, data that do
// not match type and shape) and std::runtime_error (path, reason: disk full, ...), and leaves nothing behind.
void write_safetensors(const std::filesystem::path& path, std::vector<NamedTensor> tensors);

// A tensor whose bytes are made only while the file is written, so that a model larger than memory can pass through.
struct StreamedTensor {
  std::string name;
  DType dtype = DType::F32;
  std::vector<int64_t> shape;
  std::function<void(const ByteSink&)> produce;  // must pass on exactly the bytes that type and shape need
};

// Writes the same file, streamed. Also throws std::runtime_error if a producer passes on another number of bytes, and
// whatever a producer throws.
void write_safetensors(const std::filesystem::path& path, std::vector<StreamedTensor> tensors);
// Writes the same with a hole in place of the tensors' bytes, for models whose weights are not there yet: it reads as
// zeros and takes no disk. Nothing is produced. Throws what write_safetensors throws.
void write_safetensors_header(const std::filesystem::path& path, std::vector<StreamedTensor> tensors);

}  // namespace pare::runtime
