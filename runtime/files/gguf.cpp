#include "runtime/files/gguf.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "runtime/system/visible_text.h"

namespace pare::runtime {
namespace {

enum ValueType : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };

constexpr uint64_t kMaxAlignment = 1 << 16;
constexpr uint32_t kMaxDimensions = 4;
constexpr int64_t kMaxElements = int64_t{1}
                                 << 46;  // larger products of dimensions are nonsense, and would overflow sizes

// A file in several parts has these keys: its place among them from 0, their number, and that of the tensors of all.
constexpr const char* kPart = "split.no";
constexpr const char* kNumParts = "split.count";
constexpr const char* kNumTensors = "split.tensors.count";
constexpr int64_t kMaxParts = 99'999;  // what five digits hold

std::string part_ending(int64_t index, int64_t num_parts) {
  char text[40];
  std::snprintf(text, sizeof text, "-%05lld-of-%05lld.gguf", static_cast<long long>(index + 1),
                static_cast<long long>(num_parts));
  return text;
}

// Reads little-endian values from a span. Running past its end is an error that names what was being read.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& where) : bytes_(bytes), where_(where) {}

  template <typename T>
  T read(const std::string& what) {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof(T));
    return value;
  }

  std::string read_string(const std::string& what) {
    const auto size = read<uint64_t>(what);
    const auto part = take(size, what);
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }

  std::string read_name(const std::string& what) {
    std::string name = read_string(what);
    if (has_nul(name)) fail(what + " holds the character U+0000");
    return name;
  }

  std::span<const std::byte> take(uint64_t size, const std::string& what) {
    if (size > remaining()) {
      fail(what + ": needs " + std::to_string(size) + " bytes at offset " + std::to_string(offset_) +
           ", the file has " + std::to_string(remaining()) + " left; it is truncated or damaged");
    }
    const auto part = bytes_.subspan(offset_, size);
    offset_ += size;
    return part;
  }

  [[noreturn]] void fail(const std::string& message) const { throw std::runtime_error(where_ + ": " + message); }
  uint64_t remaining() const { return bytes_.size() - offset_; }
  uint64_t offset() const { return offset_; }
  std::span<const std::byte> since(uint64_t begin) const { return bytes_.subspan(begin, offset_ - begin); }

 private:
  std::span<const std::byte> bytes_;
  const std::string& where_;
  uint64_t offset_ = 0;
};

size_t min_size_bytes(uint32_t type) {
  switch (type) {
    case kU8:
    case kI8:
    case kBool:
      return 1;
    case kU16:
    case kI16:
      return 2;
    case kU32:
    case kI32:
    case kF32:
      return 4;
    default:
      return 8;
  }
}

GgufScalar read_scalar(Reader& reader, uint32_t type, const std::string& key) {
  switch (type) {
    case kU8:
      return uint64_t{reader.read<uint8_t>(key)};
    case kI8:
      return int64_t{reader.read<int8_t>(key)};
    case kU16:
      return uint64_t{reader.read<uint16_t>(key)};
    case kI16:
      return int64_t{reader.read<int16_t>(key)};
    case kU32:
      return uint64_t{reader.read<uint32_t>(key)};
    case kI32:
      return int64_t{reader.read<int32_t>(key)};
    case kF32:
      return double{reader.read<float>(key)};
    case kBool:
      return reader.read<uint8_t>(key) != 0;
    case kString:
      return reader.read_string(key);
    case kU64:
      return reader.read<uint64_t>(key);
    case kI64:
      return reader.read<int64_t>(key);
    case kF64:
      return reader.read<double>(key);
    default:
      reader.fail("'" + key + "': value type " + std::to_string(type) + " is not one of GGUF's types 0 to 12");
  }
}

GgufValue read_value(Reader& reader, const std::string& key) {
  const auto type = reader.read<uint32_t>(key);
  if (type != kArray) {
    return std::visit([](auto&& scalar) -> GgufValue { return std::forward<decltype(scalar)>(scalar); },
                      read_scalar(reader, type, key));
  }
  const auto item_type = reader.read<uint32_t>(key);
  if (item_type == kArray) reader.fail("'" + key + "': an array of arrays, which no model's metadata uses");
  const auto size = reader.read<uint64_t>(key);
  if (size > reader.remaining() / min_size_bytes(item_type)) {
    reader.fail("'" + key + "': an array of " + std::to_string(size) + " items does not fit into the " +
                std::to_string(reader.remaining()) + " bytes left");
  }
  if (item_type > kF64)
    reader.fail("'" + key + "': value type " + std::to_string(item_type) + " is not one of GGUF's types 0 to 12");
  if (item_type != kString) {
    return GgufArray{item_type, size, reader.take(size * min_size_bytes(item_type), key)};
  }
  const uint64_t begin = reader.offset();
  for (uint64_t i = 0; i < size; ++i) reader.take(reader.read<uint64_t>(key), key);
  return GgufArray{item_type, size, reader.since(begin)};
}

