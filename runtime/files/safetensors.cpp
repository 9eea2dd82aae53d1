#include "runtime/files/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "runtime/system/atomic_file.h"
#include "runtime/system/json_text.h"
#include "runtime/system/visible_text.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit

[[noreturn]] void fail(const std::string& where, const std::string& what) {
  throw std::runtime_error("'" + where + "' is not a valid safetensors file: " + what);
}

// Quotes a shortened name, since a hostile header may have one of megabytes.
std::string quoted(const std::string& name) {
  return "'" + visible_line(name.substr(0, 200)) + (name.size() <= 200 ? "'" : "...'");
}

Json parse_header(std::string_view text, const std::string& where) {
  try {
    return parse_json(text, "its header", Nul::allowed);
  } catch (const BadJson& error) {
    fail(where, error.what());
  }
}

void check_metadata(const Json& metadata, const std::string& where) {
  if (!metadata.is_object()) fail(where, "__metadata__ must be an object of strings");
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) fail(where, "__metadata__ entry " + quoted(key) + " must be a string");
  }
}

int64_t read_size(const Json& value, const std::string& tensor, const char* key, const std::string& where) {
  if (value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX)) {
    return static_cast<int64_t>(value.get<uint64_t>());
  }
  fail(where, "tensor " + quoted(tensor) + ": " + key + " must hold integers from 0 to 2^63 - 1, found " +
                  quoted(json_text(value)));
}

DType read_dtype(const Json& value, const std::string& tensor, const std::string& where) {
  if (!value.is_string()) fail(where, "tensor " + quoted(tensor) + ": dtype must be a string");
  // Types that the format has and pare does not. The file may be in order, so the message says so.
  static const std::set<std::string> others = {"F4",          "F6_E2M3", "F6_E3M2", "F8_E5M2", "F8_E4M3FNUZ",
                                               "F8_E5M2FNUZ", "U16",     "U64",     "C64"};
  const std::string name = value.get<std::string>();
  if (others.contains(name)) {
    throw std::runtime_error("'" + where + "': tensor " + quoted(tensor) + " has the element type " + name +
                             ", which pare does not read: expected a checkpoint of BF16, F16 or F32 weights");
  }
  try {
    return parse_dtype(name);
  } catch (const std::invalid_argument& error) {
    fail(where, "tensor " + quoted(tensor) + ": " + error.what());
  }
}

// Reads one header entry; its offsets are relative to `buffer`.
TensorView read_tensor(const std::string& name, const Json& entry, std::span<const std::byte> buffer,
                       const std::string& where) {
  if (has_nul(name)) fail(where, "tensor " + quoted(name) + ": its name holds U+0000");
  if (!entry.is_object()) fail(where, "tensor " + quoted(name) + ": expected an object");
  for (const auto& [key, value] : entry.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      fail(where, "tensor " + quoted(name) + ": unknown key " + quoted(key));
    }
  }
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!entry.contains(key)) fail(where, "tensor " + quoted(name) + ": missing key '" + key + "'");
  }
  TensorView tensor;
  tensor.dtype = read_dtype(entry["dtype"], name, where);
  if (!entry["shape"].is_array()) fail(where, "tensor " + quoted(name) + ": shape must be an array");
  for (const Json& size : entry["shape"]) tensor.shape.push_back(read_size(size, name, "shape", where));
  const Json& offsets = entry["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2) {
    fail(where, "tensor " + quoted(name) + ": data_offsets must be an array of two");
  }
  const uint64_t begin = static_cast<uint64_t>(read_size(offsets[0], name, "data_offsets", where));
  const uint64_t end = static_cast<uint64_t>(read_size(offsets[1], name, "data_offsets", where));
  const std::string range = std::to_string(begin) + " to " + std::to_string(end);
  if (begin > end || end > buffer.size()) {
    fail(where, "tensor " + quoted(name) + ": data_offsets " + range + " do not lie in the " +
                    std::to_string(buffer.size()) + " bytes of data (a truncated file?)");
  }
  const std::optional<int64_t> num_elements = checked_product(tensor.shape);
  int64_t num_bytes = 0;
  if (!num_elements ||
      __builtin_mul_overflow(*num_elements, static_cast<int64_t>(dtype_size_bytes(tensor.dtype)), &num_bytes)) {
    fail(where, "tensor " + quoted(name) + ": the size of its shape overflows");
  }
  if (static_cast<uint64_t>(num_bytes) != end - begin) {
    fail(where, "tensor " + quoted(name) + ": " + std::string(dtype_name(tensor.dtype)) + " of shape " +
                    shape_text(tensor.shape).substr(0, 200) + " takes " + std::to_string(num_bytes) +
                    " bytes, but data_offsets " + range + " give " + std::to_string(end - begin));
  }
  tensor.data = buffer.subspan(begin, end - begin);
  return tensor;
}

