// Files of statistics that someone has made to do harm. They are well-formed for the HDF5 library, which makes them
// here, and have the right leading hash. Each must be refused with one message before anything is trusted.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <random>

#include "compress/hdf5/hdf5_reader.h"
#include "compress/hdf5/hdf5_writer.h"
#include "compress/walk/statistics_file.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/sha256.h"
#include "tests/compress/run_pare.h"
#include "tests/expect_error.h"

namespace pare::test {
using namespace compress;
using namespace runtime;
namespace {

namespace fs = std::filesystem;

constexpr int64_t kWidth = 24, kWindows = 3, kTokens = 8;
constexpr size_t kUserBlockBytes = 512;
const Stage kStage = Stage::attention_input;
const std::string kGroup = "/model.layers.0/attention_input";
constexpr hid_t kDefault = H5P_DEFAULT;

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Writes the first line again, as the format defines it.
void sign(std::string& bytes) {
  const auto content = std::as_bytes(std::span(bytes)).subspan(kUserBlockBytes);
  const std::string line = "pare statistics 1 sha256 " + sha256_hex(content) + "\n";
  bytes.replace(0, line.size(), line);
}

BlockDescription narrow_block() {
  BlockDescription block = Checkpoint::open(family("llama_gqa_untied")).description().blocks[0];
  block.q.num_in = block.k.num_in = block.v.num_in = kWidth;
  return block;
}

LayerStatistics some_statistics() {
  const at::Tensor x_RI = at::randn({kWindows * kTokens, kWidth}, at::make_generator<at::CPUGeneratorImpl>(1));
  LayerStatistics made;
  made.num_tokens = kWindows * kTokens;
  made.hessian_II = x_RI.t().mm(x_RI).div(static_cast<double>(made.num_tokens));
  made.hessian_II = made.hessian_II.add(made.hessian_II.t()).div(2.0);
  made.hessian_diagonal_I = made.hessian_II.diagonal().contiguous();
  made.min_I = x_RI.amin(0);
  made.max_I = x_RI.amax(0);
  made.mean_abs_I = x_RI.abs().mean(0);
  made.sample_RI = x_RI.narrow(0, 2, 6).contiguous();
  return made;
}

const StatisticsOrigin kOrigin{"model", "data", "text.npy", kWindows, kTokens, 5, "pare 1", "torch 2", "avx"};

class HostileStatistics : public testing::Test {
 protected:
  void SetUp() override {
    H5dont_atexit();  // must come before any other call, as in the writer
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    StatisticsWriter writer(good_, kOrigin);
    writer.write(block_, kStage, statistics_);
    writer.publish();
  }

  // Reads everything that a run would read.
  void read_all(const fs::path& path) const {
    StatisticsFile::open(path).read(block_, kStage, StatisticsNeed::hessian);
  }
  void expect_refused(std::initializer_list<std::string> words) const {
    std::vector<std::string> all = {"cannot read", "bad.h5", "expected", "found"};
    all.insert(all.end(), words);
    try {
      read_all(bad_);
      ADD_FAILURE() << "accepted; expected a message with '" << *words.begin() << "'";
    } catch (const std::runtime_error& error) {
      const std::string message = error.what();
      for (const std::string& word : all) EXPECT_NE(message.find(word), std::string::npos) << word << "\n" << message;
      EXPECT_TRUE(is_plain_text(message)) << message;
      EXPECT_NE(message.find("pare calibrate"), std::string::npos) << message;
    }
  }
  // `change` works on a copy, which the HDF5 library has opened.
  void expect_refused(const std::function<void(hid_t)>& change, std::initializer_list<std::string> words) const {
    fs::copy_file(good_, bad_, fs::copy_options::overwrite_existing);
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
    const hid_t file = H5Fopen(bad_.c_str(), H5F_ACC_RDWR, access);
    ASSERT_GE(file, 0);
    change(file);
    ASSERT_GE(H5Fclose(file), 0);
    std::string bytes = bytes_of(bad_);
    sign(bytes);
    write_text(bad_, bytes);
    expect_refused(words);
  }

