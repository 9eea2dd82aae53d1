// Checks the store of teacher logits by itself. What is written must be read, and files that someone has changed or
// made to do harm must be refused.
#include "compress/record/logit_store.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <hdf5.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <random>

#include "compress/record/logit_writer.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/sha256.h"
#include "tests/compress/run_pare.h"
#include "tests/expect_error.h"
#include "tests/fuzz/fuzz_files.h"
#include "tests/places.h"

namespace pare::test {
using namespace compress;
using namespace distill;
using namespace runtime;
namespace {

namespace fs = std::filesystem;

constexpr hid_t kDefault = H5P_DEFAULT;
constexpr size_t kUserBlock = 512;

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

LogitOrigin some_origin(int64_t num_vocabulary, int64_t num_kept) {
  return {.model = "model",
          .tokenizer = "tokenizer",
          .data = "data",
          .text = "text.txt",
          .source = R"({"kind":"windows"})",
          .num_vocabulary = num_vocabulary,
          .num_kept = num_kept,
          .temperatures = {1.0, 2.5},
          .pare_version = "pare 1",
          .libtorch_version = "torch 2",
          .instruction_set = "avx"};
}

// Sequences of some lengths, their logits, and the store of both.
struct Made {
  LogitOrigin origin;
  std::vector<RecordedSequence> sequences;
  std::vector<TruncatedLogits> rows;
  std::vector<std::vector<float>> labels;
  std::vector<LogitShard> shards;
};

class Store : public testing::Test {
 protected:
  void SetUp() override {
    H5dont_atexit();
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  // Puts two sequences into each shard.
  Made make(int64_t num_vocabulary, int64_t num_kept, const std::vector<int64_t>& lengths) {
    Made made{.origin = some_origin(num_vocabulary, num_kept), .sequences = {}, .rows = {}, .labels = {}, .shards = {}};
    at::manual_seed(7);
    for (const int64_t length : lengths) {
      // The logits are peaked, so that logarithms lie between -1e-5 and -60.
      const at::Tensor logits = at::randn({length, num_vocabulary}).mul(8.0);
      made.rows.push_back(truncate_logits(logits, num_kept, made.origin.temperatures));
      RecordedSequence sequence;
      std::vector<float> labels;
      const at::Tensor log_probs = logits.log_softmax(1);
      for (int64_t t = 0; t < length; ++t) {
        sequence.ids.push_back(static_cast<int32_t>(num_vocabulary - 1 - 37 * t % num_vocabulary));
        sequence.label_mask.push_back(t > 0 && t + 1 < length);
        if (t > 1 && t + 1 < length && t % 3 == 2) {
          sequence.starts.push_back(static_cast<int32_t>(t));
          sequence.label_mask[static_cast<size_t>(t) - 1] = 0;
        }
        labels.push_back(t + 1 < length ? log_probs.const_data_ptr<float>()[t * num_vocabulary + t % num_vocabulary]
                                        : 0.0f);
      }
      made.sequences.push_back(sequence);
      made.labels.push_back(labels);
    }
    fs::create_directories(folder_ / "s.h5.shards");
    for (size_t first = 0; first < lengths.size(); first += 2) {
      const size_t count = std::min<size_t>(2, lengths.size() - first);
      const auto shard = static_cast<int64_t>(first / 2);
      LogitShardWriter writer(shard_path(shard), made.origin, shard, static_cast<int64_t>(first),
                              {made.sequences.begin() + static_cast<int64_t>(first),
                               made.sequences.begin() + static_cast<int64_t>(first + count)});
      for (size_t s = first; s < first + count; ++s) writer.append(made.rows[s], made.labels[s]);
      made.shards.push_back(writer.publish());
    }
    write_master(folder_ / "s.h5", made.origin, "s.h5.shards", made.shards);
    return made;
  }
  fs::path shard_path(int64_t shard) const { return folder_ / "s.h5.shards" / shard_name(shard); }

  // `change`, which may be empty, works on the file through the HDF5 library. The file's line is then written again.
  void edit(const fs::path& path, const std::function<void(hid_t)>& change, const std::string& version = "2") {
    if (change) open_and_change(path, change);
    std::string bytes = bytes_of(path);
    const std::string line = "pare teacher logits " + version + " sha256 " +
                             sha256_hex(std::as_bytes(std::span(bytes)).subspan(kUserBlock)) + "\n";
    bytes.replace(0, line.size(), line);
    write_text(path, bytes);
  }
  void open_and_change(const fs::path& path, const std::function<void(hid_t)>& change) {
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
    const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, access);
    ASSERT_GE(file, 0);
    change(file);
    ASSERT_GE(H5Fclose(file), 0);
  }
  // Edits the first shard, and makes the master accept the result.
  void edit_shard(Made made, const std::function<void(hid_t)>& change) {
    edit(shard_path(0), change);
    const std::string bytes = bytes_of(shard_path(0));
    made.shards[0].sha256 = sha256_hex(std::as_bytes(std::span(bytes)).subspan(kUserBlock));
    fs::remove(folder_ / "s.h5");
    write_master(folder_ / "s.h5", made.origin, "s.h5.shards", made.shards);
  }
  void expect_refused(std::initializer_list<std::string> words) {
    expect_error<std::runtime_error>(
        [&] {
          const LogitStore store = LogitStore::open(folder_ / "s.h5");
          for (int64_t s = 0; s < store.num_sequences(); ++s) {
            store.sequence(s);
            store.label_log_probs(s);
            store.read(s, 0, store.length(s));
          }
        },
        words);
  }

