#include "compress/hdf5/hdf5_reader.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <utility>

#include "runtime/system/visible_text.h"
#include "runtime/text/unicode.h"

namespace pare::compress {
namespace {

static_assert(std::endian::native == std::endian::little, "fields and floats are copied as they lie in the file");

constexpr uint64_t kUndefined = ~uint64_t{0};
// The most metadata in one object's header, or in all that one look-up in a group reads. It is a thousand times that of
// an honest file. Metadata that point back to themselves exhaust it.
constexpr int64_t kMaxMetadataBytes = int64_t{16} << 20;

// Types of messages in object headers.
constexpr int kNil = 0x0, kDataspace = 0x1, kDatatype = 0x3, kFillValue = 0x5, kLayout = 0x8, kAttribute = 0xC,
              kContinuation = 0x10, kSymbolTable = 0x11;

// The type messages that are accepted, to the last bit: order, sign, precision and padding.
constexpr std::array<uint8_t, 12> unsigned_type(uint8_t size) {
  return {0x10, 0, 0, 0, size, 0, 0, 0, 0, 0, static_cast<uint8_t>(8 * size), 0};
}
// An IEEE float, in which sign, exponent and mantissa follow each other.
constexpr std::array<uint8_t, 20> float_type(uint8_t size, uint8_t exponent_bits, uint32_t bias) {
  const auto num_bits = static_cast<uint8_t>(8 * size);
  const auto mantissa_bits = static_cast<uint8_t>(num_bits - 1 - exponent_bits);
  return {0x11,
          0x20,
          static_cast<uint8_t>(num_bits - 1),
          0,
          size,
          0,
          0,
          0,
          0,
          0,
          num_bits,
          0,
          mantissa_bits,
          exponent_bits,
          0,
          mantissa_bits,
          static_cast<uint8_t>(bias & 0xFF),
          static_cast<uint8_t>(bias >> 8),
          0,
          0};
}
constexpr std::array<uint8_t, 12> kUnsigned64 = unsigned_type(8);
constexpr std::array<uint8_t, 4> kText = {0x13, 1, 0, 0};  // padded with zeros; its size follows

template <size_t Size>
bool starts_with(std::span<const std::byte> bytes, const std::array<uint8_t, Size>& start) {
  return bytes.size() >= Size && std::memcmp(bytes.data(), start.data(), Size) == 0;
}

bool is_type(std::span<const std::byte> message, Hdf5Type type) {
  switch (type) {
    case Hdf5Type::float16:
      return starts_with(message, float_type(2, 5, 15));
    case Hdf5Type::float32:
      return starts_with(message, float_type(4, 8, 127));
    case Hdf5Type::float64:
      return starts_with(message, float_type(8, 11, 1023));
    default:
      return starts_with(message, unsigned_type(static_cast<uint8_t>(size_bytes(type))));
  }
}

std::string type_words(Hdf5Type type) {
  const bool is_float = type == Hdf5Type::float16 || type == Hdf5Type::float32 || type == Hdf5Type::float64;
  const std::string order = size_bytes(type) > 1 ? ", little-endian" : "";
  return std::to_string(8 * size_bytes(type)) + "-bit " + (is_float ? "floats" : "unsigned integers") + order;
}

uint32_t type_size(std::span<const std::byte> type) {
  uint32_t size = 0;
  if (type.size() >= 8) std::memcpy(&size, type.data() + 4, sizeof(size));
  return size;
}

std::string type_words(std::span<const std::byte> type) {
  if (type.size() < 8) return "a type that ends early";
  const auto byte = [&](size_t i) { return std::to_integer<unsigned>(type[i]); };
  const std::string bits = std::to_string(uint64_t{8} * type_size(type)) + "-bit ";
  const std::string order = (byte(1) & 1) != 0 ? ", big-endian" : ", little-endian";
  switch (byte(0) & 0xF) {
    case 0:
      return bits + ((byte(1) & 8) != 0 ? "signed integers" : "unsigned integers") + order;
    case 1:
      return bits + "floats" + order;
    case 3:
      return "a text of " + std::to_string(type_size(type)) + " bytes" + ((byte(1) >> 4) == 1 ? ", UTF-8" : "") +
             ((byte(1) & 0xF) == 1 ? "" : ", not padded with zeros");
    case 9:
      return "data of variable length";
    default:
      static constexpr std::array<const char*, 16> kClasses = {
          "integers", "floats",        "times",  "texts",   "bit fields", "opaque data", "compound data", "references",
          "enums",    "variable data", "arrays", "unknown", "unknown",    "unknown",     "unknown",       "unknown"};
      return std::string("a type of ") + kClasses[byte(0) & 0xF];
  }
}

std::string message_words(int type) {
  switch (type) {
    case 0x2:
    case 0x6:
    case 0xA:
      return "links of the newer format, which may be soft or lead into other files";
    case 0x7:
      return "data in external files";
    case 0xB:
      return "filters (compression)";
    case 0xF:
      return "shared messages";
    case 0x12:
      return "a time of modification";
    case 0x15:
      return "attributes of the newer format";
    default:
      return "a message of type " + std::to_string(type);
  }
}

std::string child(const std::string& path, const std::string& name) {
  return (path == "/" ? path : path + "/") + name;
}

std::string attribute_path(const std::string& path, const char* name) {
  return "attribute " + child(path, name);
}

}  // namespace

bool is_plain_text(std::string_view text) {
  return !runtime::find_invalid_utf8(text) && std::none_of(text.begin(), text.end(), runtime::is_control);
}

std::string plain_text(std::string_view name) {
  std::string text;
  for (const char c : runtime::utf8_with_replacements(name)) {
    if (runtime::is_control(c)) {
      runtime::utf8_append(U'\uFFFD', text);
    } else {
      text += c;
    }
  }
  return text;
}

std::string shape_words(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "[" : ", ") + std::to_string(size);
  return text.empty() ? "a single value" : text + "]";
}

