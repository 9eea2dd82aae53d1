// Writes the files that hdf5_reader.h reads, with the HDF5 library: groups, attributes (texts, 64-bit numbers) and
// contiguous arrays. It also writes arrays that join those of other files, which only the library reads. The same calls
// give the same bytes: no times are stored, and the format's version does not depend on the library's.
// Every function throws std::runtime_error (path, the system's reason); an object that has thrown can only be
// destroyed. Throws std::invalid_argument for a text that is not plain (hdf5_reader.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "compress/hdf5/hdf5_type.h"

namespace pare::compress {

class Hdf5Writer {
 public:
  // Replaces the content of `file`; `shown` is the path that messages name. The HDF5 part begins after user_block_bytes
  // (0, or a power of two from 512 on), which belong to the caller.
  Hdf5Writer(const std::filesystem::path& file, std::filesystem::path shown, uint64_t user_block_bytes);
  Hdf5Writer(const Hdf5Writer&) = delete;
  Hdf5Writer& operator=(const Hdf5Writer&) = delete;
  ~Hdf5Writer();  // closes what is still open and ignores errors

  void make_group(const std::string& group);  // makes the groups above it as well; it must not exist
  void attribute(const std::string& group, const char* name, const std::string& text);
  void attribute(const std::string& group, const char* name, uint64_t value);
  void attribute(const std::string& group, const char* name, const std::vector<std::string>& texts);

  // `values` has as many elements as the product of `shape`.
  void floats(const std::string& group, const char* name, std::span<const int64_t> shape,
              std::span<const float> values);
  // Writes an array [count] in the pieces that `next` returns until there are as many values.
  void floats(const std::string& group, const char* name, int64_t count,
              const std::function<std::span<const float>()>& next);

  // Makes an array whose rows write() fills in. The group "/" is the root.
  void make_array(const std::string& group, const char* name, Hdf5Type type, std::span<const int64_t> shape);
  // Writes whole rows of an array of make_array, from first_row (along its first dimension) on.
  void write(const std::string& group, const char* name, int64_t first_row, std::span<const std::byte> rows);

  // Joins all rows of the array of the same group, name and type in each file, one file after the other, as a virtual
  // dataset. Files are named relative to this one's folder and need not exist yet. num_columns 0 gives one dimension.
  // Where a file is missing, readers get NaN or, for integers, 0.
  struct Part {
    std::string file;
    int64_t num_rows;
  };
  void join(const std::string& group, const char* name, Hdf5Type type, std::span<const Part> parts,
            int64_t num_columns);

  // Writes everything to the file. Nothing can be written afterwards.
  void close();

 private:
  class Handle;
  template <typename Result>
  Result check(Result result) const;
  Handle open_group(const std::string& group) const;
  Handle string_type(size_t num_bytes) const;
  Handle value_type(Hdf5Type type) const;
  Handle make_set(const Handle& group, const char* name, Hdf5Type type, std::span<const int64_t> shape) const;
  void put(const std::string& group, const char* name, Handle type, Handle space, const void* value) const;
  std::filesystem::path shown_;
  int64_t file_ = -1;  // the HDF5 library's identifier
};

}  // namespace pare::compress