struct TensorEntry {
  GgufTensor tensor;
  uint64_t offset = 0;
  uint64_t size_bytes = 0;
};

TensorEntry read_tensor_entry(Reader& reader) {
  TensorEntry entry;
  entry.tensor.name = reader.read_name("a tensor's name");
  const std::string what = "tensor " + entry.tensor.name;
  const auto num_dimensions = reader.read<uint32_t>(what);
  if (num_dimensions == 0 || num_dimensions > kMaxDimensions) {
    reader.fail(what + ": expected 1 to 4 dimensions, found " + std::to_string(num_dimensions));
  }
  int64_t num_elements = 1;
  for (uint32_t d = 0; d < num_dimensions; ++d) {
    const auto size = reader.read<int64_t>(what);
    if (size <= 0 || size > kMaxElements / num_elements) {
      reader.fail(what + ": dimension " + std::to_string(d) + " is " + std::to_string(size));
    }
    num_elements *= size;
    entry.tensor.shape.insert(entry.tensor.shape.begin(), size);
  }
  const auto type = reader.read<uint32_t>(what);
  GgufBlock block{};
  try {
    block = gguf_block(type);
  } catch (const std::invalid_argument& error) {
    reader.fail(what + ": " + error.what());
  }
  entry.tensor.type = static_cast<GgufType>(type);
  const int64_t row = entry.tensor.shape.back();
  if (row % block.num_elements != 0) {
    reader.fail(what + ": rows of " + std::to_string(row) + " elements are not a multiple of the " +
                std::to_string(block.num_elements) + " in a block of " + std::string(block.name));
  }
  entry.offset = reader.read<uint64_t>(what);
  entry.size_bytes = static_cast<uint64_t>(num_elements / block.num_elements * block.size_bytes);
  return entry;
}

// Tensors over the same bytes would let a small file unpack to any size.
void check_apart(const std::map<std::string, GgufTensor>& tensors, const Reader& reader) {
  std::vector<const GgufTensor*> in_order;
  in_order.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) in_order.push_back(&tensor);
  std::sort(in_order.begin(), in_order.end(),
            [](const GgufTensor* a, const GgufTensor* b) { return a->data.data() < b->data.data(); });
  for (size_t i = 1; i < in_order.size(); ++i) {
    const GgufTensor &before = *in_order[i - 1], &tensor = *in_order[i];
    if (before.data.data() + before.data.size() <= tensor.data.data()) continue;
    reader.fail("tensors " + before.name + " and " + tensor.name + " overlap");
  }
}

std::string kind(const GgufValue& value) {
  static constexpr const char* kNames[] = {"a boolean", "an integer", "an integer", "a number", "a text", "an array"};
  return kNames[value.index()];
}

const GgufArray& to_array(const GgufValue& value, const std::string& where, const std::string& key,
                          const std::string& expected) {
  if (const auto* array = std::get_if<GgufArray>(&value)) return *array;
  throw std::runtime_error(where + ": '" + key + "': expected an array" + expected + ", found " + kind(value));
}

template <typename Item, typename Convert>
std::vector<Item> convert_array(const GgufValue& value, const std::string& where, const std::string& key,
                                const char* expected, Convert convert) {
  const GgufArray& array = to_array(value, where, key, std::string(" of ") + expected);
  Reader reader(array.bytes, where);
  std::vector<Item> items;
  items.reserve(array.size);
  for (uint64_t i = 0; i < array.size; ++i) items.push_back(convert(read_scalar(reader, array.item_type, key)));
  return items;
}

int64_t to_integer(const GgufScalar& scalar, const std::string& where, const std::string& key) {
  if (const auto* value = std::get_if<int64_t>(&scalar)) return *value;
  if (const auto* value = std::get_if<uint64_t>(&scalar)) {
    if (*value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return static_cast<int64_t>(*value);
  }
  throw std::runtime_error(where + ": '" + key + "': expected an integer of 64 bits");
}

GgufScalar to_scalar(const GgufValue& value, const std::string& where, const std::string& key) {
  return std::visit(
      [&](const auto& held) -> GgufScalar {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, GgufArray>) {
          throw std::runtime_error(where + ": '" + key + "': expected one value, found an array");
        } else {
          return held;
        }
      },
      value);
}

}  // namespace

