#include "compress/walk/statistics_file.h"

#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <hdf5.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include "quant/row_chunks.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/sha256.h"

namespace pare {
namespace {

namespace fs = std::filesystem;

constexpr hsize_t kUserBlockBytes = 512;
constexpr std::string_view kMagic = "pare statistics ";
constexpr std::string_view kVersion = "1";
constexpr std::string_view kHashWord = " sha256 ";
constexpr int64_t kBufferFloats = int64_t{1} << 20;  // of a triangle, in memory at a time

static_assert(sizeof(hid_t) == sizeof(int64_t));

// An HDF5 object, closed with its own function.
class Handle {
 public:
  Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  hid_t get() const { return id_; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

// The library's own words for what went wrong: the innermost entry of its error stack.
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
  return text.empty() ? "the HDF5 library gives no reason" : text;
}

[[noreturn]] void fail(const char* verb, const fs::path& path, const std::string& why) {
  throw std::runtime_error(std::string("cannot ") + verb + " '" + path.string() + "': " + why);
}

// What a call into HDF5 returned, when it went well.
template <typename Result>
Result checked(Result result, const char* verb, const fs::path& path) {
  if (result < 0) fail(verb, path, reason());
  return result;
}

// The metadata that HDF5 keeps lie in the holes that matrices of earlier stages have left, so that the next matrix does
// not fit there and the heap would grow by one for every stage: what is free between them goes back to the system.
void give_back_free_memory() {
  malloc_trim(0);
}

// HDF5 prints its error stack on standard error unless told otherwise.
void keep_errors_quiet() {
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Handle string_type(size_t num_bytes) {
  Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), std::max<size_t>(num_bytes, 1));
  H5Tset_strpad(type.get(), H5T_STR_NULLPAD);
  return type;
}

class ObjectWriter {
 public:
  ObjectWriter(const fs::path& path, hid_t object) : path_(path), object_(object) {}

  void attribute(const char* name, const std::string& text) const {
    const Handle space(check(H5Screate(H5S_SCALAR)), H5Sclose);
    put(name, string_type(text.size()), space, text.c_str());
  }
  void attribute(const char* name, uint64_t value) const {
    const Handle space(check(H5Screate(H5S_SCALAR)), H5Sclose);
    put(name, Handle(check(H5Tcopy(H5T_STD_U64LE)), H5Tclose), space, &value);
  }
  void attribute(const char* name, const std::vector<std::string>& texts) const {
    size_t longest = 1;
    for (const std::string& text : texts) longest = std::max(longest, text.size());
    std::vector<char> bytes(texts.size() * longest, '\0');
    for (size_t i = 0; i < texts.size(); ++i) std::copy(texts[i].begin(), texts[i].end(), bytes.begin() + i * longest);
    const hsize_t count = texts.size();
    const Handle space(check(H5Screate_simple(1, &count, nullptr)), H5Sclose);
    put(name, string_type(longest), space, bytes.data());
  }

  void floats(const char* name, const at::Tensor& tensor) const {
    const at::Tensor values = tensor.contiguous();
    const std::vector<hsize_t> shape(values.sizes().begin(), values.sizes().end());
    const Handle set = dataset(name, shape);
    check(H5Dwrite(set.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.const_data_ptr<float>()));
  }

  void upper_triangle(const char* name, const at::Tensor& matrix_II) const {
    const at::Tensor values = matrix_II.contiguous();
    const int64_t width = values.size(0);
    const Handle set = dataset(name, {static_cast<hsize_t>(width * (width + 1) / 2)});
    std::vector<float> buffer;
    hsize_t first = 0;
    for (int64_t row = 0; row < width; ++row) {
      const float* source = values.const_data_ptr<float>() + row * width;
      buffer.insert(buffer.end(), source + row, source + width);
      if (static_cast<int64_t>(buffer.size()) < kBufferFloats && row + 1 < width) continue;
      const hsize_t count = buffer.size();
      const Handle memory(check(H5Screate_simple(1, &count, nullptr)), H5Sclose);
      const Handle file(check(H5Dget_space(set.get())), H5Sclose);
      check(H5Sselect_hyperslab(file.get(), H5S_SELECT_SET, &first, nullptr, &count, nullptr));
      check(H5Dwrite(set.get(), H5T_NATIVE_FLOAT, memory.get(), file.get(), H5P_DEFAULT, buffer.data()));
      first += count;
      buffer.clear();
    }
  }

