#include "compress/hdf5/hdf5_writer.h"

#include <hdf5.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "compress/hdf5/hdf5_reader.h"

namespace pare::compress {
namespace {

static_assert(sizeof(hid_t) == sizeof(int64_t));

// Must be called before any other function of the library. By default the library prints its error stack on standard
// error. At exit it would once more write what a full disk has refused, and crash.
void prepare_library() {
  H5dont_atexit();
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

// Returns what went wrong, in the system's words where the library quotes them. The rest of its own text (addresses,
// times, line numbers) is of no use.
std::string reason() {
  std::string text;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned, const H5E_error2_t* error, void* out) -> herr_t {
        auto& found = *static_cast<std::string*>(out);
        if (found.empty() && error->desc != nullptr) found = error->desc;
        return 0;
      },
      &text);
  constexpr std::string_view kQuote = "error message = '";
  const size_t quote = text.find(kQuote);
  if (quote == std::string::npos) return "the HDF5 library failed (" + text.substr(0, text.find_first_of(",:\n")) + ")";
  const size_t start = quote + kQuote.size();
  const std::string message = text.substr(start, text.find('\'', start) - start);
  for (const int error : {ENOSPC, EDQUOT, EFBIG}) {
    if (message == std::strerror(error)) return message + ": free some space or choose another folder, then run again";
  }
  return message;
}

void check_text(const std::string& group, const char* name, const std::string& text) {
  if (is_plain_text(text)) return;
  throw std::invalid_argument("attribute " + std::string(name) + " of " + group +
                              ": expected UTF-8 without control characters, found other bytes");
}

}  // namespace

// An HDF5 object. In the normal case it is closed explicitly, because closing writes and may fail.
class Hdf5Writer::Handle {
 public:
  Handle(hid_t id, herr_t (*closing)(hid_t)) : id_(id), close_(closing) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  hid_t get() const { return id_; }
  herr_t close() { return close_(std::exchange(id_, -1)); }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

// Returns the result of a call into HDF5, or throws if it failed.
template <typename Result>
Result Hdf5Writer::check(Result result) const {
  if (result < 0) throw std::runtime_error("cannot write '" + shown_.string() + "': " + reason());
  return result;
}

Hdf5Writer::Hdf5Writer(const std::filesystem::path& file, std::filesystem::path shown, uint64_t user_block_bytes)
    : shown_(std::move(shown)) {
  prepare_library();
  Handle creation(check(H5Pcreate(H5P_FILE_CREATE)), H5Pclose);
  check(H5Pset_userblock(creation.get(), user_block_bytes));
  check(H5Pset_obj_track_times(creation.get(), false));
  Handle access(check(H5Pcreate(H5P_FILE_ACCESS)), H5Pclose);
  // These are the oldest forms. Virtual datasets exist since 1.10.
  check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_EARLIEST, H5F_LIBVER_V110));
#if H5_VERSION_GE(1, 10, 7) && !(H5_VERSION_GE(1, 12, 0) && !H5_VERSION_GE(1, 12, 1))
  // The caller has the file for itself, and some network file systems have no locks of the library's kind.
  check(H5Pset_file_locking(access.get(), false, true));
#endif
  file_ = check(H5Fcreate(file.c_str(), H5F_ACC_TRUNC, creation.get(), access.get()));
  check(creation.close());
  check(access.close());
}

Hdf5Writer::~Hdf5Writer() {
  if (file_ >= 0) H5Fclose(file_);
}

Hdf5Writer::Handle Hdf5Writer::open_group(const std::string& group) const {
  return {check(H5Gopen2(file_, group.c_str(), H5P_DEFAULT)), H5Gclose};
}

void Hdf5Writer::make_group(const std::string& group) {
  Handle parents(check(H5Pcreate(H5P_LINK_CREATE)), H5Pclose);
  check(H5Pset_create_intermediate_group(parents.get(), 1));
  Handle made(check(H5Gcreate2(file_, group.c_str(), parents.get(), H5P_DEFAULT, H5P_DEFAULT)), H5Gclose);
  check(made.close());
  check(parents.close());
}

Hdf5Writer::Handle Hdf5Writer::string_type(size_t num_bytes) const {
  Handle type(check(H5Tcopy(H5T_C_S1)), H5Tclose);
  check(H5Tset_size(type.get(), std::max<size_t>(num_bytes, 1)));
  check(H5Tset_strpad(type.get(), H5T_STR_NULLPAD));
  return type;
}