  TemporaryFolder folder_{"hostile"};
  fs::path good_ = folder_ / "good.h5", bad_ = folder_ / "bad.h5";
  BlockDescription block_ = narrow_block();
  LayerStatistics statistics_ = some_statistics();
};

hid_t space(std::vector<hsize_t> sizes) {
  return sizes.empty() ? H5Screate(H5S_SCALAR)
                       : H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr);
}

hid_t text_type(size_t size, H5T_str_t padding = H5T_STR_NULLPAD, H5T_cset_t set = H5T_CSET_ASCII) {
  const hid_t type = H5Tcopy(H5T_C_S1);
  H5Tset_size(type, size);
  H5Tset_strpad(type, padding);
  H5Tset_cset(type, set);
  return type;
}

// Replaces an attribute.
void put(hid_t file, const std::string& group, const char* name, hid_t type, hid_t shape, const void* value) {
  ASSERT_GE(H5Adelete_by_name(file, group.c_str(), name, kDefault), 0);
  const hid_t attribute = H5Acreate_by_name(file, group.c_str(), name, type, shape, kDefault, kDefault, kDefault);
  ASSERT_GE(attribute, 0) << name;
  if (value != nullptr) {
    ASSERT_GE(H5Awrite(attribute, type, value), 0);
  }
  ASSERT_GE(H5Aclose(attribute), 0);
}

void put_number(hid_t file, const std::string& group, const char* name, uint64_t value) {
  put(file, group, name, H5T_STD_U64LE, space({}), &value);
}

TEST_F(HostileStatistics, AttributesAreSingleNumbersAndTextsOfFixedSize) {
  std::vector<uint64_t> many(5000, 0x4141414141414141u);
  for (const char* name : {"windows", "tokens", "seed"}) {
    expect_refused([&](hid_t file) { put(file, "/", name, H5T_STD_U64LE, space({5000}), many.data()); },
                   {"attribute /" + std::string(name), "a single value", "[5000]"});
  }
  expect_refused(
      [&](hid_t file) {
        put(file, kGroup, "num_tokens", H5T_STD_U64LE, space({8, 9}), many.data());
      },
      {"attribute " + kGroup + "/num_tokens", "[8, 9]"});
  expect_refused([&](hid_t file) { put(file, "/", "text", text_type(4), space({5000}), many.data()); },
                 {"attribute /text", "[5000]"});
  const std::vector<std::pair<hid_t, std::string>> types = {
      {H5T_STD_U64BE, "big-endian"},     {H5T_STD_I64LE, "64-bit signed"}, {H5T_STD_U32LE, "32-bit unsigned"},
      {H5T_IEEE_F64LE, "64-bit floats"}, {H5T_STD_REF_OBJ, "references"},  {H5T_STD_B64LE, "bit fields"}};
  for (const auto& [type, word] : types) {
    expect_refused([&, type = type](hid_t file) { put(file, "/", "windows", type, space({}), many.data()); },
                   {"attribute /windows", "64-bit unsigned integers, little-endian", word});
  }
  expect_refused([&](hid_t file) { put(file, "/", "windows", H5T_STD_U64LE, H5Screate(H5S_NULL), nullptr); },
                 {"dataspace"});
  expect_refused([&](hid_t file) { put(file, "/", "text", H5T_STD_U64LE, space({}), many.data()); },
                 {"attribute /text", "a text of fixed size", "64-bit unsigned"});
  expect_refused([&](hid_t file) { put(file, "/", "windows", text_type(8), space({}), many.data()); },
                 {"attribute /windows", "a text of 8 bytes"});
  const char* text = "read as a pointer";
  expect_refused([&](hid_t file) { put(file, "/", "text", text_type(H5T_VARIABLE), space({}), &text); },
                 {"attribute /text", "variable length"});
  expect_refused([&](hid_t file) { put(file, "/", "model", text_type(8, H5T_STR_SPACEPAD), space({}), text); },
                 {"attribute /model", "not padded with zeros"});
  expect_refused(
      [&](hid_t file) { put(file, "/", "model", text_type(8, H5T_STR_NULLPAD, H5T_CSET_UTF8), space({}), text); },
      {"expected"});
  for (const std::string& bytes : {std::string("\x1B[2J\x1B[H"), std::string("a\nb"), std::string("a\0b", 3),
                                   std::string("\xFF\xFE"), std::string("\xC0\xAF")}) {
    expect_refused([&](hid_t file) { put(file, "/", "text", text_type(bytes.size()), space({}), bytes.data()); },
                   {"attribute /text", "UTF-8 without control characters"});
  }
  expect_refused(
      [&](hid_t file) {
        const hid_t named = H5Tcopy(H5T_STD_U64LE);
        H5Tcommit2(file, "named", named, kDefault, kDefault, kDefault);
        put(file, "/", "windows", named, space({}), many.data());
      },
      {"attribute", "version"});
  expect_refused([&](hid_t file) { H5Adelete(file, "seed"); }, {"attribute /seed", "none"});
}

TEST_F(HostileStatistics, CountsArePlausible) {
  for (const uint64_t value : {uint64_t{0}, uint64_t{1} << 31, uint64_t{1} << 63, ~uint64_t{0}}) {
    for (const char* name : {"windows", "tokens"}) {
      expect_refused([&](hid_t file) { put_number(file, "/", name, value); },
                     {"attribute /" + std::string(name), "1 to 2147483647"});
    }
    expect_refused([&](hid_t file) { put_number(file, kGroup, "num_tokens", value); }, {kGroup + "/num_tokens", "24"});
  }
  expect_refused([&](hid_t file) { put_number(file, kGroup, "num_tokens", 23); }, {kGroup + "/num_tokens", "found 23"});
  expect_refused([&](hid_t file) { put_number(file, "/", "windows", 4); }, {kGroup + "/num_tokens", "expected 32"});
}

// Makes the array `name` of the stage's group again.
struct Remake {
  hid_t type = H5T_IEEE_F32LE;
  std::vector<hsize_t> sizes = {kWidth};
  std::function<void(hid_t)> properties = [](hid_t) {};
  bool written = true;
  std::string name = "min";