 private:
  template <typename Result>
  Result check(Result result) const {
    return checked(result, "write", path_);
  }
  void put(const char* name, const Handle& type, const Handle& space, const void* value) const {
    const Handle attribute(check(H5Acreate2(object_, name, type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT)),
                           H5Aclose);
    check(H5Awrite(attribute.get(), type.get(), value));
  }
  Handle dataset(const char* name, const std::vector<hsize_t>& shape) const {
    const Handle space(check(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr)), H5Sclose);
    const Handle properties(check(H5Pcreate(H5P_DATASET_CREATE)), H5Pclose);
    check(H5Pset_obj_track_times(properties.get(), false));  // the same bytes, whenever it is written
    return {check(H5Dcreate2(object_, name, H5T_IEEE_F32LE, space.get(), H5P_DEFAULT, properties.get(), H5P_DEFAULT)),
            H5Dclose};
  }
  const fs::path& path_;
  hid_t object_;
};

class ObjectReader {
 public:
  ObjectReader(const fs::path& path, std::string object_name, hid_t object)
      : path_(path), name_(std::move(object_name)), object_(object) {}

  std::string text(const char* name) const {
    const Handle attribute(check(H5Aopen(object_, name, H5P_DEFAULT)), H5Aclose);
    const Handle type(check(H5Aget_type(attribute.get())), H5Tclose);
    std::string text(H5Tget_size(type.get()), '\0');
    check(H5Aread(attribute.get(), type.get(), text.data()));
    return text.substr(0, text.find('\0'));
  }
  uint64_t number(const char* name) const {
    const Handle attribute(check(H5Aopen(object_, name, H5P_DEFAULT)), H5Aclose);
    uint64_t value = 0;
    check(H5Aread(attribute.get(), H5T_NATIVE_UINT64, &value));
    return value;
  }

  // [rows, columns], or [columns]; -1: as many rows as there are.
  at::Tensor floats(const char* name, std::vector<int64_t> shape) const {
    const Handle set = dataset(name);
    if (shape[0] == -1) shape[0] = extent(set)[0];
    check_shape(set, name, shape);
    at::Tensor values = at::empty(shape, at::kFloat);
    check(H5Dread(set.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data_ptr<float>()));
    return values;
  }

  at::Tensor symmetric(const char* name, int64_t width) const {
    const Handle set = dataset(name);
    check_shape(set, name, {width * (width + 1) / 2});
    at::Tensor matrix_II = at::empty({width, width}, at::kFloat);
    float* matrix = matrix_II.data_ptr<float>();
    std::vector<float> buffer;
    hsize_t first = 0;
    for (int64_t row = 0; row < width;) {
      int64_t end = row;
      hsize_t count = 0;
      for (; end < width && static_cast<int64_t>(count) < kBufferFloats; ++end) count += width - end;
      buffer.resize(count);
      const Handle memory(check(H5Screate_simple(1, &count, nullptr)), H5Sclose);
      const Handle file(check(H5Dget_space(set.get())), H5Sclose);
      check(H5Sselect_hyperslab(file.get(), H5S_SELECT_SET, &first, nullptr, &count, nullptr));
      check(H5Dread(set.get(), H5T_NATIVE_FLOAT, memory.get(), file.get(), H5P_DEFAULT, buffer.data()));
      for (const float* source = buffer.data(); row < end; source += width - row, ++row) {
        std::copy(source, source + width - row, matrix + row * width + row);
      }
      first += count;
    }
    mirror(matrix, width);
    return matrix_II;
  }

