#include "runtime/files/npy.h"

#include <charconv>
#include <cstring>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string_view>

#include "runtime/system/atomic_file.h"
#include "runtime/system/mapped_file.h"
#include "runtime/system/visible_text.h"

namespace pare::runtime {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

[[noreturn]] void fail(const std::string& where, const std::string& what) {
  throw std::runtime_error("'" + where + "' cannot be read as .npy token windows: " + what);
}

struct NpyHeader {
  std::string descr;  // e.g. "<i4"
  bool fortran_order = false;
  std::vector<int64_t> shape;
};

// Reads the header, a Python dictionary literal of exactly three keys:
//   {'descr': '<i4', 'fortran_order': False, 'shape': (128, 512), }
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  NpyHeader parse() {
    std::optional<std::string> descr;
    std::optional<bool> fortran_order;
    std::optional<std::vector<int64_t>> shape;
    expect("{");
    while (!accept("}")) {
      const std::string key = quoted_string();
      expect(":");
      if (key == "descr" && !descr) {
        descr = description();
      } else if (key == "fortran_order" && !fortran_order) {
        fortran_order = accept("True");
        if (!*fortran_order) expect("False");
      } else if (key == "shape" && !shape) {
        shape = tuple();
      } else {
        fail(where_, "its header has the unknown or repeated key '" + visible_line(key) + "'");
      }
      if (!accept(",")) {
        expect("}");
        break;
      }
    }
    skip_spaces();
    if (!text_.empty()) malformed("the end");
    if (!descr || !fortran_order || !shape) fail(where_, "its header lacks descr, fortran_order or shape");
    return {*descr, *fortran_order, *shape};
  }

 private:
  [[noreturn]] void malformed(std::string_view expected) {
    fail(where_,
         "malformed header: expected " + std::string(expected) + ", found '" + visible_line(text_.substr(0, 20)) + "'");
  }

  void skip_spaces() {
    const size_t begin = text_.find_first_not_of(" \t\r\n");
    text_.remove_prefix(begin == std::string_view::npos ? text_.size() : begin);
  }

  bool accept(std::string_view token) {
    skip_spaces();
    if (!text_.starts_with(token)) return false;
    text_.remove_prefix(token.size());
    return true;
  }

  void expect(std::string_view token) {
    if (!accept(token)) malformed("'" + std::string(token) + "'");
  }

  std::string quoted_string() {
    skip_spaces();
    if (text_.empty() || (text_[0] != '\'' && text_[0] != '"')) malformed("a string");
    const size_t end = text_.find(text_[0], 1);
    if (end == std::string_view::npos || end > 64) malformed("a short string");
    std::string value(text_.substr(1, end - 1));
    text_.remove_prefix(end + 1);
    return value;
  }

  std::string description() {
    skip_spaces();
    if (text_.starts_with('[')) fail(where_, "expected integers, found a structured type");
    return quoted_string();
  }

  std::vector<int64_t> tuple() {
    std::vector<int64_t> values;
    expect("(");
    while (!accept(")")) {
      skip_spaces();
      int64_t value = 0;
      const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
      if (error != std::errc() || value < 0) malformed("a size");
      text_.remove_prefix(static_cast<size_t>(end - text_.data()));
      values.push_back(value);
      if (values.size() > 32) fail(where_, "its shape has more than 32 dimensions");
      if (!accept(",")) {
        expect(")");
        break;
      }
    }
    return values;
  }

  std::string_view text_;
  const std::string& where_;
};

std::string shape_of(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + ")";
}

// Reads ids of type Id (int32_t or int64_t) from an address that need not be aligned.
template <typename Id>
void read_ids(std::span<const std::byte> data, const std::string& where, std::vector<int32_t>& ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    Id id;
    std::memcpy(&id, data.data() + i * sizeof(Id), sizeof(Id));
    if (id < 0 || id > std::numeric_limits<int32_t>::max()) {
      fail(where,
           "expected token ids from 0 to 2^31 - 1, found " + std::to_string(id) + " at index " + std::to_string(i));
    }
    ids[i] = static_cast<int32_t>(id);
  }
}