  void operator()(hid_t file) const {
    const std::string path = kGroup + "/" + name;
    ASSERT_GE(H5Ldelete(file, path.c_str(), kDefault), 0);
    const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_obj_track_times(creation, false);
    properties(creation);
    const hid_t set = H5Dcreate2(file, path.c_str(), type, space(sizes), kDefault, creation, kDefault);
    ASSERT_GE(set, 0);
    const std::vector<char> zeros(1 << 16);
    if (written) {
      ASSERT_GE(H5Dwrite(set, type, H5S_ALL, H5S_ALL, kDefault, zeros.data()), 0);
    }
    ASSERT_GE(H5Dclose(set), 0);
  }
};

TEST_F(HostileStatistics, ArraysAreContiguousFloatsOfTheModelsShapes) {
  const std::string path = kGroup + "/min";
  const std::vector<std::pair<hid_t, std::string>> types = {
      {H5T_IEEE_F64LE, "64-bit floats"},     {H5T_IEEE_F32BE, "big-endian"},
      {H5T_STD_I32LE, "32-bit signed"},      {H5T_STD_U8LE, "8-bit unsigned"},
      {H5T_STD_REF_OBJ, "references"},       {text_type(4), "a text of 4 bytes"},
      {text_type(H5T_VARIABLE), "variable"}, {H5Tvlen_create(H5T_IEEE_F32LE), "variable"}};
  for (const auto& [type, word] : types) {
    expect_refused(Remake{.type = type, .written = false}, {path, "32-bit floats, little-endian", word});
  }
  const hid_t pair = H5Tcreate(H5T_COMPOUND, 4);
  H5Tinsert(pair, "value", 0, H5T_IEEE_F32LE);
  expect_refused(Remake{.type = pair}, {path, "compound"});
  const hid_t odd = H5Tcopy(H5T_IEEE_F32LE);  // a float of 32 bits with another exponent
  H5Tset_ebias(odd, 100);
  expect_refused(Remake{.type = odd, .written = false}, {path, "32-bit floats"});
  expect_refused(Remake{.sizes = {}}, {path, "an array", "a single value"});
  expect_refused(Remake{.sizes = {2, 3, 4}}, {path, "2 dimensions", "3"});
  expect_refused(Remake{.sizes = {kWidth + 1}}, {path, "[24]", "[25]"});
  expect_refused(Remake{.sizes = {1, kWidth}}, {path, "[24]", "[1, 24]"});
  expect_refused(Remake{.sizes = {0}, .written = false}, {path, "[24]", "[0]"});
  expect_refused(Remake{.sizes = {kWidth}, .name = "hessian"}, {kGroup + "/hessian", "[300]", "[24]"});
  expect_refused(Remake{.sizes = {0, kWidth}, .written = false, .name = "sample"}, {kGroup + "/sample", "rows"});
  expect_refused(Remake{.sizes = {kWindows * kTokens + 1, kWidth}, .name = "sample"}, {kGroup + "/sample", "24 rows"});
  expect_refused(Remake{.sizes = {6, kWidth + 1}, .name = "sample"}, {kGroup + "/sample", "[6, 24]", "[6, 25]"});
  expect_refused(Remake{.written = false}, {path, "bytes inside the file"});  // has no place in the file
  expect_refused(Remake{.properties = [](hid_t p) { H5Pset_layout(p, H5D_COMPACT); }}, {path, "contiguous", "compact"});
  const hsize_t chunk[2] = {8, 8};
  expect_refused(Remake{.properties = [&](hid_t p) { H5Pset_chunk(p, 1, chunk); }}, {path, "contiguous", "chunks"});
  const auto filtered = [&](const std::function<void(hid_t)>& filter) {
    return [&chunk, filter](hid_t p) {
      H5Pset_chunk(p, 1, chunk);
      filter(p);
    };
  };
  for (const auto& filter : std::vector<std::function<void(hid_t)>>{[](hid_t p) { H5Pset_deflate(p, 9); },
                                                                    [](hid_t p) { H5Pset_shuffle(p); },
                                                                    [](hid_t p) { H5Pset_fletcher32(p); }}) {
    expect_refused(Remake{.properties = filtered(filter)}, {path, "filters"});
  }
  // The file has a few kilobytes and claims 4 TiB.
  constexpr hsize_t kHuge = hsize_t{1} << 40;
  expect_refused(
      Remake{.sizes = {kHuge}, .properties = filtered([](hid_t p) { H5Pset_deflate(p, 9); }), .written = false},
      {path, "filters"});
  for (const std::string name : {"min", "hessian", "sample"}) {
    expect_refused(Remake{.sizes = {kHuge}, .written = false, .name = name},
                   {kGroup + "/" + name, "fit into the file"});
    expect_refused(Remake{.sizes = {kHuge, kWidth}, .written = false, .name = name}, {"fit into the file"});
  }
  expect_refused(Remake{.sizes = {5000, 5000}, .written = false, .name = "sample"}, {"inside the file"});
  write_text(folder_ / "secret", std::string(1 << 12, 'x'));
  expect_refused(
      Remake{
          .properties = [&](hid_t p) { H5Pset_external(p, (folder_ / "secret").c_str(), 0, kWidth * sizeof(float)); },
          .written = false},
      {path, "external"});
  expect_refused(
      [](hid_t file) {
        const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
        H5Pset_virtual(creation, space({kWidth}), "other.h5", "/min", space({kWidth}));
        H5Ldelete(file, (kGroup + "/min").c_str(), kDefault);
        H5Dclose(
            H5Dcreate2(file, (kGroup + "/min").c_str(), H5T_IEEE_F32LE, space({kWidth}), kDefault, creation, kDefault));
      },
      {path});
}

TEST_F(HostileStatistics, OnlyHardLinksAreFollowed) {
  const std::string path = kGroup + "/min";
  const auto relinked = [](const std::string& from, const std::function<void(hid_t)>& link) {
    return [from, link](hid_t file) {
      ASSERT_GE(H5Ldelete(file, from.c_str(), kDefault), 0);
      link(file);
    };
  };
  expect_refused(relinked(path, [](hid_t) {}), {path, "an array", "nothing"});
  expect_refused(
      relinked(path, [&](hid_t f) { H5Lcreate_soft((kGroup + "/max").c_str(), f, path.c_str(), kDefault, kDefault); }),
      {path, "a hard link", "a soft link"});
  expect_refused(
      relinked(path,
               [&](hid_t f) { H5Lcreate_external(good_.c_str(), path.c_str(), f, path.c_str(), kDefault, kDefault); }),
      {kGroup, "newer format"});
  expect_refused(relinked(path, [&](hid_t f) { H5Gclose(H5Gcreate2(f, path.c_str(), kDefault, kDefault, kDefault)); }),
                 {path, "an array", "a group"});
  expect_refused(
      relinked(path,
               [&](hid_t f) { H5Lcreate_hard(f, (kGroup + "/sample").c_str(), f, path.c_str(), kDefault, kDefault); }),
      {"[24]", "[6, 24]"});
  expect_refused(
      relinked(path,
               [&](hid_t f) { H5Lcreate_hard(f, (kGroup + "/max").c_str(), f, path.c_str(), kDefault, kDefault); }),
      {"expected"});
  expect_refused(relinked(kGroup, [&](hid_t f) { H5Lcreate_soft("/", f, kGroup.c_str(), kDefault, kDefault); }),
                 {kGroup, "a soft link"});
  expect_refused(relinked("/model.layers.0",
                          [&](hid_t f) {
                            H5Lcreate_external(good_.c_str(), "/model.layers.0", f, "/model.layers.0", kDefault,
                                               kDefault);
                          }),
                 {"/", "newer format"});
  expect_refused(relinked(kGroup,
                          [&](hid_t f) {
                            const hid_t creation = H5Pcreate(H5P_GROUP_CREATE);
                            H5Pset_link_creation_order(creation, H5P_CRT_ORDER_TRACKED);
                            H5Gclose(H5Gcreate2(f, kGroup.c_str(), kDefault, creation, kDefault));
                          }),
                 {kGroup, "newer format"});
  expect_refused(
      relinked(kGroup,
               [&](hid_t f) {
                 H5Dclose(H5Dcreate2(f, kGroup.c_str(), H5T_IEEE_F32LE, space({4}), kDefault, kDefault, kDefault));
               }),
      {kGroup});
}

TEST_F(HostileStatistics, OtherVersionsOfTheFormatAreRefused) {
  const hid_t creation = H5Pcreate(H5P_FILE_CREATE), access = H5Pcreate(H5P_FILE_ACCESS);
  H5Pset_userblock(creation, kUserBlockBytes);
  H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_LATEST);
  H5Fclose(H5Fcreate(bad_.c_str(), H5F_ACC_TRUNC, creation, access));
  std::string bytes = bytes_of(bad_);
  sign(bytes);
  write_text(bad_, bytes);
  expect_refused({"HDF5 superblock", "versions 0"});
}