// Checks that every byte of the buffer belongs to exactly one tensor.
void check_cover(const std::map<std::string, TensorView>& tensors, std::span<const std::byte> buffer,
                 const std::string& where) {
  std::vector<std::pair<std::span<const std::byte>, const std::string*>> parts;
  parts.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) parts.emplace_back(tensor.data, &name);
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) {
    return a.first.data() != b.first.data() ? a.first.data() < b.first.data() : a.first.size() < b.first.size();
  });
  const std::byte* covered = buffer.data();
  const std::string* before = nullptr;
  for (const auto& [data, name] : parts) {
    const int64_t offset = data.data() - buffer.data();
    if (data.data() < covered) {
      fail(where,
           "tensors " + quoted(*before) + " and " + quoted(*name) + " overlap at offset " + std::to_string(offset));
    }
    if (data.data() > covered) {
      fail(where, "the " + std::to_string(data.data() - covered) + " bytes before tensor " + quoted(*name) +
                      " (offset " + std::to_string(offset) + ") belong to no tensor");
    }
    covered = data.data() + data.size();
    before = name;
  }
  const size_t num_covered = static_cast<size_t>(covered - buffer.data());
  if (num_covered != buffer.size()) {
    fail(where, "its last " + std::to_string(buffer.size() - num_covered) + " bytes belong to no tensor");
  }
}

// Returns the order in which the reference writer (safetensors/src/tensor.rs) places types: its enum, descending.
int write_rank(DType dtype) {
  static constexpr DType kOrder[] = {DType::I64,  DType::F64, DType::F32, DType::U32,     DType::I32,
                                     DType::BF16, DType::F16, DType::I16, DType::F8_E8M0, DType::F8_E4M3,
                                     DType::I8,   DType::U8,  DType::BOOL};
  return static_cast<int>(std::find(std::begin(kOrder), std::end(kOrder), dtype) - std::begin(kOrder));
}

std::string header_text(const std::vector<StreamedTensor>& tensors, const std::map<std::string, int64_t>& sizes) {
  std::string header = R"({"__metadata__":{"format":"pt"})";
  int64_t offset = 0;
  for (const StreamedTensor& tensor : tensors) {
    const int64_t end = offset + sizes.at(tensor.name);
    header += "," + json_text(Json(tensor.name)) + R"(:{"dtype":")" + std::string(dtype_name(tensor.dtype)) +
              R"(","shape":)" + json_text(Json(tensor.shape)) + R"(,"data_offsets":[)" + std::to_string(offset) + "," +
              std::to_string(end) + "]}";
    offset = end;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return header;
}

// Sorts the tensors as they are written, and returns all that stands before their bytes.
std::string sort_and_describe(std::vector<StreamedTensor>& tensors, const std::map<std::string, int64_t>& sizes) {
  std::sort(tensors.begin(), tensors.end(), [](const StreamedTensor& a, const StreamedTensor& b) {
    const int rank_a = write_rank(a.dtype), rank_b = write_rank(b.dtype);
    return rank_a != rank_b ? rank_a < rank_b : a.name < b.name;
  });
  const std::string header = header_text(tensors, sizes);
  const uint64_t header_bytes = header.size();
  return std::string(reinterpret_cast<const char*>(&header_bytes), sizeof header_bytes) + header;
}

// Returns the size in bytes of each tensor, by name. Throws std::invalid_argument for a bad name, shape or size.
std::map<std::string, int64_t> check_before_writing(const std::filesystem::path& path,
                                                    const std::vector<StreamedTensor>& tensors) {
  std::map<std::string, int64_t> sizes;
  for (const StreamedTensor& tensor : tensors) {
    const std::string what = "cannot write '" + path.string() + "': tensor " + quoted(tensor.name) + " ";
    // A name that JSON cannot hold would come back as another name.
    if (parse_json(json_text(Json(tensor.name)), "a tensor's name", Nul::allowed) != tensor.name) {
      throw std::invalid_argument("cannot write '" + path.string() + "': a tensor's name is not valid UTF-8");
    }
    if (has_nul(tensor.name)) {
      throw std::invalid_argument("cannot write '" + path.string() + "': a tensor's name holds the character U+0000");
    }
    if (tensor.name == "__metadata__") throw std::invalid_argument(what + "has a reserved name");
    const std::optional<int64_t> num_elements = checked_product(tensor.shape);
    int64_t num_bytes = -1;
    if (!num_elements ||
        __builtin_mul_overflow(*num_elements, static_cast<int64_t>(dtype_size_bytes(tensor.dtype)), &num_bytes)) {
      throw std::invalid_argument(what + "has the impossible shape " + shape_text(tensor.shape));
    }
    if (!sizes.emplace(tensor.name, num_bytes).second) throw std::invalid_argument(what + "appears twice");
  }
  return sizes;
}

}  // namespace

