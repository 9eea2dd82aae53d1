// Checks what a run keeps: who owns the folder, whether its files are unchanged, and what they were made from.
#include "compress/artifact/artifact.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "compress/artifact/checked_file.h"
#include "compress/artifact/hugging_face.h"
#include "runtime/commands/small_files.h"
#include "runtime/containers/pare_sparse24.h"
#include "runtime/files/safetensors.h"
#include "runtime/import/import.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/sha256.h"
#include "tests/compress/run_pare.h"
#include "tests/expect_error.h"
#include "tests/places.h"

namespace pare::test {
using namespace compress;
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kFamily = "llama_gqa_untied";
const std::string kDamaged = "is damaged: start over with --fresh";

void flip(const fs::path& path, size_t byte, int bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(byte));
  const int found = file.get();
  file.seekp(static_cast<std::streamoff>(byte));
  file.put(static_cast<char>(found ^ (1 << bit)));
}

TEST(CheckedFile, KnowsWhetherItIsWhatWasWritten) {
  const TemporaryFolder folder("checked");
  const fs::path path = folder / "file.json";
  for (const std::string content : {"", "{\"a\": [1, 2]}\n", "not JSON }\n"}) {
    write_checked_file(path, content);
    EXPECT_EQ(read_checked_file(path), content);
    const std::string good = read_text_file(path);
    for (size_t byte = 0; byte < good.size(); ++byte) {
      for (int bit = 0; bit < 8; ++bit) {
        std::string bad = good;
        bad[byte] = static_cast<char>(bad[byte] ^ (1 << bit));
        write_text(path, bad);
        expect_error<std::runtime_error>([&] { read_checked_file(path); }, {"file.json", kDamaged});
      }
      write_text(path, good.substr(0, byte));
      expect_error<std::runtime_error>([&] { read_checked_file(path); }, {kDamaged});
    }
    write_text(path, good + "\n");
    expect_error<std::runtime_error>([&] { read_checked_file(path); }, {kDamaged});
  }
  const std::string object = "{\"a\": [1, 2]}\n";
  write_checked_file(path, object);
  const Json json = Json::parse(read_text_file(path));
  EXPECT_EQ(json.at("content"), Json::parse(object));
  EXPECT_EQ(json.at("sha256"), sha256_hex(std::as_bytes(std::span(object))));
  expect_error<std::runtime_error>([&] { read_checked_file(folder / "none"); }, {"none", "No such file"});
}

class ArtifactTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { kept_ = new KeptRun; }
  static void TearDownTestSuite() {
    delete kept_;
    kept_ = nullptr;
  }
  void SetUp() override {
    fs::copy(kept_->partial(), partial_, fs::copy_options::recursive);
    fingerprint_ = Json::parse(read_checked_file(progress_ / "run.json")).get<Fingerprint>();
  }
  // Expects that the parts open, or that the message is that of a damaged file.
  void expect_damaged(const fs::path& file) {
    expect_error<std::runtime_error>([&] { Parts(output_, fingerprint_, false); },
                                     {"'" + file.string() + "'", kDamaged});
  }

  // A run that was killed when half of it was committed. It is made once.
  struct KeptRun {
    TemporaryFolder folder{"kept"};
    std::vector<std::string> command;
    KeptRun() {
      const fs::path model = family(kFamily);
      write_text(folder / "recipe.yaml", "model: " + model.string() +
                                             "\ncalibration: {text: " + (model / "ids.npy").string() +
                                             "}\npasses:\n  - gptq: {bits: 4, group_size: 32}\n");
      command = {"run", (folder / "recipe.yaml").string(), "--threads", "1", "--out"};
      const TracedOutcome whole = run_pare_traced(with_output(folder / "whole"), -1);
      if (whole.outcome.status != 0) throw std::runtime_error(whole.outcome.err);
      // It is killed when all parts are there: before files are written to the second folder.
      const auto is_rename = [](const std::string& name) { return name.starts_with("rename"); };
      int num_renames = 0, moment = 0;
      while (num_renames < 5) num_renames += is_rename(whole.names[static_cast<size_t>(moment++)]);
      run_pare_traced(with_output(folder / "out"), moment + 1);
    }
    std::vector<std::string> with_output(const fs::path& output) const {
      std::vector<std::string> words = command;
      words.push_back(output.string());
      return words;
    }
    fs::path partial() const { return folder / "out.partial"; }
  };
  static inline KeptRun* kept_ = nullptr;

  TemporaryFolder folder_{"artifact"};
  fs::path output_ = folder_ / "out", partial_ = folder_ / "out.partial", progress_ = partial_ / "progress";
  Fingerprint fingerprint_;
};