TEST_F(HostileStatistics, StructuresThatLeadInCirclesEnd) {
  const std::string good = bytes_of(good_);
  const auto put_at = [](std::string& bytes, size_t at, uint64_t value) { std::memcpy(&bytes[at], &value, 8); };
  const auto refused = [&](std::string bytes, std::initializer_list<std::string> words) {
    sign(bytes);
    write_text(bad_, bytes);
    expect_refused(words);
  };
  const size_t tree = good.find("TREE");
  ASSERT_NE(tree, std::string::npos);
  // A tree node is its own child, once at level 0 and once above it.
  std::string bytes = good;
  put_at(bytes, tree + 32, tree - kUserBlockBytes);
  refused(bytes, {"symbol node"});
  bytes[tree + 5] = 1;
  refused(bytes, {"level 0"});
  // Levels fall, but a node of each leads 8 times to the next, which makes 8^30 leaves.
  bytes = good;
  const size_t forest = bytes.size();
  for (size_t level = 0; level < 30; ++level) {
    std::string below = good.substr(tree, 24);
    below[5] = static_cast<char>(29 - level);
    below[6] = 8;
    const uint64_t next = forest + (level + 1) * 160 - kUserBlockBytes;
    for (int i = 0; i < 8; ++i) {
      below.append(8, '\0');
      below.append(reinterpret_cast<const char*>(&next), 8);
    }
    below.resize(160);
    bytes += below;
  }
  bytes += std::string("SNOD\1\0\0\0", 8);
  const size_t table = good.find(std::string("\x11\0\x10\0\0\0\0\0", 8), kUserBlockBytes);  // the root's
  ASSERT_NE(table, std::string::npos);
  put_at(bytes, table + 8, forest - kUserBlockBytes);
  put_at(bytes, kUserBlockBytes + 40, bytes.size());
  refused(bytes, {"metadata of at most"});
  // The header continues in itself.
  bytes = good;
  const size_t continuation = good.find(std::string("\x10\0\x10\0\0\0\0\0", 8), kUserBlockBytes);
  ASSERT_NE(continuation, std::string::npos);
  put_at(bytes, continuation + 8, continuation - kUserBlockBytes);
  put_at(bytes, continuation + 16, 24);
  refused(bytes, {"metadata of at most"});
  put_at(bytes, continuation + 16, 0);
  refused(bytes, {"continuation"});
  put_at(bytes, continuation + 16, uint64_t{1} << 62);
  refused(bytes, {"inside the file"});
  put_at(bytes, continuation + 8, ~uint64_t{0});
  refused(bytes, {"inside the file"});
  // The file ends elsewhere than it says.
  bytes = good;
  put_at(bytes, kUserBlockBytes + 40, bytes.size() + 1);
  refused(bytes, {"end of file"});
  refused(good + "x", {"end of file"});
}