int64_t GgufTensor::num_elements() const {
  int64_t product = 1;
  for (const int64_t size : shape) product *= size;
  return product;
}

GgufFile GgufFile::open_part(const std::filesystem::path& path) {
  MappedFile mapped = MappedFile::open(path);
  GgufFile file = parse(mapped.bytes(), path.string());
  file.files_.push_back(std::move(mapped));
  file.paths_.push_back(path);
  return file;
}

GgufFile GgufFile::open(const std::filesystem::path& path) {
  GgufFile file = open_part(path);
  const int64_t num_parts = file.has(kNumParts) ? file.integer(kNumParts) : 1;
  if (num_parts <= 1) return file;
  if (num_parts > kMaxParts) {
    throw std::runtime_error(file.where_ + ": '" + kNumParts + "': expected at most " + std::to_string(kMaxParts) +
                             " parts, found " + std::to_string(num_parts));
  }
  const std::string end = part_ending(0, num_parts);
  const std::string name = path.filename().string();
  const int64_t index = file.integer(kPart);
  if (index != 0) {
    throw std::invalid_argument(file.where_ + ": part " + std::to_string(index + 1) + " of " +
                                std::to_string(num_parts) + ". Name the first, which ends in " + end);
  }
  if (!name.ends_with(end)) {
    throw std::invalid_argument(file.where_ + ": the first of " + std::to_string(num_parts) +
                                " parts. Its name must end in " + end + ", so that the others are found");
  }
  const std::string stem = name.substr(0, name.size() - end.size());
  for (int64_t i = 1; i < num_parts; ++i) {
    file.add_part(path.parent_path() / (stem + part_ending(i, num_parts)), i, num_parts);
  }
  const int64_t num_tensors = file.integer(kNumTensors);
  if (num_tensors != static_cast<int64_t>(file.tensors_.size())) {
    throw std::runtime_error(file.where_ + ": '" + kNumTensors + "' is " + std::to_string(num_tensors) +
                             ", but its parts hold " + std::to_string(file.tensors_.size()) + " tensors");
  }
  return file;
}

void GgufFile::add_part(const std::filesystem::path& path, int64_t index, int64_t num_parts) {
  GgufFile part = open_part(path);
  const int64_t found_index = part.integer(kPart), found_count = part.integer(kNumParts);
  if (found_index != index || found_count != num_parts) {
    throw std::runtime_error(part.where_ + ": expected part " + std::to_string(index + 1) + " of " +
                             std::to_string(num_parts) + ", found part " + std::to_string(found_index + 1) + " of " +
                             std::to_string(found_count));
  }
  for (auto& [name, tensor] : part.tensors_) {
    if (tensors_.contains(name)) throw std::runtime_error(part.where_ + ": tensor " + name + " is in another part too");
    tensors_.emplace(name, std::move(tensor));
  }
  files_.push_back(std::move(part.files_.front()));
  paths_.push_back(path);
}

GgufFile GgufFile::parse(std::span<const std::byte> bytes, const std::string& where) {
  GgufFile file;
  file.where_ = where;
  Reader reader(bytes, where);
  const auto magic = reader.take(4, "the magic");
  if (std::memcmp(magic.data(), "GGUF", 4) != 0) reader.fail("not a GGUF file: it does not start with 'GGUF'");
  const auto version = reader.read<uint32_t>("the version");
  if (version != 2 && version != 3)
    reader.fail("GGUF version " + std::to_string(version) + "; versions 2 and 3 are read");
  const auto num_tensors = reader.read<uint64_t>("the number of tensors");
  const auto num_values = reader.read<uint64_t>("the number of metadata values");
  for (uint64_t i = 0; i < num_values; ++i) {
    std::string key = reader.read_name("metadata key " + std::to_string(i));
    GgufValue value = read_value(reader, key);
    if (!file.metadata_.emplace(key, std::move(value)).second) reader.fail("metadata key '" + key + "' appears twice");
  }
  std::vector<TensorEntry> entries;
  for (uint64_t i = 0; i < num_tensors; ++i) entries.push_back(read_tensor_entry(reader));

  const uint64_t alignment =
      file.has("general.alignment") ? static_cast<uint64_t>(file.integer("general.alignment")) : 32;
  if (alignment == 0 || alignment > kMaxAlignment || (alignment & (alignment - 1)) != 0) {
    reader.fail("'general.alignment': expected a power of two up to 65536, found " + std::to_string(alignment));
  }
  const uint64_t start = (reader.offset() + alignment - 1) / alignment * alignment;
  if (!entries.empty() && start > bytes.size()) reader.fail("the file ends before its tensor data");
  for (TensorEntry& entry : entries) {
    const std::string what = "tensor " + entry.tensor.name;
    const uint64_t available = bytes.size() - start;
    if (entry.offset % alignment != 0) {
      reader.fail(what + ": offset " + std::to_string(entry.offset) + " is not a multiple of " +
                  std::to_string(alignment));
    }
    if (entry.offset > available || entry.size_bytes > available - entry.offset) {
      reader.fail(what + ": bytes " + std::to_string(entry.offset) + " to " +
                  std::to_string(entry.offset + entry.size_bytes) + " of the data, which has " +
                  std::to_string(available) + "; the file is truncated or damaged");
    }
    entry.tensor.data = bytes.subspan(start + entry.offset, entry.size_bytes);
    const std::string name = entry.tensor.name;
    if (!file.tensors_.emplace(name, std::move(entry.tensor)).second) reader.fail(what + " appears twice");
  }
  check_apart(file.tensors_, reader);
  return file;
}