 private:
  // By square tiles, which stay in the cache that a column of the whole matrix would sweep out.
  static void mirror(float* matrix, int64_t width) {
    constexpr int64_t kSide = 32;
    for_row_chunks(width, kSide, [&](int64_t first_row, int64_t num_rows) {
      for (int64_t first = 0; first < first_row + num_rows; first += kSide) {
        for (int64_t row = first_row; row < first_row + num_rows; ++row) {
          for (int64_t column = first; column < std::min(first + kSide, row); ++column) {
            matrix[row * width + column] = matrix[column * width + row];
          }
        }
      }
    });
  }
  template <typename Result>
  Result check(Result result) const {
    if (result < 0) fail("read", path_, name_ + ": " + reason());
    return result;
  }
  Handle dataset(const char* name) const { return {check(H5Dopen2(object_, name, H5P_DEFAULT)), H5Dclose}; }
  std::vector<int64_t> extent(const Handle& set) const {
    const Handle space(check(H5Dget_space(set.get())), H5Sclose);
    std::vector<hsize_t> sizes(static_cast<size_t>(check(H5Sget_simple_extent_ndims(space.get()))));
    check(H5Sget_simple_extent_dims(space.get(), sizes.data(), nullptr));
    if (sizes.empty()) fail("read", path_, name_ + ": expected an array, found a single value");
    return {sizes.begin(), sizes.end()};
  }
  void check_shape(const Handle& set, const char* name, const std::vector<int64_t>& expected) const {
    const auto words = [](const std::vector<int64_t>& sizes) {
      std::string text;
      for (const int64_t size : sizes) text += (text.empty() ? "[" : ", ") + std::to_string(size);
      return text + "]";
    };
    const std::vector<int64_t> found = extent(set);
    if (found == expected) return;
    fail("read", path_,
         name_ + "/" + name + ": expected " + words(expected) + ", found " + words(found) +
             ": the statistics are of another model");
  }
  const fs::path& path_;
  std::string name_;
  hid_t object_;
};

std::string user_block(const std::string& hash) {
  std::string block = std::string(kMagic) + std::string(kVersion) + std::string(kHashWord) + hash + "\n";
  block.resize(kUserBlockBytes, '\0');
  return block;
}

// Of all bytes after the user block; checks that block when `stated` is asked for.
std::string hash_content(const fs::path& path, std::string* stated) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail("read", path, std::generic_category().message(errno));
  std::string block(kUserBlockBytes, '\0');
  file.read(block.data(), static_cast<std::streamsize>(block.size()));
  if (stated != nullptr) {
    if (!block.starts_with(kMagic)) fail("read", path, "it is no statistics file: pare calibrate makes one");
    const size_t word = block.find(kHashWord);
    const std::string version = block.substr(kMagic.size(), word == std::string::npos ? 0 : word - kMagic.size());
    if (version != kVersion) {
      fail("read", path,
           "statistics of version '" + version + "'; expected " + std::string(kVersion) +
               ": make it again with pare calibrate");
    }
    *stated = block.substr(word + kHashWord.size(), 64);
  }
  Sha256 hash;
  std::vector<char> piece(size_t{1} << 20);
  while (file) {
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    hash.update(std::as_bytes(std::span(piece.data(), static_cast<size_t>(file.gcount()))));
  }
  if (!file.eof()) fail("read", path, "reading failed");
  return hash.hex();
}

// Replaces the user block and brings everything to the disk.
void write_user_block(const fs::path& path, const std::string& block) {
  const int descriptor = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  const bool written =
      descriptor >= 0 && pwrite(descriptor, block.data(), block.size(), 0) == static_cast<ssize_t>(block.size());
  const bool synced = written && fsync(descriptor) == 0;
  const int error = errno;
  if (descriptor >= 0) close(descriptor);
  if (!synced) fail("write", path, std::generic_category().message(error));
}

std::string stage_group(const BlockDescription& block, Stage stage) {
  std::string name = stage_name(stage);
  std::replace(name.begin(), name.end(), ' ', '_');
  std::replace(name.begin(), name.end(), '-', '_');
  return block.name + "/" + name;
}

}  // namespace