TEST_F(HostileStatistics, NumbersThatNoInputHasAreRefused) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  const auto changed = [](const std::string& name, size_t at, float value) {
    return [=](hid_t file) {
      const hid_t set = H5Dopen2(file, (kGroup + "/" + name).c_str(), kDefault);
      std::vector<float> values(static_cast<size_t>(H5Sget_simple_extent_npoints(H5Dget_space(set))));
      ASSERT_GE(H5Dread(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, kDefault, values.data()), 0);
      values.at(at) = value;
      ASSERT_GE(H5Dwrite(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, kDefault, values.data()), 0);
      H5Dclose(set);
    };
  };
  for (const std::string name : {"hessian_diagonal", "min", "max", "mean_abs", "sample"}) {
    for (const float value : {kNan, kInf, -kInf}) {
      expect_refused(changed(name, 23, value), {kGroup + "/" + name, "channel 23"});
    }
  }
  for (const float value : {kNan, kInf, -kInf, 1e6f, -1e6f}) {
    expect_refused(changed("hessian", 1, value), {kGroup + "/hessian", "channels 0 and 1"});
    expect_refused(changed("hessian", 299, value), {kGroup + "/hessian", "channel 23"});  // on the diagonal
  }
  expect_refused(changed("hessian_diagonal", 3, -1.0f), {kGroup + "/hessian_diagonal", ">= 0", "-1 in channel 3"});
  expect_refused(changed("hessian_diagonal", 3, 1e9f), {kGroup + "/hessian_diagonal", "square of the range"});
  expect_refused(changed("hessian_diagonal", 3, 1.0f), {kGroup + "/hessian", "hessian_diagonal"});
  expect_refused(changed("min", 5, 1e9f), {kGroup + "/min", "1e+09 in channel 5"});
  expect_refused(changed("max", 5, -1e9f), {kGroup + "/min", "-1e+09"});
  expect_refused(changed("mean_abs", 7, -0.5f), {kGroup + "/mean_abs", "-0.5 in channel 7"});
  expect_refused(changed("mean_abs", 7, 1e4f), {kGroup + "/mean_abs", "10000 in channel 7"});
  expect_refused(changed("sample", 24 * 5 + 9, 1e4f), {kGroup + "/sample", "10000 in channel 9"});
}