const GgufValue& GgufFile::value(const std::string& key) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) throw std::runtime_error(where_ + ": the metadata key '" + key + "' is missing");
  return found->second;
}

std::string GgufFile::text(const std::string& key) const {
  const auto* found = std::get_if<std::string>(&value(key));
  if (found == nullptr) {
    throw std::runtime_error(where_ + ": '" + key + "': expected a text, found " + kind(value(key)));
  }
  if (has_nul(*found)) throw std::runtime_error(where_ + ": '" + key + "' holds the character U+0000");
  return *found;
}

int64_t GgufFile::integer(const std::string& key) const {
  return to_integer(to_scalar(value(key), where_, key), where_, key);
}

double GgufFile::number(const std::string& key) const {
  const GgufValue& found = value(key);
  if (const auto* number = std::get_if<double>(&found)) {
    if (std::isfinite(*number)) return *number;
    throw std::runtime_error(where_ + ": '" + key + "': expected a finite number");
  }
  return static_cast<double>(integer(key));
}

bool GgufFile::boolean(const std::string& key) const {
  if (const auto* found = std::get_if<bool>(&value(key))) return *found;
  throw std::runtime_error(where_ + ": '" + key + "': expected a boolean, found " + kind(value(key)));
}

int64_t GgufFile::count(const std::string& key) const {
  return static_cast<int64_t>(to_array(value(key), where_, key, "").size);
}

std::vector<std::string> GgufFile::texts(const std::string& key) const {
  return convert_array<std::string>(value(key), where_, key, "texts", [&](GgufScalar&& item) {
    if (auto* text = std::get_if<std::string>(&item)) return std::move(*text);
    throw std::runtime_error(where_ + ": '" + key + "': expected an array of texts");
  });
}

std::vector<int64_t> GgufFile::integers(const std::string& key) const {
  return convert_array<int64_t>(value(key), where_, key, "integers",
                                [&](const GgufScalar& item) { return to_integer(item, where_, key); });
}

std::vector<double> GgufFile::numbers(const std::string& key) const {
  return convert_array<double>(value(key), where_, key, "numbers", [&](const GgufScalar& item) {
    if (const auto* number = std::get_if<double>(&item)) return *number;
    return static_cast<double>(to_integer(item, where_, key));
  });
}

std::vector<bool> GgufFile::booleans(const std::string& key) const {
  return convert_array<bool>(value(key), where_, key, "booleans", [&](const GgufScalar& item) {
    if (const auto* held = std::get_if<bool>(&item)) return *held;
    throw std::runtime_error(where_ + ": '" + key + "': expected an array of booleans");
  });
}

const GgufTensor& GgufFile::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw std::runtime_error(where_ + ": the tensor '" + name + "' is missing");
  return found->second;
}

void GgufFile::drop_pages(const GgufTensor& tensor) const {
  for (const MappedFile& mapped : files_) {
    const std::span<const std::byte> bytes = mapped.bytes();
    const std::less_equal<const std::byte*> before;
    const bool is_in =
        before(bytes.data(), tensor.data.data()) && before(tensor.data.data(), bytes.data() + bytes.size());
    if (is_in) mapped.drop(tensor.data);
  }
}

}  // namespace pare::runtime
