#include "runtime/files/gguf_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <set>
#include <stdexcept>
#include <system_error>

#include "runtime/format/tensor_view.h"

namespace pare::runtime {
namespace {

constexpr size_t kAlignment = 32;  // of a file that does not say another one
constexpr uint32_t kVersion = 3;
constexpr const char* kArchitecture = "general.architecture";

// GGUF's numbers of types of values.
enum ValueType : uint32_t { kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kString = 8, kArray = 9 };

template <typename T>
void append(std::string& bytes, T value) {
  const size_t size = bytes.size();
  bytes.resize(size + sizeof value);
  std::memcpy(bytes.data() + size, &value, sizeof value);
}

void append_text(std::string& bytes, std::string_view text) {
  append<uint64_t>(bytes, text.size());
  bytes += text;
}

std::string array_of(ValueType type, size_t size) {
  std::string bytes;
  append<uint32_t>(bytes, kArray);
  append<uint32_t>(bytes, type);
  append<uint64_t>(bytes, size);
  return bytes;
}

template <typename T>
std::string scalar_of(ValueType type, T value) {
  std::string bytes;
  append<uint32_t>(bytes, type);
  append(bytes, value);
  return bytes;
}

size_t padded(size_t size) {
  return (size + kAlignment - 1) / kAlignment * kAlignment;
}

// Returns everything before the tensors' data.
std::string header_of(const GgufMetadata& metadata, const std::vector<StreamedGgufTensor>& tensors) {
  std::string head = "GGUF";
  append(head, kVersion);
  append<uint64_t>(head, tensors.size());
  append<uint64_t>(head, metadata.values().size());
  const auto append_value = [&](const std::string& key, const std::string& value) {
    append_text(head, key);
    head += value;
  };
  if (const auto first = metadata.values().find(kArchitecture); first != metadata.values().end()) {
    append_value(first->first, first->second);
  }
  for (const auto& [key, value] : metadata.values()) {
    if (key != kArchitecture) append_value(key, value);
  }
  std::set<std::string> names;
  size_t offset = 0;
  for (const StreamedGgufTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      throw std::invalid_argument("the tensor '" + tensor.name + "' stands twice in a GGUF file");
    }
    append_text(head, tensor.name);
    append(head, static_cast<uint32_t>(tensor.shape.size()));
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size) append<uint64_t>(head, *size);
    append(head, static_cast<uint32_t>(tensor.type));
    append<uint64_t>(head, offset);
    offset += padded(static_cast<size_t>(tensor.num_bytes()));
  }
  head.resize(padded(head.size()));
  return head;
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// Passes on the bytes of a tensor and those that fill it up.
void write_tensor(const StreamedGgufTensor& tensor, const ByteSink& sink) {
  const auto expected = static_cast<size_t>(tensor.num_bytes());
  size_t found = 0;
  tensor.produce([&](std::span<const std::byte> bytes) {
    found += bytes.size();
    if (found <= expected) sink(bytes);
  });
  if (found != expected) {
    throw std::runtime_error(tensor.name + ": expected " + std::to_string(expected) + " bytes, found " +
                             std::to_string(found));
  }
  sink(bytes_of(std::string(padded(expected) - expected, '\0')));
}

}  // namespace

void GgufMetadata::set_text(const std::string& key, std::string_view text) {
  std::string bytes;
  append<uint32_t>(bytes, kString);
  append_text(bytes, text);
  values_[key] = std::move(bytes);
}

void GgufMetadata::set_boolean(const std::string& key, bool value) {
  values_[key] = scalar_of<uint8_t>(kBool, value ? 1 : 0);
}

void GgufMetadata::set_unsigned(const std::string& key, int64_t value) {
  if (value < 0 || value > std::numeric_limits<uint32_t>::max()) {
    throw std::invalid_argument("'" + key + "': expected a whole number of 32 bits, found " + std::to_string(value));
  }
  values_[key] = scalar_of(kUint32, static_cast<uint32_t>(value));
}

void GgufMetadata::set_number(const std::string& key, double value) {
  values_[key] = scalar_of(kFloat32, static_cast<float>(value));
}

void GgufMetadata::set_texts(const std::string& key, const std::vector<std::string>& texts) {
  std::string bytes = array_of(kString, texts.size());
  for (const std::string& text : texts) append_text(bytes, text);
  values_[key] = std::move(bytes);
}

void GgufMetadata::set_booleans(const std::string& key, const std::vector<bool>& values) {
  std::string bytes = array_of(kBool, values.size());
  for (const bool value : values) append<uint8_t>(bytes, value ? 1 : 0);
  values_[key] = std::move(bytes);
}

void GgufMetadata::set_integers(const std::string& key, std::span<const int32_t> values) {
  std::string bytes = array_of(kInt32, values.size());
  for (const int32_t value : values) append(bytes, value);
  values_[key] = std::move(bytes);
}

void GgufMetadata::set_numbers(const std::string& key, std::span<const float> values) {
  std::string bytes = array_of(kFloat32, values.size());
  for (const float value : values) append(bytes, value);
  values_[key] = std::move(bytes);
}

int64_t StreamedGgufTensor::num_elements() const {
  return checked_product(shape).value_or(0);
}

int64_t StreamedGgufTensor::num_bytes() const {
  const GgufBlock block = gguf_block(static_cast<uint32_t>(type));
  if (shape.empty() || shape.back() % block.num_elements != 0) {
    throw std::invalid_argument(name + ": rows of the shape " + shape_text(shape) + " do not fill blocks of " +
                                std::string(block.name) + ", which have " + std::to_string(block.num_elements) +
                                " elements");
  }
  return num_elements() / block.num_elements * block.size_bytes;
}

void write_gguf(const std::filesystem::path& path, const GgufMetadata& metadata,
                const std::vector<StreamedGgufTensor>& tensors) {
  const std::string head = header_of(metadata, tensors);
  write_file_atomically(path, [&](const ByteSink& sink) {
    sink(bytes_of(head));
    for (const StreamedGgufTensor& tensor : tensors) write_tensor(tensor, sink);
  });
}

void write_gguf_draft(const std::filesystem::path& path, const GgufMetadata& metadata,
                      const std::vector<StreamedGgufTensor>& tensors,
                      const std::function<bool(const StreamedGgufTensor&)>& has_data) {
  const std::string head = header_of(metadata, tensors);
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  const auto put = [&](std::span<const std::byte> bytes) {
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  };
  put(bytes_of(head));
  size_t offset = head.size();
  for (const StreamedGgufTensor& tensor : tensors) {
    file.seekp(static_cast<std::streamoff>(offset));
    if (has_data(tensor)) write_tensor(tensor, put);
    offset += padded(static_cast<size_t>(tensor.num_bytes()));
  }
  file.close();
  const auto fail = [&](const std::string& reason) {
    throw std::runtime_error("cannot write '" + path.string() + "': " + reason);
  };
  if (!file) fail(std::generic_category().message(errno == 0 ? EIO : errno));
  std::error_code error;
  std::filesystem::resize_file(path, offset, error);
  if (error) fail(error.message());
}

}  // namespace pare::runtime