TEST_F(ArtifactTest, PartsAreThereAgain) {
  const Parts parts(output_, fingerprint_, false);
  ASSERT_EQ(parts.num_committed(), 2);
  const Checkpoint source = Checkpoint::open(family(kFamily));
  for (const int64_t part : parts.committed_parts()) {
    ASSERT_EQ(parts.committed(part)->size(), 7u);
    for (const LayerRecord& record : *parts.committed(part)) {
      EXPECT_EQ(content_hash(parts.read_layer(part, record)), record.sha256);
    }
    EXPECT_TRUE(parts.read_changed(part, source).empty());
  }
}

// Flips each bit of run.json and of a record, in turn.
TEST_F(ArtifactTest, EveryFlippedBitOfARecordIsFound) {
  write_checked_file(progress_ / "survey", "identity\n{\"groups\": []}");
  ASSERT_NO_THROW(Parts(output_, fingerprint_, false));
  fs::remove(progress_ / "00002.safetensors");  // leaves less to hash for each flip
  fs::remove(progress_ / "00002.json");
  for (const std::string name : {"run.json", "00001.json", "survey"}) {
    const fs::path file = progress_ / name;
    const size_t size = fs::file_size(file);
    for (size_t byte = 0; byte < size; ++byte) {
      const int bit = static_cast<int>(byte % 8);
      flip(file, byte, bit);
      expect_damaged(file);
      flip(file, byte, bit);
      if (HasFailure()) return;
    }
    const std::string good = read_text_file(file);
    for (size_t length = 0; length < size; length += 97) {
      write_text(file, good.substr(0, length));
      expect_damaged(file);
    }
    write_text(file, good);
  }
  EXPECT_NO_THROW(Parts(output_, fingerprint_, false));
}

TEST_F(ArtifactTest, FilesUnderOtherNamesAreFound) {
  const auto renamed = [&](const std::string& from, const std::string& to, const std::string& damaged) {
    fs::rename(progress_ / from, progress_ / to);
    expect_damaged(progress_ / damaged);
    fs::rename(progress_ / to, progress_ / from);
  };
  for (const std::string to : {"0000x.json", "00003.json", "1.json", "-0001.json", "run.json.json"}) {
    renamed("00001.json", to, to);
  }
  renamed("00001.safetensors", "0000x.safetensors", "00001.safetensors");
  renamed("run.json", "rum.json", "run.json");
  EXPECT_EQ(Parts(output_, fingerprint_, false).num_committed(), 2);
}

TEST_F(ArtifactTest, DamagedTensorsAreFound) {
  const fs::path tensors = progress_ / "00001.safetensors";
  const size_t size = fs::file_size(tensors);
  for (size_t byte = 0; byte < size; byte += size / 50) {
    flip(tensors, byte, static_cast<int>(byte % 8));
    expect_damaged(tensors);
    flip(tensors, byte, static_cast<int>(byte % 8));
  }
  EXPECT_NO_THROW(Parts(output_, fingerprint_, false));
}

// Records have the right hash, but another version has written them.
TEST_F(ArtifactTest, AForeignRecordIsNoRawException) {
  for (const std::string content :
       {"", "[]", "{}", "nonsense", R"({"part": "1", "sha256": "", "layers": []})", R"({"part": 1, "sha256": 2})",
        R"({"part": 1, "sha256": "", "layers": [{}]})", R"({"part": 1, "sha256": "", "layers": [{"name": 7}]})"}) {
    write_checked_file(progress_ / "00001.json", content);
    expect_damaged(progress_ / "00001.json");
  }
}