// Reads the fields of one structure in order.
class Hdf5Reader::Fields {
 public:
  Fields(const Hdf5Reader& reader, const std::string& object, const char* what, std::span<const std::byte> bytes)
      : reader_(reader), object_(object), what_(what), bytes_(bytes) {}

  size_t size() const { return bytes_.size(); }
  std::span<const std::byte> take(size_t size) {
    if (size > bytes_.size()) reader_.refuse(object_, std::string("a complete ") + what_, "one that ends early");
    const auto taken = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return taken;
  }
  template <typename Integer>
  Integer get() {
    Integer value;
    std::memcpy(&value, take(sizeof(Integer)).data(), sizeof(Integer));
    return value;
  }
  template <typename Integer>
  void expect(Integer value, const char* field) {
    const auto found = get<Integer>();
    if (found != value) {
      reader_.refuse(object_, std::string(what_) + " with " + field + " " + std::to_string(value),
                     std::to_string(found));
    }
  }
  void expect_signature(std::string_view signature) {
    const auto found = take(signature.size());
    if (std::memcmp(found.data(), signature.data(), signature.size()) != 0) {
      reader_.refuse(object_, std::string("a ") + what_, "other bytes");
    }
  }

 private:
  const Hdf5Reader& reader_;
  const std::string& object_;
  const char* what_;
  std::span<const std::byte> bytes_;
};

// Limits what is read on behalf of one object.
class Hdf5Reader::Metadata {
 public:
  Metadata(const Hdf5Reader& reader, const std::string& object) : reader_(reader), object_(object) {}

  std::vector<std::byte> read(uint64_t address, uint64_t size) {
    const int64_t offset = reader_.locate(object_, address, size);
    left_ -= static_cast<int64_t>(size);
    if (left_ < 0) {
      reader_.refuse(object_, "metadata of at most " + std::to_string(kMaxMetadataBytes) + " bytes", "more");
    }
    std::vector<std::byte> bytes(size);
    reader_.file_.read(offset, bytes);
    return bytes;
  }

 private:
  const Hdf5Reader& reader_;
  const std::string& object_;
  int64_t left_ = kMaxMetadataBytes;
};

Hdf5Reader::Hdf5Reader(runtime::InputFile file, int64_t user_block_bytes, std::string remedy)
    : file_(std::move(file)), base_bytes_(user_block_bytes), remedy_(std::move(remedy)) {
  const std::string object = "/";
  const std::vector<std::byte> bytes = Metadata(*this, object).read(0, 96);
  Fields fields(*this, object, "HDF5 superblock", bytes);
  fields.expect_signature("\x89HDF\r\n\x1A\n");
  fields.expect<uint32_t>(0, "versions");  // those of the superblock, the free space and the root's entry, and a
                                           // reserved byte
  fields.expect<uint8_t>(0, "version of shared headers");
  fields.expect<uint8_t>(8, "size of offsets");
  fields.expect<uint8_t>(8, "size of lengths");
  fields.take(1 + 2 + 2);  // the degrees of B-trees: their nodes state how much they hold
  fields.expect<uint32_t>(0, "consistency flags");
  fields.expect<uint64_t>(static_cast<uint64_t>(base_bytes_), "base address");
  fields.expect<uint64_t>(kUndefined, "free space at");
  fields.expect<uint64_t>(static_cast<uint64_t>(file_.size_bytes()), "end of file at");
  fields.expect<uint64_t>(kUndefined, "driver information at");
  fields.take(8);  // the root's name
  root_address_ = fields.get<uint64_t>();
}