void Hdf5Writer::put(const std::string& group, const char* name, Handle type, Handle space, const void* value) const {
  Handle owner = open_group(group);
  Handle attribute(check(H5Acreate2(owner.get(), name, type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT)), H5Aclose);
  check(H5Awrite(attribute.get(), type.get(), value));
  check(attribute.close());
  check(owner.close());
  check(type.close());
  check(space.close());
}

void Hdf5Writer::attribute(const std::string& group, const char* name, const std::string& text) {
  check_text(group, name, text);
  put(group, name, string_type(text.size()), Handle(check(H5Screate(H5S_SCALAR)), H5Sclose), text.c_str());
}

void Hdf5Writer::attribute(const std::string& group, const char* name, uint64_t value) {
  put(group, name, Handle(check(H5Tcopy(H5T_STD_U64LE)), H5Tclose), Handle(check(H5Screate(H5S_SCALAR)), H5Sclose),
      &value);
}

void Hdf5Writer::attribute(const std::string& group, const char* name, const std::vector<std::string>& texts) {
  size_t longest = 1;
  for (const std::string& text : texts) {
    check_text(group, name, text);
    longest = std::max(longest, text.size());
  }
  std::vector<char> bytes(texts.size() * longest, '\0');
  for (size_t i = 0; i < texts.size(); ++i) std::copy(texts[i].begin(), texts[i].end(), bytes.begin() + i * longest);
  const hsize_t count = texts.size();
  put(group, name, string_type(longest), Handle(check(H5Screate_simple(1, &count, nullptr)), H5Sclose), bytes.data());
}

Hdf5Writer::Handle Hdf5Writer::value_type(Hdf5Type type) const {
  switch (type) {
    case Hdf5Type::uint8:
      return {check(H5Tcopy(H5T_STD_U8LE)), H5Tclose};
    case Hdf5Type::uint16:
      return {check(H5Tcopy(H5T_STD_U16LE)), H5Tclose};
    case Hdf5Type::uint32:
      return {check(H5Tcopy(H5T_STD_U32LE)), H5Tclose};
    case Hdf5Type::uint64:
      return {check(H5Tcopy(H5T_STD_U64LE)), H5Tclose};
    case Hdf5Type::float32:
      return {check(H5Tcopy(H5T_IEEE_F32LE)), H5Tclose};
    case Hdf5Type::float64:
      return {check(H5Tcopy(H5T_IEEE_F64LE)), H5Tclose};
    case Hdf5Type::float16:
      break;
  }
  // The library has no name for it. Sign, exponent and mantissa are those of IEEE 754's binary16.
  Handle type16(check(H5Tcopy(H5T_IEEE_F32LE)), H5Tclose);
  check(H5Tset_fields(type16.get(), 15, 10, 5, 0, 10));
  check(H5Tset_size(type16.get(), 2));
  check(H5Tset_ebias(type16.get(), 15));
  return type16;
}

Hdf5Writer::Handle Hdf5Writer::make_set(const Handle& group, const char* name, Hdf5Type type,
                                        std::span<const int64_t> shape) const {
  const std::vector<hsize_t> sizes(shape.begin(), shape.end());
  Handle values = value_type(type);
  Handle space(check(H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr)), H5Sclose);
  Handle properties(check(H5Pcreate(H5P_DATASET_CREATE)), H5Pclose);
  check(H5Pset_obj_track_times(properties.get(), false));
  Handle set(
      check(H5Dcreate2(group.get(), name, values.get(), space.get(), H5P_DEFAULT, properties.get(), H5P_DEFAULT)),
      H5Dclose);
  check(values.close());
  check(space.close());
  check(properties.close());
  return set;
}

void Hdf5Writer::floats(const std::string& group, const char* name, std::span<const int64_t> shape,
                        std::span<const float> values) {
  Handle owner = open_group(group);
  Handle set = make_set(owner, name, Hdf5Type::float32, shape);
  check(H5Dwrite(set.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()));
  check(set.close());
  check(owner.close());
}

void Hdf5Writer::floats(const std::string& group, const char* name, int64_t count,
                        const std::function<std::span<const float>()>& next) {
  Handle owner = open_group(group);
  Handle set = make_set(owner, name, Hdf5Type::float32, std::span(&count, 1));
  Handle file(check(H5Dget_space(set.get())), H5Sclose);
  for (hsize_t first = 0; first < static_cast<hsize_t>(count);) {
    const std::span<const float> piece = next();
    if (piece.empty()) throw std::invalid_argument(std::string(name) + ": fewer values than announced");
    const hsize_t size = piece.size();
    Handle memory(check(H5Screate_simple(1, &size, nullptr)), H5Sclose);
    check(H5Sselect_hyperslab(file.get(), H5S_SELECT_SET, &first, nullptr, &size, nullptr));
    check(H5Dwrite(set.get(), H5T_NATIVE_FLOAT, memory.get(), file.get(), H5P_DEFAULT, piece.data()));
    check(memory.close());
    first += size;
  }
  check(file.close());
  check(set.close());
  check(owner.close());
}