StatisticsWriter::StatisticsWriter(fs::path path, const StatisticsOrigin& origin)
    : path_(std::move(path)),
      partial_(path_.parent_path() / ("." + path_.filename().string() + ".partial-" + std::to_string(getpid()))) {
  keep_errors_quiet();
  const Handle properties(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
  H5Pset_userblock(properties.get(), kUserBlockBytes);
  H5Pset_obj_track_times(properties.get(), false);
  file_ = checked(H5Fcreate(partial_.c_str(), H5F_ACC_TRUNC, properties.get(), H5P_DEFAULT), "write", path_);
  try {
    const Handle root(checked(H5Gopen2(file_, "/", H5P_DEFAULT), "write", path_), H5Gclose);
    const ObjectWriter writer(path_, root.get());
    writer.attribute("model", origin.model);
    writer.attribute("data", origin.data);
    writer.attribute("text", origin.text);
    writer.attribute("windows", static_cast<uint64_t>(origin.num_windows));
    writer.attribute("tokens", static_cast<uint64_t>(origin.num_tokens));
    writer.attribute("seed", origin.seed);
    writer.attribute("pare", origin.pare_version);
    writer.attribute("libtorch", origin.libtorch_version);
    writer.attribute("instruction_set", origin.instruction_set);
  } catch (...) {
    H5Fclose(file_);
    fs::remove(partial_);
    throw;
  }
}

StatisticsWriter::~StatisticsWriter() {
  if (file_ < 0) return;
  H5Fclose(file_);
  std::error_code ignored;
  fs::remove(partial_, ignored);
}

void StatisticsWriter::write(const BlockDescription& block, Stage stage, const LayerStatistics& statistics) {
  give_back_free_memory();
  const std::string name = stage_group(block, stage);
  if (!statistics.hessian_II.defined()) throw std::invalid_argument("statistics of " + name + ": H is missing");
  const Handle parents(checked(H5Pcreate(H5P_LINK_CREATE), "write", path_), H5Pclose);
  checked(H5Pset_create_intermediate_group(parents.get(), 1), "write", path_);
  const Handle group(checked(H5Gcreate2(file_, name.c_str(), parents.get(), H5P_DEFAULT, H5P_DEFAULT), "write", path_),
                     H5Gclose);
  const ObjectWriter writer(path_, group.get());
  std::vector<std::string> layers;
  for (const LinearDescription& linear : stage_layers(block, stage)) layers.push_back(linear.name);
  writer.attribute("layers", layers);
  writer.attribute("num_tokens", static_cast<uint64_t>(statistics.num_tokens));
  writer.upper_triangle("hessian", statistics.hessian_II);
  writer.floats("hessian_diagonal", statistics.hessian_diagonal_I);
  writer.floats("min", statistics.min_I);
  writer.floats("max", statistics.max_I);
  writer.floats("mean_abs", statistics.mean_abs_I);
  writer.floats("sample", statistics.sample_RI);
}

std::string StatisticsWriter::publish() {
  const int64_t file = std::exchange(file_, -1);
  try {
    checked(H5Fclose(file), "write", path_);
    const std::string hash = hash_content(partial_, nullptr);
    write_user_block(partial_, user_block(hash));
    fs::rename(partial_, path_);
    sync_directory(path_.has_parent_path() ? path_.parent_path() : fs::path("."));
    return hash;
  } catch (...) {
    std::error_code ignored;
    fs::remove(partial_, ignored);
    throw;
  }
}

int64_t StatisticsWriter::size_bytes(const ModelDescription& model, int64_t num_sample_rows) {
  int64_t num_floats = 0, num_groups = 0;
  for (const BlockDescription& block : model.blocks) {
    for (const Stage stage : block_stages(block)) {
      ++num_groups;
      const int64_t width = stage_width(block, stage);
      num_floats += width * (width + 1) / 2 + (4 + num_sample_rows) * width;
    }
  }
  constexpr int64_t kGroupBytes = 4096;  // about: HDF5's own headers
  return num_floats * static_cast<int64_t>(sizeof(float)) + num_groups * kGroupBytes;
}

struct StatisticsFile::State {
  fs::path path;
  std::string hash;
  Handle file;
  StatisticsOrigin origin;
};

StatisticsFile::StatisticsFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
StatisticsFile::StatisticsFile(StatisticsFile&&) noexcept = default;
StatisticsFile& StatisticsFile::operator=(StatisticsFile&&) noexcept = default;
StatisticsFile::~StatisticsFile() = default;

const fs::path& StatisticsFile::path() const {
  return state_->path;
}

const StatisticsOrigin& StatisticsFile::origin() const {
  return state_->origin;
}

const std::string& StatisticsFile::hash() const {
  return state_->hash;
}

StatisticsFile StatisticsFile::open(const fs::path& path) {
  std::string stated;
  const std::string hash = hash_content(path, &stated);
  if (hash != stated) {
    fail("read", path,
         "the file is truncated or damaged (its content has SHA-256 " + hash + ", expected " + stated +
             "): make it again with pare calibrate");
  }
  keep_errors_quiet();
  auto state = std::unique_ptr<State>(
      new State{path, hash, {checked(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), "read", path), H5Fclose}, {}});
  const ObjectReader reader(path, "/", state->file.get());
  StatisticsOrigin& origin = state->origin;
  origin.model = reader.text("model");
  origin.data = reader.text("data");
  origin.text = reader.text("text");
  origin.num_windows = static_cast<int64_t>(reader.number("windows"));
  origin.num_tokens = static_cast<int64_t>(reader.number("tokens"));
  origin.seed = reader.number("seed");
  origin.pare_version = reader.text("pare");
  origin.libtorch_version = reader.text("libtorch");
  origin.instruction_set = reader.text("instruction_set");
  return StatisticsFile(std::move(state));
}

LayerStatistics StatisticsFile::read(const BlockDescription& block, Stage stage, StatisticsNeed need) const {
  give_back_free_memory();
  const fs::path& path = state_->path;
  const std::string name = stage_group(block, stage);
  const Handle group(H5Gopen2(state_->file.get(), name.c_str(), H5P_DEFAULT), H5Gclose);
  if (group.get() < 0) fail("read", path, "it holds no statistics of " + name + ": it is of another model");
  const ObjectReader reader(path, name, group.get());
  const int64_t width = stage_width(block, stage);
  LayerStatistics statistics;
  statistics.num_tokens = static_cast<int64_t>(reader.number("num_tokens"));
  statistics.hessian_diagonal_I = reader.floats("hessian_diagonal", {width});
  statistics.min_I = reader.floats("min", {width});
  statistics.max_I = reader.floats("max", {width});
  statistics.mean_abs_I = reader.floats("mean_abs", {width});
  statistics.sample_RI = reader.floats("sample", {-1, width});
  if (need == StatisticsNeed::hessian) statistics.hessian_II = reader.symmetric("hessian", width);
  return statistics;
}

}  // namespace pare