Hdf5Object Hdf5Reader::root() const {
  return Hdf5Object(*this, "/", root_address_);
}

void Hdf5Reader::refuse(const std::string& object, const std::string& expected, const std::string& found) const {
  throw std::runtime_error("cannot read '" + file_.path().string() + "': " + object + ": expected " + expected +
                           ", found " + found + ": " + remedy_);
}

int64_t Hdf5Reader::locate(const std::string& object, uint64_t address, uint64_t size) const {
  const auto available = static_cast<uint64_t>(std::max<int64_t>(0, file_.size_bytes() - base_bytes_));
  if (size > available || address > available - size) {
    refuse(object, "bytes inside the file (" + std::to_string(file_.size_bytes()) + " bytes)",
           std::to_string(size) + " bytes at " + std::to_string(address));
  }
  return base_bytes_ + static_cast<int64_t>(address);
}

std::optional<uint64_t> Hdf5Reader::find_link(const std::string& group, SymbolTable table,
                                              const std::string& name) const {
  Metadata metadata(*this, group);
  const std::vector<std::byte> heap_bytes = metadata.read(table.heap, 32);
  Fields heap(*this, group, "local heap", heap_bytes);
  heap.expect_signature("HEAP");
  heap.expect<uint32_t>(0, "version");
  const auto names_size = heap.get<uint64_t>();
  heap.take(8);  // its free list
  const std::vector<std::byte> names = metadata.read(heap.get<uint64_t>(), names_size);
  const auto is_named = [&](uint64_t offset) {
    const auto rest = std::span(names).subspan(std::min<size_t>(offset, names.size()));
    return rest.size() > name.size() && std::memcmp(rest.data(), name.data(), name.size()) == 0 &&
           rest[name.size()] == std::byte{0};
  };

  std::optional<uint64_t> found;
  const auto read_links = [&](uint64_t address) {
    const std::vector<std::byte> head_bytes = metadata.read(address, 8);
    Fields head(*this, group, "symbol node", head_bytes);
    head.expect_signature("SNOD");
    head.expect<uint16_t>(1, "version");
    const auto count = head.get<uint16_t>();
    const std::vector<std::byte> entry_bytes = metadata.read(address + 8, uint64_t{40} * count);
    Fields entries(*this, group, "symbol node", entry_bytes);
    for (int i = 0; i < count; ++i) {
      const auto name_offset = entries.get<uint64_t>();
      const auto header = entries.get<uint64_t>();
      const auto kind = entries.get<uint32_t>();
      entries.take(4 + 16);
      if (!is_named(name_offset)) continue;
      if (kind > 1) refuse(child(group, name), "a hard link", kind == 2 ? "a soft link" : "another kind of link");
      if (found) refuse(child(group, name), "one link of this name", "two");
      found = header;
    }
  };
  const std::function<void(uint64_t, int)> read_tree = [&](uint64_t address, int expected_level) {
    const std::vector<std::byte> head_bytes = metadata.read(address, 24);
    Fields head(*this, group, "B-tree node", head_bytes);
    head.expect_signature("TREE");
    head.expect<uint8_t>(0, "type");
    const int level = head.get<uint8_t>();
    // Levels fall from parent to child, so that no path goes in circles.
    if (expected_level >= 0 && level != expected_level) {
      refuse(group, "a B-tree node of level " + std::to_string(expected_level), std::to_string(level));
    }
    const auto count = head.get<uint16_t>();
    const std::vector<std::byte> entry_bytes = metadata.read(address + 24, uint64_t{16} * count);
    Fields entries(*this, group, "B-tree node", entry_bytes);
    for (int i = 0; i < count; ++i) {
      entries.take(8);  // the key is skipped: all entries are searched
      const auto below = entries.get<uint64_t>();
      level == 0 ? read_links(below) : read_tree(below, level - 1);
    }
  };
  read_tree(table.tree, -1);
  return found;
}

void Hdf5Reader::read_bytes(const Hdf5Array& array, int64_t first, std::span<std::byte> values) const {
  const int64_t value_bytes = size_bytes(array.type);
  const auto count = static_cast<int64_t>(values.size()) / value_bytes;
  if (first < 0 || count > array.num_values || first > array.num_values - count ||
      count * value_bytes != static_cast<int64_t>(values.size())) {
    throw std::invalid_argument(array.path + ": values " + std::to_string(first) + " to " +
                                std::to_string(first + count) + " of " + std::to_string(array.num_values) + " in " +
                                std::to_string(values.size()) + " bytes");
  }
  file_.read(array.offset_bytes + first * value_bytes, values);
}