  TemporaryFolder folder_{"logits"};
};

template <typename Value>
void overwrite(hid_t file, const char* name, std::vector<hsize_t> place, Value value) {
  const hid_t set = H5Dopen2(file, name, kDefault);
  ASSERT_GE(set, 0) << name;
  const hid_t type = H5Dget_type(set), space = H5Dget_space(set);
  ASSERT_EQ(H5Tget_size(type), sizeof(Value)) << name;
  const std::vector<hsize_t> ones(place.size(), 1);
  const hid_t memory = H5Screate_simple(static_cast<int>(ones.size()), ones.data(), nullptr);
  ASSERT_GE(H5Sselect_hyperslab(space, H5S_SELECT_SET, place.data(), nullptr, ones.data(), nullptr), 0);
  ASSERT_GE(H5Dwrite(set, type, memory, space, kDefault, &value), 0);
  H5Dclose(set);
}

uint16_t half_bits(float value) {
  const at::Half half(value);
  return half.x;
}

// float16 has 11 significant bits, so its rounding error is 2^-12 of the value, or 2^-25 below 2^-14.
double half_error(double value) {
  return std::max(std::ldexp(std::abs(value), -11), std::ldexp(1.0, -25));
}

TEST_F(Store, GivesBackWhatWasWritten) {
  for (const auto& [num_vocabulary, num_kept] : {std::pair<int64_t, int64_t>{300, 7}, {65536, 3}, {70000, 4}, {6, 6}}) {
    const std::vector<int64_t> lengths = {5, 1, 9, 2, 3};
    const Made made = make(num_vocabulary, num_kept, lengths);
    const LogitStore store = LogitStore::open(folder_ / "s.h5");
    EXPECT_EQ(store.origin().to_json(), made.origin.to_json());
    ASSERT_EQ(store.num_sequences(), 5);
    EXPECT_EQ(store.num_tokens(), 20);
    for (const int64_t s : {4, 0, 2, 3, 1}) {  // goes from shard to shard and back
      const auto i = static_cast<size_t>(s);
      ASSERT_EQ(store.length(s), lengths[i]);
      EXPECT_EQ(store.sequence(s).ids, made.sequences[i].ids);
      EXPECT_EQ(store.sequence(s).label_mask, made.sequences[i].label_mask);
      EXPECT_EQ(store.sequence(s).starts, made.sequences[i].starts);
      const std::vector<float> labels = store.label_log_probs(s);
      for (size_t t = 0; t < labels.size(); ++t) {
        EXPECT_NEAR(labels[t], made.labels[i][t], half_error(made.labels[i][t]));
      }
      const int64_t first = lengths[i] / 2, count = lengths[i] - first;
      const TruncatedLogits rows = store.read(s, first, count);
      EXPECT_EQ(rows.num_vocabulary, num_vocabulary);
      EXPECT_EQ(rows.temperatures, made.origin.temperatures);
      EXPECT_TRUE(rows.ids_TK.to(at::kLong).equal(made.rows[i].ids_TK.narrow(0, first, count)));
      for (const auto& [found, written] : {std::pair{rows.log_probs_TK, made.rows[i].log_probs_TK},
                                           std::pair{rows.log_tails_TN, made.rows[i].log_tails_TN}}) {
        const at::Tensor expected = written.narrow(0, first, count).contiguous();
        ASSERT_EQ(found.sizes(), expected.sizes());
        for (int64_t j = 0; j < found.numel(); ++j) {
          const float exact = expected.const_data_ptr<float>()[j], is = found.const_data_ptr<float>()[j];
          EXPECT_TRUE(is == exact || std::abs(is - exact) <= half_error(exact))
              << is << " for " << exact;  // -inf stays -inf
        }
      }
      EXPECT_EQ(TeacherLogits(rows).num_outcomes(), num_kept + (num_kept < num_vocabulary));
    }
    expect_error<std::invalid_argument>([&] { store.read(0, 3, 3); }, {"tokens 3 to 6", "it has 5"});
    expect_error<std::invalid_argument>([&] { store.sequence(5); }, {"sequence 5", "it has 5"});
    fs::remove_all(folder_ / "s.h5");
    fs::remove_all(folder_ / "s.h5.shards");
  }
}

TEST(StoreSize, FiftyOfASmallVocabularyTakeAtMost215BytesPerToken) {
  EXPECT_EQ(bytes_per_token(65536, 50, 2), 2 + 1 + 2 + 50 * (2 + 2) + 2 * 2 + 1);
  EXPECT_LE(bytes_per_token(65536, 50, 2), 215);
  EXPECT_EQ(bytes_per_token(65537, 50, 2), 4 + 1 + 2 + 50 * (4 + 2) + 2 * 2 + 1);
}

TEST_F(Store, ThePairMayBeMovedButNothingElse) {
  make(300, 7, {5, 1, 9});
  fs::create_directories(folder_ / "elsewhere");
  fs::rename(folder_ / "s.h5", folder_ / "elsewhere" / "s.h5");
  expect_error<std::runtime_error>([&] { LogitStore::open(folder_ / "elsewhere" / "s.h5"); },
                                   {"00000.h5", "cannot read"});
  fs::rename(folder_ / "s.h5.shards", folder_ / "elsewhere" / "s.h5.shards");
  EXPECT_EQ(LogitStore::open(folder_ / "elsewhere" / "s.h5").num_sequences(), 3);
}

TEST_F(Store, AChangeBehindItsBackIsFound) {
  make(300, 7, {5, 1, 9, 4});
  const LogitStore store = LogitStore::open(folder_ / "s.h5");
  store.check_unchanged();
  store.read(0, 0, 1);
  store.read(3, 0, 1);
  store.check_unchanged();
  for (const fs::path& path : {folder_ / "s.h5", shard_path(0), shard_path(1)}) {
    const LogitStore before = LogitStore::open(folder_ / "s.h5");
    write_text(path.string() + ".new", bytes_of(path));
    fs::rename(path.string() + ".new", path);
    expect_error<std::runtime_error>([&] { before.check_unchanged(); }, {path.filename().string(), "changed"});
  }
}

TEST_F(Store, DamagedFilesAreRefused) {
  const Made made = make(300, 7, {5, 1, 9, 4});
  const std::string master = bytes_of(folder_ / "s.h5"), shard = bytes_of(shard_path(0));
  for (const auto& [path, whole] : {std::pair{folder_ / "s.h5", master}, std::pair{shard_path(0), shard}}) {
    std::string bytes = whole;
    bytes[bytes.size() - 5] ^= 1;
    write_text(path, bytes);
    expect_refused({path.string(), "truncated or damaged", "pare record"});
    write_text(path, whole.substr(0, whole.size() - 100));
    expect_refused({path.string(), "truncated or damaged"});
    write_text(path, "");
    expect_refused({path.string(), "it is not a teacher logits file"});
    write_text(path, "pare statistics 1 sha256 " + std::string(64, '0'));
    expect_refused({path.string(), "it is not a teacher logits file"});
    write_text(path, "pare teacher logits 3 sha256 " + std::string(64, '0'));
    expect_refused({path.string(), "version '3'", "expected 2"});
    write_text(path, whole);
  }
  fs::copy_file(shard_path(1), shard_path(0), fs::copy_options::overwrite_existing);
  expect_refused({"00000.h5", "attribute /shard", "expected 0", "found 1"});
  // This shard is from the same place in another store of the same origin, whose rows differ.
  write_text(shard_path(0), shard);
  edit(shard_path(0), [](hid_t file) { overwrite<uint8_t>(file, "label_mask", {0}, 1); });
  expect_refused({"00000.h5", "SHA-256", made.shards[0].sha256});
  write_text(shard_path(0), shard);
  fs::remove(shard_path(1));
  expect_refused({"00001.h5", "cannot read"});
}

// Version 1 had no `starts`: each sequence was one document.
TEST_F(Store, OfTheFirstVersionIsRead) {
  Made made = make(300, 7, {5, 2, 9, 4});
  const auto remove_starts = [](hid_t file) { ASSERT_GE(H5Ldelete(file, "starts", kDefault), 0); };
  for (size_t shard = 0; shard < made.shards.size(); ++shard) {
    const fs::path path = shard_path(static_cast<int64_t>(shard));
    edit(path, remove_starts, "1");
    const std::string bytes = bytes_of(path);
    made.shards[shard].sha256 = sha256_hex(std::as_bytes(std::span(bytes)).subspan(kUserBlock));
  }
  fs::remove(folder_ / "s.h5");
  write_master(folder_ / "s.h5", made.origin, "s.h5.shards", made.shards);
  edit(folder_ / "s.h5", remove_starts, "1");
  const LogitStore store = LogitStore::open(folder_ / "s.h5");
  ASSERT_EQ(store.num_sequences(), 4);
  for (int64_t s = 0; s < 4; ++s) {
    EXPECT_EQ(store.sequence(s).ids, made.sequences[static_cast<size_t>(s)].ids);
    EXPECT_EQ(store.sequence(s).label_mask, made.sequences[static_cast<size_t>(s)].label_mask);
    EXPECT_TRUE(store.sequence(s).starts.empty());
    EXPECT_EQ(store.read(s, 0, store.length(s)).ids_TK.size(0), store.length(s));
  }
  // A file that claims the present version must have them.
  edit(shard_path(0), {});
  expect_refused({"00000.h5", "starts"});
}

TEST_F(Store, HostileRowsAreRefused) {
  const Made made = make(300, 7, {5, 1, 9});
  const std::string whole = bytes_of(shard_path(0));
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const std::vector<std::pair<std::function<void(hid_t)>, std::vector<std::string>>> cases = {
      {[](hid_t f) { overwrite<uint16_t>(f, "token_ids", {2}, 300); }, {"token_ids", "0 to 299", "found 300"}},
      {[](hid_t f) { overwrite<uint8_t>(f, "label_mask", {2}, 2); }, {"label_mask", "0 or 1", "found 2"}},
      {[](hid_t f) { overwrite<uint8_t>(f, "label_mask", {4}, 1); }, {"label_mask", "last token"}},
      {[](hid_t f) { overwrite<uint8_t>(f, "starts", {0}, 0); }, {"starts", "1 at the first token", "found 0"}},
      {[](hid_t f) { overwrite<uint8_t>(f, "starts", {3}, 2); }, {"starts", "0 or 1", "found 2"}},
      {[](hid_t f) { overwrite<uint8_t>(f, "starts", {4}, 1); }, {"label_mask", "last token of a document"}},
      {[](hid_t f) { overwrite<uint16_t>(f, "label_log_probs", {1}, half_bits(0.5f)); },
       {"label_log_probs", "at most 0", "found 0.5"}},
      {[&](hid_t f) { overwrite<uint16_t>(f, "label_log_probs", {1}, half_bits(nan)); }, {"label_log_probs", "nan"}},
      {[](hid_t f) {
         overwrite<uint16_t>(f, "top_ids", {3, 2}, 65535);
       },
       {"top_ids", "0 to 299", "found 65535"}},
      {[](hid_t f) {
         overwrite<uint16_t>(f, "top_ids", {3, 2}, 11);
         overwrite<uint16_t>(f, "top_ids", {3, 5}, 11);
       },
       {"top_ids", "different ids", "11 twice"}},
      {[](hid_t f) {
         overwrite<uint16_t>(f, "top_log_probs", {0, 6}, half_bits(-0.0f));
       },
       {"top_log_probs", "descending"}},
      {[&](hid_t f) {
         overwrite<uint16_t>(f, "top_log_probs", {0, 3}, half_bits(nan));
       },
       {"descending"}},
      {[&](hid_t f) {
         overwrite<uint16_t>(f, "top_log_probs", {0, 0}, half_bits(-inf));
       },
       {"finite first value"}},
      {[](hid_t f) {
         overwrite<uint16_t>(f, "top_log_probs", {0, 0}, half_bits(1.0f));
       },
       {"at most 0", "found 1"}},
      {[](hid_t f) {
         overwrite<uint16_t>(f, "log_tails", {0, 1}, half_bits(1.0f));
       },
       {"log_tails", "at most 0"}},
      {[](hid_t f) { overwrite<uint32_t>(f, "lengths", {0}, 0); }, {"lengths", "found 0"}},
      {[](hid_t f) { overwrite<uint32_t>(f, "lengths", {0}, 6); }, {"/token_ids", "expected [7]", "found [6]"}},
      {[](hid_t f) { overwrite<uint32_t>(f, "lengths", {0}, ~0u); }, {"lengths"}},
      {[](hid_t f) { H5Ldelete(f, "top_ids", kDefault); }, {"/top_ids", "found nothing"}},
      {[](hid_t f) {
         H5Ldelete(f, "top_ids", kDefault);
         H5Lcreate_external("/etc/passwd", "/x", f, "top_ids", kDefault, kDefault);
       },
       {"links of the newer format"}}};
  for (const auto& [change, words] : cases) {
    edit_shard(made, change);
    expect_refused({"00000.h5", "expected", "found", "pare record"});
    for (const std::string& word : words) expect_refused({word});
    write_text(shard_path(0), whole);
  }
}

TEST_F(Store, HostileMastersAreRefused) {
  make(300, 7, {5, 1, 9});
  const std::string whole = bytes_of(folder_ / "s.h5");
  const auto number = [](hid_t file, const char* name, uint64_t value) {
    const hid_t attribute = H5Aopen(file, name, kDefault);
    ASSERT_GE(H5Awrite(attribute, H5T_STD_U64LE, &value), 0);
    H5Aclose(attribute);
  };
  const auto text = [](hid_t file, const char* name, std::string value) {
    const hid_t attribute = H5Aopen(file, name, kDefault);
    const hid_t type = H5Aget_type(attribute);
    value.resize(H5Tget_size(type), '\0');
    ASSERT_GE(H5Awrite(attribute, type, value.data()), 0);
    H5Aclose(attribute);
  };
  const std::vector<std::pair<std::function<void(hid_t)>, std::vector<std::string>>> cases = {
      {[&](hid_t f) { number(f, "vocabulary", 0); }, {"attribute /vocabulary", "found 0"}},
      {[&](hid_t f) { number(f, "vocabulary", ~uint64_t{0}); }, {"attribute /vocabulary"}},
      {[&](hid_t f) { number(f, "top_k", 301); }, {"attribute /top_k", "found 301"}},
      {[&](hid_t f) { number(f, "top_k", 8); }, {"attribute /store", "hash of the other attributes"}},
      {[&](hid_t f) { text(f, "model", "other"); }, {"attribute /store"}},
      {[&](hid_t f) { text(f, "shards", "../../x"); }, {"attribute /shards", "a folder beside the file"}},
      {[&](hid_t f) { text(f, "shards", ".."); }, {"attribute /shards"}},
      {[](hid_t f) { overwrite<double>(f, "temperatures", {0}, -1.0); }, {"temperatures", "positive"}},
      {[](hid_t f) { overwrite<uint64_t>(f, "shard_sequences", {0}, 0); }, {"shard_sequences", "found 0"}},
      {[](hid_t f) { overwrite<uint64_t>(f, "shard_sequences", {0}, ~uint64_t{0}); }, {"shard_sequences"}},
      {[](hid_t f) { overwrite<uint64_t>(f, "shard_tokens", {0}, uint64_t{1} << 60); }, {"shard_tokens"}},
      {[](hid_t f) { overwrite<uint64_t>(f, "shard_tokens", {0}, 7); }, {"tokens", "expected 7", "found 6"}},
      {[](hid_t f) { H5Ldelete(f, "shard_sha256", kDefault); }, {"shard_sha256", "found nothing"}}};
  for (const auto& [change, words] : cases) {
    edit(folder_ / "s.h5", change);
    for (const std::string& word : words) expect_refused({word, "cannot read"});
    write_text(folder_ / "s.h5", whole);
  }
  EXPECT_EQ(LogitStore::open(folder_ / "s.h5").num_sequences(), 3);
}

// Any bytes with right hashes must be read, or refused as a file's fault.
TEST_F(Store, MutatedBytesAreReadOrRefused) {
  const Made made = make(300, 7, {5, 1, 9});
  const std::string shard = bytes_of(shard_path(0)), master = bytes_of(folder_ / "s.h5");
  std::mt19937 random(1);
  int num_refused = 0;
  constexpr int kMutations = 400;
  for (int i = 0; i < kMutations; ++i) {
    const bool in_shard = i % 2 == 0;
    const fs::path path = in_shard ? shard_path(0) : folder_ / "s.h5";
    std::string bytes = in_shard ? shard : master;
    for (int n = 0; n < 1 + i % 4; ++n) {
      bytes[kUserBlock + random() % (bytes.size() - kUserBlock)] =
          static_cast<char>(random() % 3 == 0 ? 0xFF : random());
    }
    write_text(path, bytes);
    if (in_shard) {
      edit_shard(made, nullptr);
    } else {
      edit(path, nullptr);
    }
    try {
      const LogitStore store = LogitStore::open(folder_ / "s.h5");
      for (int64_t s = 0; s < store.num_sequences(); ++s) {
        store.sequence(s);
        store.label_log_probs(s);
        const TeacherLogits rows(store.read(s, 0, store.length(s)));
      }
    } catch (const std::runtime_error&) {
      ++num_refused;
    }
    write_text(shard_path(0), shard);
    write_text(folder_ / "s.h5", master);
  }
  EXPECT_GT(num_refused, kMutations / 10);
  EXPECT_LT(num_refused, kMutations);
}

TEST_F(Store, WhatCannotBeReadAgainIsNotWritten) {
  const auto write = [&](const LogitOrigin& origin, const std::vector<RecordedSequence>& sequences) {
    LogitShardWriter(folder_ / "x.h5", origin, 0, 0, sequences);
  };
  const RecordedSequence good{.ids = {1, 2}, .label_mask = {1, 0}};
  expect_error<std::invalid_argument>([&] { write(some_origin(300, 301), {good}); }, {"x.h5", "top_k", "301"});
  expect_error<std::invalid_argument>([&] { write(some_origin(300, 3), {}); }, {"one sequence at least"});
  expect_error<std::invalid_argument>([&] { write(some_origin(2, 2), {good}); }, {"token_ids", "found 2"});
  expect_error<std::invalid_argument>(
      [&] {
        write(some_origin(300, 3), {{.ids = {1, 2}, .label_mask = {1, 1}}});
      },
      {"label_mask"});
  expect_error<std::invalid_argument>(
      [&] {
        write(some_origin(300, 3), {{.ids = {1, 2}, .label_mask = {1}}});
      },
      {"label_mask"});
  {
    LogitShardWriter writer(folder_ / "x.h5", some_origin(300, 3), 0, 0, {good});
    const std::vector<float> labels = {-1.0f, 0.0f};
    expect_error<std::invalid_argument>(
        [&] {
          writer.append(
              truncate_logits(at::randn({2, 300}, at::make_generator<at::CPUGeneratorImpl>(1)), 4, {1.0, 2.5}), labels);
        },
        {"3 of 300"});
    expect_error<std::invalid_argument>(
        [&] {
          writer.append(
              truncate_logits(at::randn({2, 300}, at::make_generator<at::CPUGeneratorImpl>(1)), 3, {1.0, 2.0}), labels);
        },
        {"temperatures"});
    expect_error<std::logic_error>([&] { writer.publish(); }, {"all of its rows"});
  }
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

// A fuzzer that starts from files of an earlier format alone does not reach what is new in today's.
TEST(LogitStore, FuzzersStartFromTodaysFormat) {
  constexpr const char* kNames[] = {"t.h5.shards/00000.h5", "t.h5.shards/00001.h5", "t.h5"};
  const TemporaryFolder folder("fuzz_corpus");
  const std::string today = "pare " + std::string(kLogitFile.name) + " " + std::string(kLogitFile.version) + " ";
  int num_of_today = 0, num_of_before = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(kSourceFolder) / "tests" / "fuzz" / "corpus" / "logits")) {
    const fs::path store = folder / entry.path().filename().string();
    fs::create_directories(store / "t.h5.shards");
    for (const FuzzFile& file : split_files(bytes_of(entry.path()), std::size(kNames))) {
      write_file_atomically(store / kNames[file.name], file.content);
    }
    EXPECT_GT(LogitStore::open(store / "t.h5").num_sequences(), 0) << entry.path();
    ++(bytes_of(store / "t.h5").find(today) == 0 ? num_of_today : num_of_before);
  }
  EXPECT_EQ(num_of_today, 3);
  EXPECT_EQ(num_of_before, 1);
}

}  // namespace
}  // namespace pare::test