void Hdf5Writer::make_array(const std::string& group, const char* name, Hdf5Type type, std::span<const int64_t> shape) {
  Handle owner = open_group(group);
  Handle set = make_set(owner, name, type, shape);
  check(set.close());
  check(owner.close());
}

void Hdf5Writer::write(const std::string& group, const char* name, int64_t first_row, std::span<const std::byte> rows) {
  if (rows.empty()) return;
  Handle owner = open_group(group);
  Handle set(check(H5Dopen2(owner.get(), name, H5P_DEFAULT)), H5Dclose);
  Handle type(check(H5Dget_type(set.get())), H5Tclose);
  Handle file(check(H5Dget_space(set.get())), H5Sclose);
  const int num_dimensions = check(H5Sget_simple_extent_ndims(file.get()));
  std::vector<hsize_t> first(static_cast<size_t>(num_dimensions), 0), sizes(first);
  check(H5Sget_simple_extent_dims(file.get(), sizes.data(), nullptr));
  size_t row_bytes = H5Tget_size(type.get());
  for (size_t i = 1; i < sizes.size(); ++i) row_bytes *= sizes[i];
  const size_t num_rows = row_bytes > 0 ? rows.size() / row_bytes : 0;
  const auto start = static_cast<hsize_t>(first_row);
  if (first_row < 0 || num_rows * row_bytes != rows.size() || start > sizes[0] || num_rows > sizes[0] - start) {
    throw std::invalid_argument(std::string(name) + ": " + std::to_string(rows.size()) + " bytes at row " +
                                std::to_string(first_row) + " are not whole rows of it");
  }
  first[0] = start;
  sizes[0] = num_rows;
  Handle memory(check(H5Screate_simple(num_dimensions, sizes.data(), nullptr)), H5Sclose);
  check(H5Sselect_hyperslab(file.get(), H5S_SELECT_SET, first.data(), nullptr, sizes.data(), nullptr));
  check(H5Dwrite(set.get(), type.get(), memory.get(), file.get(), H5P_DEFAULT, rows.data()));
  check(memory.close());
  check(file.close());
  check(type.close());
  check(set.close());
  check(owner.close());
}

void Hdf5Writer::join(const std::string& group, const char* name, Hdf5Type type, std::span<const Part> parts,
                      int64_t num_columns) {
  const int num_dimensions = num_columns > 0 ? 2 : 1;
  std::array<hsize_t, 2> sizes = {0, static_cast<hsize_t>(num_columns)}, first = {0, 0};
  for (const Part& part : parts) sizes[0] += static_cast<hsize_t>(part.num_rows);
  Handle values = value_type(type);
  Handle space(check(H5Screate_simple(num_dimensions, sizes.data(), nullptr)), H5Sclose);
  Handle properties(check(H5Pcreate(H5P_DATASET_CREATE)), H5Pclose);
  check(H5Pset_obj_track_times(properties.get(), false));
  if (type == Hdf5Type::float16 || type == Hdf5Type::float32 || type == Hdf5Type::float64) {
    const float missing = std::numeric_limits<float>::quiet_NaN();
    check(H5Pset_fill_value(properties.get(), H5T_NATIVE_FLOAT, &missing));
  }
  const std::string path = (group == "/" ? "" : group) + "/" + name;
  for (const Part& part : parts) {
    sizes[0] = static_cast<hsize_t>(part.num_rows);
    Handle source(check(H5Screate_simple(num_dimensions, sizes.data(), nullptr)), H5Sclose);
    check(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, first.data(), nullptr, sizes.data(), nullptr));
    check(H5Pset_virtual(properties.get(), space.get(), part.file.c_str(), path.c_str(), source.get()));
    check(source.close());
    first[0] += sizes[0];
  }
  check(H5Sselect_all(space.get()));
  Handle owner = open_group(group);
  Handle set(
      check(H5Dcreate2(owner.get(), name, values.get(), space.get(), H5P_DEFAULT, properties.get(), H5P_DEFAULT)),
      H5Dclose);
  check(set.close());
  check(owner.close());
  check(properties.close());
  check(space.close());
  check(values.close());
}

void Hdf5Writer::close() {
  check(H5Fflush(file_, H5F_SCOPE_LOCAL));
  check(H5Fclose(std::exchange(file_, -1)));
}

}  // namespace pare::compress