Hdf5Object::Hdf5Object(const Hdf5Reader& reader, std::string path, uint64_t address)
    : reader_(&reader), path_(std::move(path)) {
  Hdf5Reader::Metadata metadata(reader, path_);
  const std::vector<std::byte> prefix_bytes = metadata.read(address, 16);
  Hdf5Reader::Fields prefix(reader, path_, "object header", prefix_bytes);
  prefix.expect<uint16_t>(1, "version");
  const int num_messages = prefix.get<uint16_t>();
  prefix.take(4);  // the number of links that lead here
  std::vector<std::pair<uint64_t, uint64_t>> pieces = {{address + 16, prefix.get<uint32_t>()}};
  int num_found = 0;
  for (size_t piece = 0; piece < pieces.size(); ++piece) {
    const std::vector<std::byte> bytes = metadata.read(pieces[piece].first, pieces[piece].second);
    Hdf5Reader::Fields fields(reader, path_, "object header", bytes);
    while (fields.size() > 0) {
      const int type = fields.get<uint16_t>();
      const auto size = fields.get<uint16_t>();
      const auto flags = fields.get<uint8_t>();
      fields.take(3);
      const auto body = fields.take(size);
      ++num_found;
      if (flags > 1) reader.refuse(path_, "messages of this object alone", "a shared or special one");
      switch (type) {
        case kNil:
          break;
        case kContinuation: {
          Hdf5Reader::Fields continuation(reader, path_, "continuation", body);
          const auto next = continuation.get<uint64_t>();
          const auto next_size = continuation.get<uint64_t>();
          // A piece without a message would cost nothing and so could follow itself for ever.
          if (next_size < 8) reader.refuse(path_, "a continuation of at least 8 bytes", std::to_string(next_size));
          pieces.emplace_back(next, next_size);
          break;
        }
        case kDataspace:
        case kDatatype:
        case kFillValue:
        case kLayout:
        case kAttribute:
        case kSymbolTable:
          messages_.push_back({type, {body.begin(), body.end()}});
          break;
        default:
          reader.refuse(path_, "a plain group or a contiguous array", message_words(type));
      }
    }
  }
  if (num_found != num_messages) {
    reader.refuse(path_, std::to_string(num_messages) + " header messages", std::to_string(num_found));
  }
}

std::span<const std::byte> Hdf5Object::only(int type, const char* what) const {
  const auto is_wanted = [&](const Message& message) { return message.type == type; };
  const auto count = std::count_if(messages_.begin(), messages_.end(), is_wanted);
  if (count != 1) {
    const bool is_group = std::any_of(messages_.begin(), messages_.end(),
                                      [](const Message& message) { return message.type == kSymbolTable; });
    reader_->refuse(path_, what, count > 1 ? "several descriptions" : is_group ? "a group" : "something else");
  }
  return std::find_if(messages_.begin(), messages_.end(), is_wanted)->bytes;
}

std::optional<Hdf5Object> Hdf5Object::find(const std::string& name) const {
  Hdf5Reader::Fields fields(*reader_, path_, "symbol table", only(kSymbolTable, "a group"));
  const auto tree = fields.get<uint64_t>();
  const auto heap = fields.get<uint64_t>();
  const std::optional<uint64_t> address = reader_->find_link(path_, {tree, heap}, name);
  if (!address) return std::nullopt;
  return Hdf5Object(*reader_, child(path_, name), *address);
}

std::vector<int64_t> Hdf5Object::shape(std::span<const std::byte> dataspace) const {
  Hdf5Reader::Fields fields(*reader_, path_, "dataspace", dataspace);
  fields.expect<uint8_t>(1, "version");
  const int rank = fields.get<uint8_t>();
  const int flags = fields.get<uint8_t>();
  fields.take(5);
  if (rank > 2 || flags > 1) {
    reader_->refuse(path_, "at most 2 dimensions", rank > 2 ? std::to_string(rank) : "permuted ones");
  }
  const auto sizes = [&] {
    std::vector<uint64_t> values;
    for (int i = 0; i < rank; ++i) values.push_back(fields.get<uint64_t>());
    return values;
  };
  const std::vector<uint64_t> now = sizes();
  if (flags == 1 && sizes() != now) reader_->refuse(path_, "a fixed shape", "an extensible one");
  for (const uint64_t size : now) {
    if (size > static_cast<uint64_t>(reader_->file().size_bytes())) {
      reader_->refuse(path_, "dimensions that fit into the file", std::to_string(size));
    }
  }
  return {now.begin(), now.end()};
}