TEST_F(ArtifactTest, FreshStartsAnewWhateverIsDamaged) {
  flip(progress_ / "run.json", 3, 1);
  fs::rename(progress_ / "00001.json", progress_ / "0000x.json");
  write_text(progress_ / ".00002.json.partial-77", "half");
  for (const fs::path& path : {progress_ / "notes.txt", progress_ / ".notes", partial_ / ".notes"}) {
    write_text(path, "somebody's");
  }
  fs::create_directories(partial_ / "artifact");
  write_text(partial_ / "artifact" / "config.json", "{}");
  {
    Parts parts(output_, fingerprint_, true);
    EXPECT_EQ(parts.num_committed(), 0);
    EXPECT_FALSE(fs::exists(parts.artifact_directory()));
  }
  EXPECT_EQ(Parts(output_, fingerprint_, false).num_committed(), 0);
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(progress_)) names.insert(entry.path().filename().string());
  EXPECT_EQ(names, (std::set<std::string>{"run.json", "notes.txt", ".notes"}));
  Parts(output_, fingerprint_, false).discard();
  names.clear();
  for (const auto& entry : fs::recursive_directory_iterator(partial_)) {
    names.insert(entry.path().lexically_relative(partial_).string());
  }
  EXPECT_EQ(names, (std::set<std::string>{".notes", "progress", "progress/notes.txt", "progress/.notes"}));
}

TEST_F(ArtifactTest, AnotherRunIsToldByWhatDiffers) {
  const auto expect_another = [&](const Fingerprint& other, const std::string& what) {
    expect_error<std::runtime_error>([&] { Parts(output_, other, false); },
                                     {"out.partial", "unfinished run with another " + what + ":", "--fresh"});
  };
  Fingerprint other = fingerprint_;
  other["model"] = "x";
  expect_another(other, "model");
  other["recipe"] = "x";
  expect_another(other, "model, recipe");
  other = fingerprint_;
  other["budget"] = "x";
  expect_another(other, "budget");
  other = fingerprint_;
  other.erase("recipe");
  expect_another(other, "recipe");
  EXPECT_EQ(Parts(output_, fingerprint_, false).num_committed(), 2);
}

TEST_F(ArtifactTest, ImportLeavesAnUnfinishedRunAlone) {
  const auto before = promised_files(folder_.path());
  const fs::path source = fs::path(kSourceFolder) / "tests" / "golden" / "gguf" / "llama_gqa_untied.gguf";
  expect_error<std::runtime_error>([&] { import_model(source, output_, {}); },
                                   {"out.partial", "unfinished 'pare run'", "remove the folder"});
  EXPECT_EQ(promised_files(folder_.path()), before);
}

// Runs the real program, once for each of several flips.
TEST_F(ArtifactTest, ResumingFromDamageIsAMessageOrTheSameBytes) {
  const auto expected = promised_files(kept_->folder / "whole");
  const std::vector<std::pair<std::string, size_t>> flips = {
      {"run.json", 1},     {"run.json", 120},    {"00001.json", 0},     {"00002.json", 99},
      {"00002.json", 200}, {"00001.json", 3000}, {"00001.json", 12000}, {"00001.safetensors", 7000}};
  for (const auto& [name, byte] : flips) {
    const fs::path file = progress_ / name;
    const size_t at = byte % fs::file_size(file);
    flip(file, at, static_cast<int>(byte % 8));
    const Outcome outcome = run_pare(kept_->with_output(output_));
    EXPECT_EQ(outcome.status, 1) << name << " byte " << at;
    EXPECT_NE(outcome.err.find("'" + file.string() + "' " + kDamaged), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.err.find("goes on"), std::string::npos) << outcome.err;
    flip(file, at, static_cast<int>(byte % 8));
  }
  fs::remove(progress_ / "00002.json");  // the run was killed in between
  const Outcome resumed = run_pare(kept_->with_output(output_));
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_EQ(promised_files(output_), expected);
  EXPECT_FALSE(fs::exists(partial_));
}

TEST_F(ArtifactTest, AFolderOfSomebodyElseStopsTheRun) {
  for (const std::string name : {".hidden", "thesis.txt"}) {
    fs::remove_all(partial_);
    fs::create_directories(partial_);
    write_text(partial_ / name, "somebody's");
    for (const bool fresh : {false, true}) {
      std::vector<std::string> words = kept_->with_output(output_);
      if (fresh) words.push_back("--fresh");
      const Outcome outcome = run_pare(words);
      EXPECT_EQ(outcome.status, 1);
      EXPECT_NE(outcome.err.find("not an unfinished output of pare (it holds '" + name + "')"), std::string::npos)
          << outcome.err;
      EXPECT_EQ(promised_files(partial_).size(), 1u);
    }
  }
}

