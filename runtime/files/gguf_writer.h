// Writes GGUF version 3, tensor by tensor: a model larger than memory can pass through.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/files/gguf.h"
#include "runtime/system/atomic_file.h"

namespace pare::runtime {

// Keys and values as they will lie in the file. Integers have 32 bits, as those have that llama.cpp reads. Setting a
// key again replaces its value.
class GgufMetadata {
 public:
  void set_text(const std::string& key, std::string_view text);
  void set_boolean(const std::string& key, bool value);
  void set_unsigned(const std::string& key, int64_t value);  // std::invalid_argument if it has no 32 bits
  void set_number(const std::string& key, double value);     // as float32
  void set_texts(const std::string& key, const std::vector<std::string>& texts);
  void set_booleans(const std::string& key, const std::vector<bool>& values);
  void set_integers(const std::string& key, std::span<const int32_t> values);
  void set_numbers(const std::string& key, std::span<const float> values);

  const std::map<std::string, std::string>& values() const { return values_; }

 private:
  std::map<std::string, std::string> values_;  // type and value, as bytes
};

struct StreamedGgufTensor {
  std::string name;
  std::vector<int64_t> shape;  // row-major: the file has the order reversed
  GgufType type = GgufType::F32;
  std::function<void(const ByteSink&)> produce;  // must pass on exactly num_bytes() bytes
  int64_t num_elements() const;
  int64_t num_bytes() const;
};

// Writes the file, whole or not at all: general.architecture first, then the other keys in their order, then tensors in
// the order given. The same content always gives the same bytes. Throws std::invalid_argument for a tensor whose rows
// do not fill blocks, and for names that stand twice; std::runtime_error for what the disk refuses, and if a producer
// passes on another number of bytes; and what producers throw.
void write_gguf(const std::filesystem::path& path, const GgufMetadata& metadata,
                const std::vector<StreamedGgufTensor>& tensors);

// Writes the same with a hole in place of the tensors that `has_data` does not want: it reads as zeros and takes no
// disk. Throws std::runtime_error for a file that cannot be written, with the reason; and what producers throw.
void write_gguf_draft(const std::filesystem::path& path, const GgufMetadata& metadata,
                      const std::vector<StreamedGgufTensor>& tensors,
                      const std::function<bool(const StreamedGgufTensor&)>& has_data);

}  // namespace pare::runtime