Hdf5Object::Attribute Hdf5Object::attribute(const char* name) const {
  std::optional<Attribute> found;
  const std::string where = attribute_path(path_, name);
  for (const Message& message : messages_) {
    if (message.type != kAttribute) continue;
    Hdf5Reader::Fields fields(*reader_, path_, "attribute", message.bytes);
    fields.expect<uint16_t>(1, "version");
    const auto padded = [](size_t size) { return (size + 7) / 8 * 8; };
    const size_t name_size = fields.get<uint16_t>(), type_size = fields.get<uint16_t>(),
                 space_size = fields.get<uint16_t>();
    const auto name_bytes = fields.take(padded(name_size)).first(name_size);
    const auto type = fields.take(padded(type_size)).first(type_size);
    const auto space = fields.take(padded(space_size)).first(space_size);
    const size_t length = std::strlen(name);
    if (name_size != length + 1 || std::memcmp(name_bytes.data(), name, length + 1) != 0) continue;
    if (found) reader_->refuse(where, "one attribute of this name", "two");
    const std::vector<int64_t> sizes = shape(space);
    if (!sizes.empty()) reader_->refuse(where, "a single value", "an array " + shape_words(sizes));
    found = Attribute{type, fields.take(fields.size())};
  }
  if (!found) reader_->refuse(where, "an attribute", "none");
  return *found;
}

std::string Hdf5Object::text(const char* name) const {
  const Attribute attribute = this->attribute(name);
  const std::string where = attribute_path(path_, name);
  const size_t size = compress::type_size(attribute.type);
  if (!starts_with(attribute.type, kText) || size < 1 || size > attribute.value.size()) {
    reader_->refuse(where, "a text of fixed size, padded with zeros",
                    type_words(attribute.type) + " in " + std::to_string(attribute.value.size()) + " bytes");
  }
  std::string text(reinterpret_cast<const char*>(attribute.value.data()), size);
  while (!text.empty() && text.back() == '\0') text.pop_back();
  if (!is_plain_text(text)) reader_->refuse(where, "UTF-8 without control characters", "other bytes");
  return text;
}

uint64_t Hdf5Object::number(const char* name) const {
  const Attribute attribute = this->attribute(name);
  uint64_t value = 0;
  if (!starts_with(attribute.type, kUnsigned64) || attribute.value.size() < sizeof(value)) {
    reader_->refuse(attribute_path(path_, name), "64-bit unsigned integers, little-endian", type_words(attribute.type));
  }
  std::memcpy(&value, attribute.value.data(), sizeof(value));
  return value;
}

Hdf5Array Hdf5Object::array(const std::string& name, Hdf5Type expected_type) const {
  const std::optional<Hdf5Object> member = find(name);
  if (!member) reader_->refuse(child(path_, name), "an array", "nothing");
  const Hdf5Object& set = *member;
  Hdf5Array array{.path = set.path_, .type = expected_type, .shape = set.shape(set.only(kDataspace, "an array"))};
  const auto type = set.only(kDatatype, "an array");
  if (!is_type(type, expected_type)) {
    reader_->refuse(set.path_, type_words(expected_type), type_words(type));
  }
  if (array.shape.empty()) reader_->refuse(set.path_, "an array", "a single value");
  Hdf5Reader::Fields layout(*reader_, set.path_, "layout", set.only(kLayout, "an array"));
  layout.expect<uint8_t>(3, "version");
  const int kind = layout.get<uint8_t>();
  if (kind != 1) {
    reader_->refuse(set.path_, "contiguous values", kind == 0 ? "compact ones" : kind == 2 ? "chunks" : "others");
  }
  const auto address = layout.get<uint64_t>();
  const auto num_bytes = layout.get<uint64_t>();
  int64_t expected = size_bytes(expected_type);
  array.num_values = 1;
  for (const int64_t size : array.shape) {
    if (__builtin_mul_overflow(expected, size, &expected)) {
      reader_->refuse(set.path_, "a shape that fits into the file", shape_words(array.shape));
    }
    array.num_values *= size;
  }
  if (num_bytes != static_cast<uint64_t>(expected)) {
    reader_->refuse(set.path_, std::to_string(expected) + " bytes for " + shape_words(array.shape),
                    std::to_string(num_bytes));
  }
  if (num_bytes == 0) return array;  // an empty array has no place
  array.offset_bytes = reader_->locate(set.path_, address, num_bytes);
  return array;
}

}  // namespace pare::compress