// A golden checkpoint with small files beside its weights, and a run's parts of it.
class HuggingFace : public ArtifactTest {
 protected:
  void SetUp() override {
    ArtifactTest::SetUp();
    fs::copy(family(kFamily), model_);
    write_text(model_ / "tokenizer.json", "{\"tokens\": []}");
    fs::create_directories(model_ / "1_Pooling");
    write_text(model_ / "1_Pooling" / "config.json", "{}");
    for (const char* name : {".hidden", "pytorch_model.bin", "pare.json"}) write_text(model_ / name, "x");
  }
  std::map<std::string, std::string> hashes(const Checkpoint& source) const {
    std::map<std::string, std::string> inputs = source.file_hashes();
    for (const fs::path& path : copied_files(model_)) {
      inputs[path.lexically_relative(model_).string()] = sha256_file(path);
    }
    return inputs;
  }
  fs::path model_ = folder_ / "model", made_ = folder_ / "made";
};

TEST_F(HuggingFace, IsMadeOfPartsAndSource) {
  const Parts parts(output_, fingerprint_, false);
  const Checkpoint source = Checkpoint::open(model_);
  assemble_hugging_face(parts, source, {"lm_head"}, hashes(source), made_);
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(made_)) {
    if (entry.is_regular_file()) names.insert(entry.path().lexically_relative(made_).string());
  }
  EXPECT_EQ(names,
            (std::set<std::string>{"1_Pooling/config.json", "config.json", "model.safetensors", "tokenizer.json"}));
  EXPECT_NO_THROW(verify_hugging_face(parts, source, made_));
  EXPECT_EQ(sha256_file(made_ / "model.safetensors"), sha256_file(kept_->folder / "whole" / "model.safetensors"));

  // Flips a bit of one of the source's tensors, and a bit of one of a part's.
  const SafetensorsFile file = SafetensorsFile::open(made_ / "model.safetensors");
  for (const std::string name : {"model.norm.weight", "model.layers.1.mlp.up_proj.weight_packed"}) {
    const auto offset = static_cast<size_t>(file.tensors().at(name).data.data() - file.file().bytes().data());
    flip(made_ / "model.safetensors", offset + 5, 0);
    expect_error<std::runtime_error>([&] { verify_hugging_face(parts, source, made_); }, {"verification"});
    flip(made_ / "model.safetensors", offset + 5, 0);
  }
  EXPECT_NO_THROW(verify_hugging_face(parts, source, made_));
}

TEST_F(HuggingFace, SmallFilesMustBeWhatTheyWere) {
  const Parts parts(output_, fingerprint_, false);
  const Checkpoint source = Checkpoint::open(model_);
  const auto inputs = hashes(source);
  write_text(model_ / "appeared.json", "{}");
  assemble_hugging_face(parts, source, {"lm_head"}, inputs, made_);
  EXPECT_FALSE(fs::exists(made_ / "appeared.json")) << "it is not in the manifest";
  write_text(model_ / "tokenizer.json", "{\"tokens\": [1]}");
  expect_error<std::runtime_error>([&] { assemble_hugging_face(parts, source, {"lm_head"}, inputs, made_); },
                                   {"changed while it was read", "tokenizer.json"});
  fs::remove(model_ / "tokenizer.json");
  expect_error<std::runtime_error>([&] { assemble_hugging_face(parts, source, {"lm_head"}, inputs, made_); },
                                   {"tokenizer.json"});
}

// --- hashes and records of pruned layers ---

StoredLinear small_linear() {
  StoredLinear linear;
  linear.weight.num_out = 2;
  linear.weight.num_in = 4;
  linear.weight.bits = 4;
  linear.weight.codes_OI = {8, 1, 8, 2, 3, 8, 8, 4};
  linear.weight.scales_OG = {0.5f, 0.25f};
  return linear;
}

