// Reads the HDF5 files that pare writes (hdf5_writer.h), without the HDF5 library: the library trusts its files. An
// array where a number was expected overruns the reader's variable, names lead into other files, and damaged metadata
// crash it. Of the format (HDF5 File Format Specification 3.0) this accepts what the writer makes and nothing else:
// superblock and object headers of the first version, groups as symbol tables of hard links, attributes that are one
// text of fixed size or one unsigned 64-bit number, contiguous arrays of fixed shape whose values are of the types in
// hdf5_type.h. No filters, no external files, no shared messages; virtual arrays may lie there and are not read. Every
// size is checked against the file's before memory is taken.
//
// Everything here throws std::runtime_error: file, object, expected, found, and the remedy. No byte of the file gets
// into a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compress/hdf5/hdf5_type.h"
#include "runtime/system/input_files.h"

namespace pare {

// UTF-8 without control characters, which can be shown and stored as JSON: what attributes may hold.
bool is_plain_text(std::string_view text);
// A file's name, which may be any bytes, as such a text: U+FFFD stands for what is none.
std::string plain_text(std::string_view name);

// "[3, 4]", "a single value".
std::string shape_words(const std::vector<int64_t>& shape);

// An array whose place is checked: all its bytes lie in the file.
struct Hdf5Array {
  std::string path;  // in the HDF5 file
  Hdf5Type type = Hdf5Type::float32;
  std::vector<int64_t> shape;
  int64_t num_values = 0;
  int64_t offset_bytes = 0;  // in the file
};

class Hdf5Reader;

// A group, or an array on the way to its values. Must not outlive its reader.
class Hdf5Object {
 public:
  const std::string& path() const { return path_; }
  std::optional<Hdf5Object> find(const std::string& name) const;  // nullopt: the group holds no such link
  std::string text(const char* attribute) const;                  // is_plain_text
  uint64_t number(const char* attribute) const;
  Hdf5Array array(const std::string& name, Hdf5Type type) const;  // of one or two dimensions

 private:
  friend class Hdf5Reader;
  struct Message {
    int type;
    std::vector<std::byte> bytes;
  };
  struct Attribute {
    std::span<const std::byte> type, value;
  };
  Hdf5Object(const Hdf5Reader& reader, std::string path, uint64_t address);
  Attribute attribute(const char* name) const;
  std::span<const std::byte> only(int type, const char* what) const;
  std::vector<int64_t> shape(std::span<const std::byte> dataspace) const;
  const Hdf5Reader* reader_;
  std::string path_;
  std::vector<Message> messages_;
};

class Hdf5Reader {
 public:
  // The HDF5 part begins behind user_block_bytes and ends with the file. `remedy` ends every message.
  Hdf5Reader(InputFile file, int64_t user_block_bytes, std::string remedy);

  const InputFile& file() const { return file_; }
  Hdf5Object root() const;

  // Values from `first` on in row-major order, as many as fill `values`. Throws std::invalid_argument for what the
  // array does not have.
  void read_bytes(const Hdf5Array& array, int64_t first, std::span<std::byte> values) const;
  template <typename Value>
  void read(const Hdf5Array& array, int64_t first, std::span<Value> values) const {
    read_bytes(array, first, std::as_writable_bytes(values));
  }

  [[noreturn]] void refuse(const std::string& object, const std::string& expected, const std::string& found) const;

 private:
  friend class Hdf5Object;
  class Fields;
  class Metadata;
  struct SymbolTable {
    uint64_t tree, heap;
  };
  // The header's address of the group's member; nullopt: there is none.
  std::optional<uint64_t> find_link(const std::string& group, SymbolTable table, const std::string& name) const;
  // Where `size` bytes from `address` on lie in the file; refuses what is not all inside.
  int64_t locate(const std::string& object, uint64_t address, uint64_t size) const;
  InputFile file_;
  int64_t base_bytes_;
  std::string remedy_;
  uint64_t root_address_ = 0;
};

}  // namespace pare
