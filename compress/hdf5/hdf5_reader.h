// Reads the HDF5 files that pare writes (hdf5_writer.h), without the HDF5 library. The library trusts its files: an
// array where a number was expected overruns the reader's variable, names lead into other files, and damaged metadata
// crash it. This reader accepts the part of the format (HDF5 File Format Specification 3.0) that the writer uses, and
// nothing else:
// - superblock and object headers of the first version
// - groups as symbol tables of hard links
// - attributes that are one text of fixed size or one unsigned 64-bit number
// - contiguous arrays of fixed shape whose values have the types in hdf5_type.h.
//
// Filters, external files and shared messages are refused. Virtual arrays may be there and are not read. Every size is
// checked against the file's size before memory is allocated.
//
// Everything here throws std::runtime_error with the file, the object, what was expected and found, and the remedy. No
// byte of the file gets into a message.
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

namespace pare::compress {

// Returns whether the text is UTF-8 without control characters, which can be shown and stored as JSON. Attributes hold
// such texts.
bool is_plain_text(std::string_view text);
// Turns a file's name, which may be any bytes, into such a text. U+FFFD replaces what is not valid.
std::string plain_text(std::string_view name);

// Returns a description of a shape: "[3, 4]", "a single value".
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

// A group, or an array whose values are not located yet. It must not outlive its reader.
class Hdf5Object {
 public:
  const std::string& path() const { return path_; }
  std::optional<Hdf5Object> find(const std::string& name) const;  // nullopt: the group has no such link
  std::string text(const char* attribute) const;                  // a plain text, as is_plain_text says
  uint64_t number(const char* attribute) const;
  Hdf5Array array(const std::string& name, Hdf5Type type) const;  // has one or two dimensions

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
  // The HDF5 part begins after user_block_bytes and ends with the file. `remedy` ends every message.
  Hdf5Reader(runtime::InputFile file, int64_t user_block_bytes, std::string remedy);

  const runtime::InputFile& file() const { return file_; }
  Hdf5Object root() const;

  // Reads values from `first` on in row-major order, as many as fill `values`. Throws std::invalid_argument for values
  // that the array does not have.
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
  // Returns the address of the header of the group's member, or nullopt if there is none.
  std::optional<uint64_t> find_link(const std::string& group, SymbolTable table, const std::string& name) const;
  // Returns where in the file `size` bytes from `address` on lie. Refuses bytes that are not all inside.
  int64_t locate(const std::string& object, uint64_t address, uint64_t size) const;
  runtime::InputFile file_;
  int64_t base_bytes_;
  std::string remedy_;
  uint64_t root_address_ = 0;
};

}  // namespace pare::compress