// A layer without a pattern has the same hash as before there were patterns, of the same text and bytes.
TEST(ContentHash, CoversPatternAndDenseValues) {
  const StoredLinear linear = small_linear();
  Sha256 expected;
  expected.update(std::as_bytes(std::span(std::string_view("2x4 bits 4 group -1 symmetric BF16 input a16 0 zero 0"))));
  expected.update(std::as_bytes(std::span(linear.weight.codes_OI)));
  expected.update(std::as_bytes(std::span(linear.weight.scales_OG)));
  expected.update(std::vector<std::byte>(2 * sizeof(float)));
  const std::string plain = content_hash(linear);
  EXPECT_EQ(plain, expected.hex());
  std::set<std::string> hashes = {plain};
  StoredLinear changed = linear;
  for (const SparsePattern pattern : {kTwoOfFour, SparsePattern{1, 4}, SparsePattern{2, 2}}) {
    changed.weight.pattern = pattern;
    EXPECT_TRUE(hashes.insert(content_hash(changed)).second);
  }
  changed = {};
  changed.weight.num_out = 1;
  changed.weight.num_in = 4;
  EXPECT_TRUE(hashes.insert(content_hash(changed)).second);
  changed.weight.pattern = kTwoOfFour;
  changed.dense_OI.resize(8);
  EXPECT_TRUE(hashes.insert(content_hash(changed)).second);
  changed.dense_dtype = DType::F16;
  EXPECT_TRUE(hashes.insert(content_hash(changed)).second);
  changed.dense_OI[3] = std::byte{0x40};
  EXPECT_TRUE(hashes.insert(content_hash(changed)).second);
}

TEST(LayerRecord, KeepsThePatternAndItsZeros) {
  LayerRecord record;
  record.name = "a";
  record.scheme = {.code = nullptr, .bits = kDenseBits};
  EXPECT_TRUE(record.is_plain());
  record.pattern = {4, 8};
  record.num_zeros = int64_t{1} << 40;
  EXPECT_TRUE(record.is_plain());  // it is dense with its zeros
  LayerRecord back = parse_record(to_json(record));
  EXPECT_EQ(back.pattern, record.pattern);
  EXPECT_EQ(back.num_zeros, record.num_zeros);
  record.scheme.pattern = kTwoOfFour;
  EXPECT_FALSE(record.is_plain());
  EXPECT_EQ(parse_record(to_json(record)).scheme, record.scheme);
}

// Parts whose layers are packed 2:4 values, packed 2:4 codes, codes that keep all weights, and dense ones with zeros.
class SparseParts : public testing::Test {
 protected:
  // The last of a block's layers stays as the source has it.
  void commit(Parts& parts) {
    const auto container = std::string(kPareSparse24);
    const std::vector<PackScheme> kinds = {
        {.code = nullptr, .bits = kDenseBits, .container = container, .pattern = kTwoOfFour},
        {.bits = 4, .group_size = 16, .container = container, .pattern = kTwoOfFour},
        {.bits = 8, .group_size = 16, .container = container},
        {.code = nullptr, .bits = kDenseBits, .container = container}};
    const ModelDescription& model = source_.description();
    for (size_t b = 0; b < model.blocks.size(); ++b) {
      std::vector<StreamedTensor> tensors;
      std::vector<LayerRecord> records;
      const BlockDescription& block = model.blocks[b];
      size_t number = 0;
      for (const LinearDescription& linear : {block.q, block.k, block.v, block.o, block.experts[0].gate}) {
        LayerRecord record;
        record.name = linear.name;
        record.num_out = linear.num_out;
        record.num_in = linear.num_in;
        record.scheme = kinds[number++ % kinds.size()];
        const StoredLinear stored = pruned(linear, record.scheme);
        if (record.is_plain()) {
          Parts::append(plain_tensor(linear), tensors);
        } else {
          record.sha256 = content_hash(stored);
          Parts::append_packed(stored, record, tensors);
          linears_[linear.name] = stored;
        }
        records.push_back(std::move(record));
      }
      parts.commit(static_cast<int64_t>(b), std::move(tensors), std::move(records));
    }
  }

  // The second and the third of every four inputs are pruned.
  std::vector<float> values_of(const LinearDescription& linear, bool is_pruned) const {
    std::vector<float> values(static_cast<size_t>(linear.num_out * linear.num_in));
    convert_to_float(DType::F32, source_.tensor(linear.name + ".weight").data, values);
    for (size_t i = 0; i < values.size() && is_pruned; ++i) {
      if (i % 4 == 1 || i % 4 == 2) values[i] = 0.0f;
    }
    return values;
  }