std::map<std::string, TensorView> SafetensorsFile::parse(std::span<const std::byte> bytes, const std::string& where) {
  uint64_t header_bytes = 0;
  if (bytes.size() < sizeof(header_bytes)) {
    fail(where, "expected at least 8 bytes, found " + std::to_string(bytes.size()));
  }
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  if (header_bytes > kMaxHeaderBytes) {
    fail(where, "its header claims " + std::to_string(header_bytes) + " bytes; at most " +
                    std::to_string(kMaxHeaderBytes) + " are allowed");
  }
  if (header_bytes > bytes.size() - sizeof(header_bytes)) {
    fail(where, "its header claims " + std::to_string(header_bytes) + " bytes, but only " +
                    std::to_string(bytes.size() - sizeof(header_bytes)) + " follow (a truncated file?)");
  }
  const auto* text = reinterpret_cast<const char*>(bytes.data() + sizeof(header_bytes));
  const std::span<const std::byte> buffer = bytes.subspan(sizeof(header_bytes) + header_bytes);
  if (header_bytes == 0 || text[0] != '{') fail(where, "its header does not start with '{'");
  const Json header = parse_header({text, header_bytes}, where);
  std::map<std::string, TensorView> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      check_metadata(entry, where);
    } else {
      tensors.emplace(name, read_tensor(name, entry, buffer, where));
    }
  }
  check_cover(tensors, buffer, where);
  return tensors;
}

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  SafetensorsFile file(MappedFile::open(path));
  file.tensors_ = parse(file.file_.bytes(), path.string());
  return file;
}

void write_safetensors(const std::filesystem::path& path, std::vector<StreamedTensor> tensors) {
  const std::map<std::string, int64_t> sizes = check_before_writing(path, tensors);
  const std::string header = sort_and_describe(tensors, sizes);
  write_file_atomically(path, [&](const ByteSink& sink) {
    sink(std::as_bytes(std::span(header)));
    for (const StreamedTensor& tensor : tensors) {
      int64_t num_bytes = 0;
      tensor.produce([&](std::span<const std::byte> bytes) {
        num_bytes += static_cast<int64_t>(bytes.size());
        sink(bytes);
      });
      if (num_bytes != sizes.at(tensor.name)) {
        throw std::runtime_error("cannot write '" + path.string() + "': tensor " + quoted(tensor.name) + ": " +
                                 std::to_string(num_bytes) + " bytes were produced, its type and shape ask for " +
                                 std::to_string(sizes.at(tensor.name)));
      }
    }
  });
}

void write_safetensors_header(const std::filesystem::path& path, std::vector<StreamedTensor> tensors) {
  const std::map<std::string, int64_t> sizes = check_before_writing(path, tensors);
  const std::string header = sort_and_describe(tensors, sizes);
  uintmax_t file_bytes = header.size();
  for (const auto& [name, num_bytes] : sizes) file_bytes += static_cast<uintmax_t>(num_bytes);
  write_file_atomically(path, header);
  std::filesystem::resize_file(path, file_bytes);
}

void write_safetensors(const std::filesystem::path& path, std::vector<NamedTensor> tensors) {
  std::vector<StreamedTensor> streamed;
  streamed.reserve(tensors.size());
  for (NamedTensor& tensor : tensors) {
    const std::optional<int64_t> num_elements = checked_product(tensor.shape);
    if (num_elements && static_cast<uint64_t>(*num_elements) * dtype_size_bytes(tensor.dtype) != tensor.data.size()) {
      throw std::invalid_argument("cannot write '" + path.string() + "': tensor " + runtime::quoted(tensor.name) +
                                  " of " + std::string(dtype_name(tensor.dtype)) + " " + shape_text(tensor.shape) +
                                  " has " + std::to_string(tensor.data.size()) + " bytes of data, which do not match");
    }
    streamed.push_back({.name = std::move(tensor.name),
                        .dtype = tensor.dtype,
                        .shape = std::move(tensor.shape),
                        .produce = [data = tensor.data](const ByteSink& sink) { sink(data); }});
  }
  write_safetensors(path, std::move(streamed));
}

}  // namespace pare::runtime