// Returns the header's text and the data after it.
std::pair<std::string_view, std::span<const std::byte>> split(std::span<const std::byte> bytes,
                                                              const std::string& where) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text.starts_with(kMagic)) fail(where, "it does not start with the .npy magic");
  if (bytes.size() < 12) fail(where, "truncated in its header");
  const int major = static_cast<int>(bytes[6]), minor = static_cast<int>(bytes[7]);
  if ((major != 1 && major != 2) || minor != 0) {
    fail(where, "expected version 1.0 or 2.0, found " + std::to_string(major) + "." + std::to_string(minor));
  }
  uint32_t header_bytes = 0;  // a little-endian uint16 in version 1, uint32 in version 2
  std::memcpy(&header_bytes, bytes.data() + 8, major == 1 ? 2 : 4);
  const size_t header_begin = major == 1 ? 10 : 12;
  if (header_bytes > bytes.size() - header_begin) {
    fail(where, "its header claims " + std::to_string(header_bytes) + " bytes, but only " +
                    std::to_string(bytes.size() - header_begin) + " follow (a truncated file?)");
  }
  return {text.substr(header_begin, header_bytes), bytes.subspan(header_begin + header_bytes)};
}

}  // namespace

TokenWindows parse_npy(std::span<const std::byte> bytes, const std::string& where) {
  const auto [header_text, data] = split(bytes, where);
  const NpyHeader header = HeaderParser(header_text, where).parse();
  if (header.descr != "<i4" && header.descr != "<i8") {
    fail(where, "expected little-endian int32 or int64 ('<i4', '<i8'), found '" + visible_line(header.descr) + "'");
  }
  if (header.fortran_order) fail(where, "expected C order, found Fortran order: save numpy.ascontiguousarray of it");
  if (header.shape.size() != 1 && header.shape.size() != 2) {
    fail(where, "expected the shape (tokens,) or (windows, tokens), found " + shape_of(header.shape));
  }
  TokenWindows windows;
  windows.num_windows = header.shape.size() == 2 ? header.shape[0] : 1;
  windows.num_tokens = header.shape.back();
  const int64_t id_bytes = header.descr == "<i4" ? 4 : 8;
  int64_t num_ids = 0, num_bytes = 0;
  if (__builtin_mul_overflow(windows.num_windows, windows.num_tokens, &num_ids) ||
      __builtin_mul_overflow(num_ids, id_bytes, &num_bytes) || static_cast<size_t>(num_bytes) != data.size()) {
    fail(where, "the shape " + shape_of(header.shape) + " of '" + header.descr + "' does not match the " +
                    std::to_string(data.size()) + " bytes of data");
  }
  if (num_ids == 0) fail(where, "the shape " + shape_of(header.shape) + " holds no tokens");
  windows.ids_NT.resize(static_cast<size_t>(num_ids));
  if (id_bytes == 4) {
    read_ids<int32_t>(data, where, windows.ids_NT);
  } else {
    read_ids<int64_t>(data, where, windows.ids_NT);
  }
  return windows;
}

TokenWindows read_npy(const std::filesystem::path& path) {
  return parse_npy(MappedFile::open(path).bytes(), path.string());
}

void write_npy(const std::filesystem::path& path, const TokenWindows& windows) {
  if (windows.num_windows < 0 || windows.num_tokens < 0 ||
      windows.ids_NT.size() != static_cast<size_t>(windows.num_windows * windows.num_tokens)) {
    throw std::invalid_argument("cannot write '" + path.string() + "': " + std::to_string(windows.num_windows) +
                                " windows of " + std::to_string(windows.num_tokens) + " tokens, but " +
                                std::to_string(windows.ids_NT.size()) + " ids");
  }
  // Writes as numpy.save does: the header ends in a newline and the data starts at a multiple of 64.
  std::string header = "{'descr': '<i4', 'fortran_order': False, 'shape': (" + std::to_string(windows.num_windows) +
                       ", " + std::to_string(windows.num_tokens) + "), }";
  header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 10, ' ');
  header.back() = '\n';
  const uint16_t header_bytes = static_cast<uint16_t>(header.size());
  write_file_atomically(path, [&](const ByteSink& sink) {
    sink(std::as_bytes(std::span(kMagic)));
    sink(std::as_bytes(std::span("\x01\x00", 2)));
    sink(std::as_bytes(std::span(&header_bytes, 1)));
    sink(std::as_bytes(std::span(header)));
    sink(std::as_bytes(std::span(windows.ids_NT)));
  });
}

}  // namespace pare::runtime