  OwnedTensor plain_tensor(const LinearDescription& linear) const {
    return make_tensor<float>(linear.name + ".weight", DType::F32, {linear.num_out, linear.num_in},
                              values_of(linear, true));
  }

  StoredLinear pruned(const LinearDescription& linear, const PackScheme& scheme) const {
    const std::vector<float> values = values_of(linear, !scheme.pattern.is_dense());
    StoredLinear stored;
    stored.weight.num_out = linear.num_out;
    stored.weight.num_in = linear.num_in;
    stored.weight.pattern = scheme.pattern;
    if (scheme.is_dense()) {
      stored.dense_dtype = DType::F32;
      const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
      stored.dense_OI.assign(bytes.begin(), bytes.end());
      return stored;
    }
    stored.weight.bits = scheme.bits;
    stored.weight.group_size = scheme.group_size;
    stored.weight.scales_OG.assign(values.size() / static_cast<size_t>(scheme.group_size), 0x1p-4f);
    const int zero = 1 << (scheme.bits - 1);
    for (const float value : values) {
      const int code = zero + static_cast<int>(value * 16);
      stored.weight.codes_OI.push_back(static_cast<uint8_t>(std::clamp(code, 0, 2 * zero - 1)));
    }
    return stored;
  }

  TemporaryFolder folder_{"sparse-parts"};
  fs::path output_ = folder_ / "out", made_ = folder_ / "made";
  Checkpoint source_ = Checkpoint::open(family(kFamily));
  std::map<std::string, StoredLinear> linears_;
};

TEST_F(SparseParts, AreCommittedReadBackAndVerified) {
  {
    Parts parts(output_, {{"model", "x"}}, false);
    commit(parts);
  }
  const Parts parts(output_, {{"model", "x"}}, false);  // a resumed run
  ASSERT_EQ(parts.num_committed(), 2);
  for (const int64_t part : parts.committed_parts()) {
    EXPECT_EQ(parts.read_changed(part, source_).size(), 1u);
    for (const LayerRecord& record : *parts.committed(part)) {
      if (record.is_plain()) continue;
      const StoredLinear stored = parts.read_layer(part, record);
      EXPECT_EQ(stored.dense_OI, linears_.at(record.name).dense_OI);
      EXPECT_EQ(stored.weight.codes_OI, linears_.at(record.name).weight.codes_OI);
      EXPECT_EQ(effective_weight(stored), effective_weight(linears_.at(record.name)));
    }
  }
  assemble_hugging_face(parts, source_, {"lm_head"}, {}, made_);
  EXPECT_NO_THROW(verify_hugging_face(parts, source_, made_));
  const Checkpoint written = Checkpoint::open(made_);
  const LinearDescription& q = written.description().blocks[0].q;
  EXPECT_FALSE(written.has_tensor(q.name + ".weight"));
  EXPECT_EQ(std::get<DenseWeight>(written.linear(q).weight).pattern, kTwoOfFour);
  EXPECT_FALSE(written.stored_scheme(written.description().blocks[0].o).has_value());

  // Flips a bit of a packed value, of a position (0 and 3 become 0 and 2), of a code, and of a tensor under its own
  // name.
  const SafetensorsFile file = SafetensorsFile::open(made_ / "model.safetensors");
  const std::string attention = "model.layers.1.self_attn.";
  for (const auto& [name, bit] : {std::pair<std::string, int>{attention + "q_proj.weight_values", 0},
                                  {attention + "q_proj.weight_positions", 2},
                                  {attention + "k_proj.weight_values", 4},
                                  {attention + "v_proj.weight_values", 1},
                                  {attention + "o_proj.weight", 3}}) {
    const auto offset = static_cast<size_t>(file.tensors().at(name).data.data() - file.file().bytes().data());
    flip(made_ / "model.safetensors", offset, bit);
    expect_error<std::runtime_error>([&] { verify_hugging_face(parts, source_, made_); },
                                     {"verification", name.substr(0, name.rfind('.'))});
    flip(made_ / "model.safetensors", offset, bit);
  }
  EXPECT_NO_THROW(verify_hugging_face(parts, source_, made_));
}

}  // namespace
}  // namespace pare::test