// The writer must refuse what the reader would refuse, before a run has worked for hours.
TEST_F(HostileStatistics, AreNotWritten) {
  const auto refused = [&](const StatisticsOrigin& origin, const LayerStatistics& statistics, const std::string& word) {
    expect_error<std::invalid_argument>(
        [&] {
          StatisticsWriter writer(bad_, origin);
          writer.write(block_, kStage, statistics);
        },
        {word});
    EXPECT_FALSE(fs::exists(folder_ / "bad.h5.partial"));
  };
  StatisticsOrigin origin = kOrigin;
  origin.text = "a\nb";
  refused(origin, statistics_, "control characters");
  origin = kOrigin;
  origin.num_windows = 0;
  refused(origin, statistics_, "windows");
  LayerStatistics other = statistics_;
  other.num_tokens = 1;
  refused(kOrigin, other, "num_tokens");
  other = statistics_;
  other.max_I = other.min_I.sub(1.0);
  refused(kOrigin, other, "min");
  other = statistics_;
  other.min_I = other.min_I.narrow(0, 0, 3);
  refused(kOrigin, other, "width 24");
  other.hessian_II = at::Tensor();
  refused(kOrigin, other, "H is missing");
}

// Random damage anywhere, with a right hash, must be read or refused. It runs in a process of its own, so that crashes,
// hangs and unbounded memory are found too.
TEST_F(HostileStatistics, MutatedBytesAreReadOrRefused) {
  const std::string good = bytes_of(good_);
  constexpr int kMutations = 4000;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    at::set_num_threads(1);  // OpenMP's threads stayed in the parent
    alarm(120);
    int64_t num_pages = 0;
    std::ifstream("/proc/self/statm") >> num_pages;
    const rlim_t limit = static_cast<rlim_t>(num_pages * sysconf(_SC_PAGESIZE)) + (rlim_t{256} << 20);
    const rlimit memory = {limit, limit};
    setrlimit(RLIMIT_AS, &memory);
    std::mt19937_64 random(7);
    int num_refused = 0;
    for (int mutation = 0; mutation < kMutations; ++mutation) {
      std::string bytes = good;
      for (uint64_t i = 0; i <= random() % 3; ++i) {
        const size_t at = kUserBlockBytes + random() % (bytes.size() - kUserBlockBytes);
        const uint64_t special[] = {0,       1, ~uint64_t{0}, uint64_t{1} << 63, bytes.size(), at - kUserBlockBytes,
                                    random()};
        if (random() % 2 == 0) {
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
        } else {
          const size_t aligned = at / 8 * 8;
          std::memcpy(&bytes[aligned], &special[random() % std::size(special)],
                      std::min<size_t>(8, bytes.size() - aligned));
        }
      }
      sign(bytes);
      fs::remove(bad_);  // ext4 writes a replaced file's content to the disk at once
      write_text(bad_, bytes);
      try {
        read_all(bad_);
      } catch (const std::runtime_error& error) {
        ++num_refused;
        const std::string message = error.what();
        if (message.find("cannot read") != 0 || message.find("bad.h5") == std::string::npos ||
            !is_plain_text(message)) {
          std::fprintf(stderr, "mutation %d: %s\n", mutation, message.c_str());
          _exit(2);
        }
      } catch (const std::exception& error) {
        std::fprintf(stderr, "mutation %d: another type of error: %s\n", mutation, error.what());
        _exit(3);
      }
    }
    std::fprintf(stderr, "%d of %d mutations refused\n", num_refused, kMutations);
    _exit(num_refused > kMutations / 4 && num_refused < kMutations ? 0 : 4);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// The group has more members than one node of a tree and one node of symbols hold, like that of a block with many
// experts.
TEST(Hdf5Reader, FindsEveryMemberOfALargeGroup) {
  const TemporaryFolder folder("hdf5");
  const fs::path path = folder / "large.h5";
  constexpr int kMembers = 700;
  {
    Hdf5Writer writer(path, path, 0);
    for (int i = 0; i < kMembers; ++i) {
      const std::string group = "experts/expert " + std::to_string(i * 7919 % kMembers);
      writer.make_group(group);
      writer.attribute(group, "number", static_cast<uint64_t>(i));
      writer.attribute(group, "name", "number " + std::to_string(i));
    }
    const std::vector<int64_t> none = {0, 5};
    writer.floats("experts", "none", none, {});
    writer.floats("experts", "two", std::vector<int64_t>{2}, std::vector<float>{1.5f, -2.0f});
    writer.close();
  }
  const Hdf5Reader reader(InputFile(path), 0, "do something");
  const std::optional<Hdf5Object> experts = reader.root().find("experts");
  ASSERT_TRUE(experts);
  for (int i = 0; i < kMembers; ++i) {
    const std::optional<Hdf5Object> expert = experts->find("expert " + std::to_string(i * 7919 % kMembers));
    ASSERT_TRUE(expert) << i;
    EXPECT_EQ(expert->number("number"), static_cast<uint64_t>(i));
    EXPECT_EQ(expert->text("name"), "number " + std::to_string(i));
  }
  EXPECT_FALSE(experts->find("expert 700"));
  EXPECT_FALSE(experts->find("expert"));
  EXPECT_EQ(experts->array("none", Hdf5Type::float32).shape, (std::vector<int64_t>{0, 5}));
  const Hdf5Array two = experts->array("two", Hdf5Type::float32);
  std::vector<float> values(1);
  reader.read(two, 1, std::span(values));
  EXPECT_EQ(values[0], -2.0f);
  values.resize(2);
  expect_error<std::invalid_argument>([&] { reader.read(two, 1, std::span(values)); }, {"/experts/two"});
}

TEST(Hdf5, ArraysOfEveryTypeAreReadAsThatTypeAlone) {
  const TemporaryFolder folder("types");
  const std::vector<std::pair<Hdf5Type, std::string>> types = {
      {Hdf5Type::uint8, "8-bit unsigned integers"},
      {Hdf5Type::uint16, "16-bit unsigned integers, little-endian"},
      {Hdf5Type::uint32, "32-bit unsigned integers"},
      {Hdf5Type::uint64, "64-bit unsigned integers"},
      {Hdf5Type::float16, "16-bit floats"},
      {Hdf5Type::float32, "32-bit floats, little-endian"},
      {Hdf5Type::float64, "64-bit floats"}};
  const auto bytes_of_rows = [](Hdf5Type type, size_t num_values, int first) {
    std::vector<std::byte> bytes(num_values * static_cast<size_t>(size_bytes(type)));
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(first + static_cast<int>(i));
    return bytes;
  };
  Hdf5Writer writer(folder / "types.h5", "types.h5", 0);
  const std::vector<int64_t> shape = {3, 2};
  for (size_t i = 0; i < types.size(); ++i) {
    const std::string name = "array" + std::to_string(i);
    writer.make_array("/", name.c_str(), types[i].first, shape);
    writer.write("/", name.c_str(), 2, bytes_of_rows(types[i].first, 2, 100));
    writer.write("/", name.c_str(), 0, bytes_of_rows(types[i].first, 4, 1));
  }
  const std::vector<std::byte> odd(7);
  expect_error<std::invalid_argument>([&] { writer.write("/", "array5", 0, odd); }, {"array5", "7 bytes at row 0"});
  const std::vector<std::byte> row(8);
  expect_error<std::invalid_argument>([&] { writer.write("/", "array5", 3, row); }, {"array5", "at row 3"});
  writer.close();
  const Hdf5Reader reader(InputFile(folder / "types.h5"), 0, "remedy");
  for (size_t i = 0; i < types.size(); ++i) {
    const std::string name = "array" + std::to_string(i);
    const Hdf5Array array = reader.root().array(name, types[i].first);
    EXPECT_EQ(array.shape, shape);
    std::vector<std::byte> values(static_cast<size_t>(6 * size_bytes(types[i].first)));
    reader.read_bytes(array, 0, values);
    std::vector<std::byte> expected = bytes_of_rows(types[i].first, 4, 1);
    for (const std::byte byte : bytes_of_rows(types[i].first, 2, 100)) expected.push_back(byte);
    EXPECT_EQ(values, expected);
    for (size_t j = 0; j < types.size(); ++j) {
      if (i == j) continue;
      expect_error<std::runtime_error>([&] { reader.root().array(name, types[j].first); },
                                       {"/" + name, "expected " + types[j].second, "found ", types[i].second});
    }
    values.resize(values.size() + 1);
    expect_error<std::invalid_argument>([&] { reader.read_bytes(array, 0, values); }, {"/" + name});
  }
}

}  // namespace
}  // namespace pare::test
