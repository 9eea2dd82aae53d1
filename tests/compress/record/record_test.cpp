// Runs `pare record` as a user does, on the embedded model. Compares what it stores with logits of the model's own
// session in float64. Checks what h5py reads, and what kills leave.
#include "compress/record/record.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "compress/predict/predict.h"
#include "compress/record/logit_store.h"
#include "runtime/engine/generate.h"
#include "runtime/evaluate/prompts.h"
#include "runtime/files/npy.h"
#include "runtime/files/safetensors.h"
#include "runtime/tokenizer/tokenizer.h"
#include "runtime/tokenizer/tokenizer_hash.h"
#include "tests/compress/run_pare.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/runtime/engine/reference_backend.h"

namespace pare::test {
using namespace compress;
using namespace distill;
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const fs::path kModel = fs::path(kSourceFolder) / "calibration_data" / "stories260k";

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Record : public testing::Test {
 protected:
  void SetUp() override {
    // The text has some 3000 tokens.
    write_text(text_, bytes_of(fs::path(kSourceFolder) / "calibration_data" / "stories.txt").substr(0, 6000));
    write_text(prompts_, "{\"prompt\": \"Once upon a time\"}\n\n{\"prompt\": \"Lily and Tom went to the park.\"}\n" +
                             std::string("{\"prompt\": \"The cat\", \"other\": 1}\n"));
  }
  std::vector<std::string> command(const std::string& out, const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"record", kModel.string(), (folder_ / out).string()};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // Returns options for windows in several shards.
  std::vector<std::string> windows(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"--text", text_.string(),   "--tokens", "48", "--top-k",
                                      "5",      "--shard-tokens", "500"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  std::vector<std::string> continuations(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {
        "--prompts", prompts_.string(), "--samples", "3", "--max-new-tokens", "20", "--seed", "4", "--top-k",
        "5",         "--shard-tokens",  "64"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Outcome record(const std::string& out, const std::vector<std::string>& more) const {
    return run_pare(command(out, more));
  }
  LogitStore recorded(const std::string& out, const std::vector<std::string>& more) const {
    const Outcome outcome = record(out, more);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return LogitStore::open(folder_ / out);
  }
  // Returns the hash of each of a store's files, by its name without the store's.
  std::map<std::string, std::string> files_of(const std::string& out) const {
    std::map<std::string, std::string> files;
    for (const auto& [name, hash] : promised_files(folder_ / (out + ".shards"))) files["shards/" + name] = hash;
    return files;
  }

  TemporaryFolder folder_{"record"};
  fs::path text_ = folder_ / "text.txt", prompts_ = folder_ / "prompts.jsonl";
};

// Returns ln p of every token, in float64.
std::vector<double> log_probs(std::span<const float> logits, double temperature) {
  double largest = -INFINITY, sum = 0.0;
  for (const float logit : logits) largest = std::max(largest, logit / temperature);
  for (const float logit : logits) sum += std::exp(logit / temperature - largest);
  std::vector<double> logs;
  for (const float logit : logits) logs.push_back(logit / temperature - largest - std::log(sum));
  return logs;
}

// Runs the same weights on the plain reference, one token after the other. Its sums differ from those of the recording,
// in float32, so logits of about 10 differ by some 1e-5. Stored values are rounded to 11 bits.
void expect_is_what_the_model_says(const LogitStore& store) {
  const std::unique_ptr<Backend> backend = make_reference_backend();
  Transformer model = Transformer::load(Checkpoint::open(kModel), *backend);
  const auto tolerance = [](double value) { return 1e-4 + std::ldexp(std::abs(value), -11); };
  const auto num_kept = static_cast<size_t>(store.origin().num_kept);
  int num_differing = 0;
  for (int64_t s = 0; s < store.num_sequences(); s += 3) {
    const RecordedSequence sequence = store.sequence(s);
    const std::vector<int32_t>& ids = sequence.ids;
    const std::set<size_t> starts(sequence.starts.begin(), sequence.starts.end());
    const std::vector<float> labels = store.label_log_probs(s);
    const TruncatedLogits rows = store.read(s, 0, store.length(s));
    std::unique_ptr<Transformer::Session> session;  // for one document
    for (size_t t = 0; t < ids.size(); ++t) {
      if (t == 0 || starts.contains(t)) session = model.start(store.length(s));
      const std::span<const float> logits = session->feed({&ids[t], 1});
      const std::vector<double> logs = log_probs(logits, 1.0);
      const double label = t + 1 < ids.size() && !starts.contains(t + 1) ? logs[static_cast<size_t>(ids[t + 1])] : 0.0;
      EXPECT_NEAR(labels[t], label, tolerance(label));
      const int32_t* top = rows.ids_TK.const_data_ptr<int32_t>() + t * num_kept;
      const float* stored = rows.log_probs_TK.const_data_ptr<float>() + t * num_kept;
      std::vector<double> others = logs;
      for (size_t k = 0; k < num_kept; ++k) {
        const double exact = logs[static_cast<size_t>(top[k])];
        EXPECT_NEAR(stored[k], exact, tolerance(exact));
        others[static_cast<size_t>(top[k])] = -INFINITY;
        num_differing += std::abs(stored[k] - exact) > 0.0;
      }
      EXPECT_LE(*std::max_element(others.begin(), others.end()), logs[static_cast<size_t>(top[num_kept - 1])] + 1e-4);
      for (size_t n = 0; n < store.origin().temperatures.size(); ++n) {
        const std::vector<double> warm = log_probs(logits, store.origin().temperatures[n]);
        double rest = 0.0;
        for (size_t id = 0; id < warm.size(); ++id) rest += std::isinf(others[id]) ? 0.0 : std::exp(warm[id]);
        const float tail = rows.log_tails_TN.const_data_ptr<float>()[t * store.origin().temperatures.size() + n];
        EXPECT_NEAR(tail, std::log(rest), tolerance(std::log(rest)));
      }
    }
  }
  EXPECT_GT(num_differing, 0) << "nothing was compared";
}

TEST_F(Record, StoresWhatTheModelSaysOfATextsWindows) {
  const LogitStore store = recorded("out.h5", windows({"--temperatures", "1,2.5", "--windows", "25", "--seed", "3"}));
  ASSERT_EQ(store.num_sequences(), 25);
  EXPECT_EQ(store.num_tokens(), 25 * 48);
  const LogitOrigin& origin = store.origin();
  EXPECT_EQ(origin.num_vocabulary, 512);
  EXPECT_EQ(origin.num_kept, 5);
  EXPECT_EQ(origin.temperatures, (std::vector<double>{1.0, 2.5}));
  EXPECT_EQ(origin.text, "text.txt");
  EXPECT_EQ(origin.tokenizer, tokenizer_hash(kModel));
  EXPECT_EQ(Json::parse(origin.source), Json({{"kind", "windows"}, {"tokens", 48}, {"windows", 25}, {"seed", 3}}));
  // The windows are those of the whole text in order, drawn without repetition.
  const std::vector<int32_t> all = Tokenizer::open(kModel).encode(bytes_of(text_), true);
  size_t next = 0;
  for (int64_t s = 0; s < store.num_sequences(); ++s) {
    const RecordedSequence sequence = store.sequence(s);
    while (next + 48 <= all.size() && !std::equal(sequence.ids.begin(), sequence.ids.end(), all.begin() + next)) {
      next += 48;
    }
    ASSERT_LE(next + 48, all.size()) << "sequence " << s << " is no window of the text";
    next += 48;
    EXPECT_EQ(std::count(sequence.label_mask.begin(), sequence.label_mask.end(), 1), 47);
    EXPECT_EQ(sequence.label_mask.back(), 0);
  }
  expect_is_what_the_model_says(store);
}

// Each document ends with the tokenizer's end of text. It is alone before the teacher, while several share a window.
TEST_F(Record, DocumentsOfATextShareWindowsAndSeeNothingOfEachOther) {
  std::string lines;
  std::vector<int32_t> all;
  std::set<size_t> begins;
  const Tokenizer tokenizer = Tokenizer::open(kModel);
  const std::string text = bytes_of(text_);
  for (size_t first = 0, count = 30; first + count < text.size(); first += count, count = 30 + first % 211) {
    const std::string document = text.substr(first, count);
    lines += Json({{"text", document}}).dump() + "\n";
    begins.insert(all.size());
    const std::vector<int32_t> ids = tokenizer.encode(document, true);
    all.insert(all.end(), ids.begin(), ids.end());
    all.push_back(2);  // </s>
  }
  write_text(folder_ / "documents.jsonl", lines);
  const std::vector<std::string> options = {
      "--text", (folder_ / "documents.jsonl").string(), "--tokens", "48", "--top-k", "5", "--shard-tokens", "500"};
  const LogitStore store = recorded("out.h5", options);
  ASSERT_EQ(store.num_sequences(), static_cast<int64_t>(all.size()) / 48);
  size_t num_starts = 0, num_ends_learned = 0;
  for (int64_t s = 0; s < store.num_sequences(); ++s) {
    const RecordedSequence sequence = store.sequence(s);
    const size_t first = static_cast<size_t>(s) * 48;
    for (size_t t = 0; t < 48; ++t) {
      ASSERT_EQ(sequence.ids[t], all[first + t]);
      const bool begins_here = t > 0 && begins.contains(first + t);
      ASSERT_EQ(std::count(sequence.starts.begin(), sequence.starts.end(), t), begins_here ? 1 : 0);
      const bool is_last = t == 47 || begins.contains(first + t + 1);
      ASSERT_EQ(sequence.label_mask[t], is_last ? 0 : 1);
      num_starts += begins_here;
      num_ends_learned += !is_last && sequence.ids[t + 1] == 2;
    }
  }
  EXPECT_GT(num_starts, 30u);
  EXPECT_GT(num_ends_learned, 30u) << "the end of a document is a label";
  expect_is_what_the_model_says(store);

  // A student must learn from the record what it learns from the teacher itself. With all tokens recorded the losses
  // are the same, except for the 11 bits that are stored.
  std::vector<std::string> whole = options;
  whole[5] = "512";
  recorded("whole.h5", whole);
  std::vector<double> losses;
  for (const std::string& source : {"logits: " + (folder_ / "whole.h5").string(),
                                    "text: " + (folder_ / "documents.jsonl").string() + ", tokens: 48"}) {
    write_text(folder_ / "r.yaml", "model: " + kModel.string() + "\nstudent: {layers: 4}\npasses:\n  - distill: {" +
                                       source +
                                       ", loss: forward_kl, total_tokens: 2000, validation_windows: 4, precision: "
                                       "float32, validations: 1}\n");
    const std::string out = (folder_ / ("student" + std::to_string(losses.size()))).string();
    const Outcome outcome = run_pare({"run", (folder_ / "r.yaml").string(), "--out", out, "--json"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    losses.push_back(Json::parse(outcome.out).at("training").at("curve").back().at("loss"));
  }
  EXPECT_GT(losses[1], 0.05);
  EXPECT_NEAR(losses[0], losses[1], 1e-3 * losses[1]);
}

TEST_F(Record, TheEndOfADocumentMayBeNamed) {
  const LogitStore store = recorded("out.h5", windows({"--end-of-document", "<s>"}));
  write_text(folder_ / "one.jsonl", Json({{"text", bytes_of(text_).substr(0, 400)}}).dump());
  const LogitStore named = recorded("named.h5", {"--text", (folder_ / "one.jsonl").string(), "--tokens", "8", "--top-k",
                                                 "5", "--end-of-document", "<s>"});
  std::vector<int32_t> expected = Tokenizer::open(kModel).encode(bytes_of(text_).substr(0, 400), true);
  expected.push_back(1);
  const RecordedSequence last = named.sequence(named.num_sequences() - 1);
  const auto first = expected.begin() + (named.num_sequences() - 1) * 8;
  EXPECT_TRUE(std::equal(last.ids.begin(), last.ids.end(), first));
  const Outcome unknown = record("no.h5", windows({"--end-of-document", "<end>"}));
  EXPECT_EQ(unknown.status, 1);
  EXPECT_NE(unknown.err.find("'<end>', which is not a token"), std::string::npos) << unknown.err;
  const Outcome prompts = record("no.h5", continuations({"--end-of-document", "<s>"}));
  EXPECT_EQ(prompts.status, 2);
  EXPECT_NE(prompts.err.find("--end-of-document belongs to --text"), std::string::npos) << prompts.err;
  write_npy(folder_ / "ids.npy", TokenWindows{1, 4, {1, 2, 3, 4}});
  const Outcome taken = record("no.h5", {"--text", (folder_ / "ids.npy").string(), "--end-of-document", "<s>"});
  EXPECT_EQ(taken.status, 1);
  EXPECT_NE(taken.err.find("used as they are"), std::string::npos) << taken.err;
}

// Returns the model with more rows in its table than tokens. They have large values, as untrained rows may.
fs::path padded_model(const fs::path& folder, int64_t num_rows, float factor = -3.0f) {
  fs::copy(kModel, folder);
  const SafetensorsFile source = SafetensorsFile::open(kModel / "model.safetensors");
  std::vector<std::byte> table;
  std::vector<NamedTensor> tensors;
  for (const auto& [name, tensor] : source.tensors()) {
    tensors.push_back({name, tensor.dtype, tensor.shape, tensor.data});
    if (name != "model.embed_tokens.weight") continue;
    std::vector<float> rows(static_cast<size_t>(tensor.shape[0] * tensor.shape[1]));
    convert_to_float(tensor.dtype, tensor.data, rows);
    const auto num_padding = static_cast<size_t>(num_rows * tensor.shape[1]);
    for (size_t i = 0; i < num_padding; ++i) rows.push_back(factor * rows[i]);
    table.resize(tensor.data.size() / static_cast<size_t>(tensor.shape[0]) *
                 static_cast<size_t>(tensor.shape[0] + num_rows));
    convert_from_float(tensor.dtype, rows, table);
    tensors.back().shape[0] += num_rows;
    tensors.back().data = table;
  }
  fs::remove(folder / "model.safetensors");
  write_safetensors(folder / "model.safetensors", tensors);
  Json config = Json::parse(bytes_of(kModel / "config.json"));
  config["vocab_size"] = 512 + num_rows;
  write_text(folder / "config.json", config.dump());
  return folder;
}

TEST_F(Record, PaddingOfATeachersTableIsLeftOut) {
  const std::string model = padded_model(folder_ / "padded", 32).string();
  const Outcome outcome = run_pare({"record", model, (folder_ / "out.h5").string(), "--text", text_.string(),
                                    "--tokens", "48", "--top-k", "5", "--windows", "25", "--seed", "3"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  {
    const LogitStore store = LogitStore::open(folder_ / "out.h5");
    EXPECT_EQ(store.origin().num_vocabulary, 512);
    expect_is_what_the_model_says(store);
  }
  // A student with another table learns from the record.
  write_text(folder_ / "r.yaml", "model: " + kModel.string() +
                                     "\npasses:\n  - distill: {logits: " + (folder_ / "out.h5").string() +
                                     ", loss: forward_kl, total_tokens: 500, validation_windows: 2, validations: 1}\n");
  const Outcome trained = run_pare({"run", (folder_ / "r.yaml").string(), "--out", (folder_ / "student").string()});
  EXPECT_EQ(trained.status, 0) << trained.err;
  // Ids of padding are in no text.
  write_npy(folder_ / "ids.npy", TokenWindows{2, 4, {1, 2, 3, 4, 5, 6, 7, 512}});
  const Outcome refused =
      run_pare({"record", model, (folder_ / "no.h5").string(), "--text", (folder_ / "ids.npy").string()});
  EXPECT_EQ(refused.status, 1);
  EXPECT_NE(refused.err.find("512 (window 1, position 3) is outside"), std::string::npos) << refused.err;
}

// Damage is found even where it affects no token: the rows after the tokens overflow.
TEST_F(Record, LogitsThatAreNotFiniteAreNotStored) {
  const std::string model = padded_model(folder_ / "loud", 2, 2e38f).string();
  const Outcome outcome = run_pare(
      {"record", model, (folder_ / "out.h5").string(), "--text", text_.string(), "--tokens", "48", "--windows", "4"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("sequence 0, position "), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("a logit is not finite"), std::string::npos) << outcome.err;
  EXPECT_FALSE(fs::exists(folder_ / "out.h5"));
}

// The work has the model's products, and sums over all logits: one, and two for each temperature.
TEST_F(Record, PredictsWorkOnAllLogits) {
  const Checkpoint checkpoint = Checkpoint::open(kModel);
  const auto seconds = [&](int64_t num_tokens, int64_t num_temperatures) {
    const RecordingExtent extent{
        .num_tokens = num_tokens, .longest_sequence = 48, .num_temperatures = num_temperatures};
    const Prediction prediction = predict_recording(checkpoint, extent, /*base_bytes=*/0, /*matmul_rate=*/1e9);
    EXPECT_EQ(prediction.stages.at(0).name, "record");
    return prediction.stages.at(0).seconds;
  };
  const double sum = (seconds(1000, 2) - seconds(1000, 1)) / 2.0, products = seconds(1000, 1) - 3.0 * sum;
  EXPECT_GT(sum, 0.0);
  EXPECT_GT(products, 1000 * 2 * 200e3 / 1e9);  // most of the model's 260,000 weights
  EXPECT_NEAR(seconds(1000, 5), products + 11.0 * sum, 1e-9);
  EXPECT_NEAR(seconds(3000, 2), 3.0 * seconds(1000, 2), 1e-9);
}

// Every drawn token costs its share of one reading of the weights, and the products of a recorded token. Every lane
// holds its own keys and values.
TEST_F(Record, PredictsTextsThatAreDrawnTogether) {
  const Checkpoint checkpoint = Checkpoint::open(kModel);
  const auto sampling = [&](int64_t num_lanes) {
    const RecordingExtent extent{.num_tokens = 1000,
                                 .num_sampled_tokens = 1000,
                                 .num_lanes = num_lanes,
                                 .longest_sequence = 48,
                                 .num_temperatures = 0};
    const Prediction prediction = predict_recording(checkpoint, extent, /*base_bytes=*/0, /*matmul_rate=*/1e9);
    EXPECT_EQ(prediction.stages.at(0).name, "sample");
    return prediction.stages.at(0);
  };
  const double reading = (sampling(1).seconds - sampling(2).seconds) * 2.0, products = sampling(1).seconds - reading;
  EXPECT_NEAR(reading, 1000.0 * 4.0 * 260032.0 / 1e10, 1e-9);  // float32
  EXPECT_GT(products, 1000 * 2 * 200e3 / 1e9);
  EXPECT_NEAR(sampling(16).seconds, reading / 16.0 + products, 1e-9);
  EXPECT_EQ(sampling(3).memory_bytes - sampling(1).memory_bytes,
            2 * (sampling(2).memory_bytes - sampling(1).memory_bytes));
  EXPECT_GE(sampling(2).memory_bytes - sampling(1).memory_bytes, 48 * 1280 + 512 * 8);
}

TEST_F(Record, StoresTheTeachersOwnContinuationsOfPrompts) {
  const LogitStore store = recorded("out.h5", continuations());
  ASSERT_EQ(store.num_sequences(), 9);
  const Tokenizer tokenizer = Tokenizer::open(kModel);
  const std::vector<std::string> prompts = read_prompts(prompts_, {}).texts;
  ASSERT_EQ(prompts.size(), 3u);
  std::set<std::vector<int32_t>> different;
  for (int64_t s = 0; s < 9; ++s) {
    const std::vector<int32_t> prompt = tokenizer.encode(prompts[static_cast<size_t>(s / 3)], true);
    const RecordedSequence sequence = store.sequence(s);
    ASSERT_GT(sequence.ids.size(), prompt.size());
    ASSERT_LE(sequence.ids.size(), prompt.size() + 20);
    EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), sequence.ids.begin()));
    for (size_t t = 0; t < sequence.ids.size(); ++t) {
      EXPECT_EQ(sequence.label_mask[t], t + 1 >= prompt.size() && t + 1 < sequence.ids.size());
    }
    different.insert(sequence.ids);
  }
  EXPECT_GE(different.size(), 8u) << "samples of one prompt are drawn independently";
  expect_is_what_the_model_says(store);
  EXPECT_NE(recorded("seed.h5", continuations({"--seed", "5"})).sequence(0).ids, store.sequence(0).ids);

  // With temperature 0 it must be the output of pare generate.
  const LogitStore greedy = recorded("greedy.h5", continuations({"--temperature", "0"}));
  for (const int64_t s : {0, 4, 8}) {
    const Outcome said = run_pare(
        {"generate", kModel.string(), "--prompt", prompts[static_cast<size_t>(s / 3)], "--max-tokens", "20", "--json"});
    std::vector<int32_t> expected = tokenizer.encode(prompts[static_cast<size_t>(s / 3)], true);
    const Json generation = Json::parse(said.out);
    for (const int32_t id : generation.at("ids")) expected.push_back(id);
    EXPECT_EQ(greedy.sequence(s).ids, expected);
  }
}

// The embedded model was never shown its end token. Here a full stop is the end token.
TEST_F(Record, AContinuationEndsWithTheEndToken) {
  const int32_t stop = Tokenizer::open(kModel).encode("day.", false).back();
  fs::copy(kModel, folder_ / "model");
  Json config = Json::parse(bytes_of(kModel / "config.json"));
  config["eos_token_id"] = stop;
  write_text(folder_ / "model" / "config.json", config.dump());
  const Outcome outcome = run_pare({"record", (folder_ / "model").string(), (folder_ / "out.h5").string(), "--prompts",
                                    prompts_.string(), "--max-new-tokens", "100", "--temperature", "0"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const LogitStore store = LogitStore::open(folder_ / "out.h5");
  const RecordedSequence sequence = store.sequence(0);
  const size_t num_prompt = Tokenizer::open(kModel).encode("Once upon a time", true).size();
  ASSERT_GT(sequence.ids.size(), num_prompt);
  ASSERT_LT(sequence.ids.size(), num_prompt + 100);
  EXPECT_EQ(std::find(sequence.ids.begin() + static_cast<int64_t>(num_prompt), sequence.ids.end(), stop),
            sequence.ids.end() - 1);
  EXPECT_EQ(sequence.label_mask[sequence.ids.size() - 2], 1);
}

TEST_F(Record, H5pyReadsTheWholeArrays) {
  const char* python = std::getenv("PARE_PYTHON");
  ASSERT_NE(python, nullptr) << "PARE_PYTHON is not set: it must name a Python with h5py (make test sets it up)";
  const Outcome outcome = record("out.h5", windows());
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  // Paths are relative, so the pair can be read where it is moved to, from any folder.
  fs::create_directories(folder_ / "moved");
  fs::rename(folder_ / "out.h5", folder_ / "moved" / "out.h5");
  fs::rename(folder_ / "out.h5.shards", folder_ / "moved" / "out.h5.shards");
  const LogitStore store = LogitStore::open(folder_ / "moved" / "out.h5");
  ASSERT_GE(fs::exists(folder_ / "moved" / "out.h5.shards" / "00002.h5"), true) << "several shards";
  write_text(folder_ / "read.py", R"(
import json, sys
import h5py
with h5py.File(sys.argv[1]) as store:
    found = {name: store[name][...].tolist() for name in store}
    found["types"] = {name: str(store[name].dtype) for name in store}
    found["tokenizer"] = store.attrs["tokenizer"].decode()
    found["top_k"] = int(store.attrs["top_k"])
json.dump(found, open(sys.argv[2], "w"))
)");
  const std::string line = std::string("cd / && '") + python + "' '" + (folder_ / "read.py").string() + "' '" +
                           (folder_ / "moved" / "out.h5").string() + "' '" + (folder_ / "found.json").string() + "'";
  ASSERT_EQ(std::system(line.c_str()), 0) << line;
  const Json found = Json::parse(bytes_of(folder_ / "found.json"));
  EXPECT_EQ(found.at("types"), Json({{"lengths", "uint32"},
                                     {"token_ids", "uint16"},
                                     {"label_mask", "uint8"},
                                     {"label_log_probs", "float16"},
                                     {"top_ids", "uint16"},
                                     {"top_log_probs", "float16"},
                                     {"log_tails", "float16"},
                                     {"starts", "uint8"},
                                     {"temperatures", "float64"},
                                     {"shard_sequences", "uint64"},
                                     {"shard_tokens", "uint64"},
                                     {"shard_sha256", "uint8"}}));
  EXPECT_EQ(found.at("tokenizer"), store.origin().tokenizer);
  EXPECT_EQ(found.at("top_k"), 5);
  EXPECT_EQ(found.at("temperatures"), Json({1.0, 2.0}));
  ASSERT_EQ(static_cast<int64_t>(found.at("lengths").size()), store.num_sequences());
  ASSERT_EQ(static_cast<int64_t>(found.at("top_ids").size()), store.num_tokens());
  size_t row = 0;
  for (int64_t s = 0; s < store.num_sequences(); ++s) {
    const RecordedSequence sequence = store.sequence(s);
    const std::vector<float> labels = store.label_log_probs(s);
    const TruncatedLogits rows = store.read(s, 0, store.length(s));
    EXPECT_EQ(found.at("lengths")[static_cast<size_t>(s)], store.length(s));
    for (size_t t = 0; t < sequence.ids.size(); ++t, ++row) {
      ASSERT_EQ(found.at("token_ids")[row], sequence.ids[t]);
      ASSERT_EQ(found.at("label_mask")[row], sequence.label_mask[t]);
      ASSERT_EQ(found.at("starts")[row], t == 0 ? 1 : 0) << "the text is one document";
      ASSERT_EQ(found.at("label_log_probs")[row], labels[t]);
      for (size_t k = 0; k < 5; ++k) {
        ASSERT_EQ(found.at("top_ids")[row][k], rows.ids_TK.const_data_ptr<int32_t>()[t * 5 + k]);
        ASSERT_EQ(found.at("top_log_probs")[row][k], rows.log_probs_TK.const_data_ptr<float>()[t * 5 + k]);
      }
      for (size_t n = 0; n < 2; ++n) {
        ASSERT_EQ(found.at("log_tails")[row][n], rows.log_tails_TN.const_data_ptr<float>()[t * 2 + n]);
      }
    }
  }
}

TEST_F(Record, BytesDoNotDependOnThreads) {
  for (const std::vector<std::string>& source : {windows(), continuations()}) {
    auto one = source, two = source;
    one.insert(one.end(), {"--threads", "1"});
    two.insert(two.end(), {"--threads", "2"});
    const LogitStore first = recorded("same.h5", one);
    const auto files = files_of("same.h5");
    const std::string hash = first.hash();
    fs::remove(folder_ / "same.h5");
    fs::remove_all(folder_ / "same.h5.shards");
    EXPECT_EQ(recorded("same.h5", two).hash(), hash);
    EXPECT_EQ(files_of("same.h5"), files);
    fs::remove(folder_ / "same.h5");
    fs::remove_all(folder_ / "same.h5.shards");
  }
}

// SIGKILL comes before renames: that of the second shard, of the last one, of the master, and those that give both
// their final names. It also comes while the run tidies up. The same command must go on and leave the same bytes and
// nothing else.
TEST_F(Record, AKilledRunGoesOnAndEndsWithTheSameBytes) {
  for (const std::vector<std::string>& source : {windows({"--windows", "32"}), continuations()}) {
    const bool is_text = source.front() == "--text";
    std::vector<std::string> quiet = source;  // lines of progress depend on the clock, and count as calls
    quiet.push_back("--quiet");
    fs::create_directories(folder_ / "whole");
    const TracedOutcome whole = run_pare_traced(command("whole/s.h5", quiet), -1);
    ASSERT_EQ(whole.outcome.status, 0) << whole.outcome.err;
    const auto expected = promised_files(folder_ / "whole");
    ASSERT_GE(expected.size(), 4u) << "several shards";
    std::vector<int> moments;  // renames of the plan, shards, the master, the folder of shards, and the master's name
    for (int call = 0; call < whole.num_calls; ++call) {
      if (whole.names[static_cast<size_t>(call)].starts_with("rename")) moments.push_back(call);
    }
    ASSERT_EQ(moments.size(), 1 + (expected.size() - 1) + 3);
    moments.push_back(moments.back() + 1);
    moments.push_back(whole.num_calls - 2);
    moments.erase(moments.begin() + 3, moments.end() - 6);
    moments.erase(moments.begin());
    if (!is_text) moments = {moments[1], moments.back() - 2};
    int num_kills = 0, num_resumed = 0;
    for (const int moment : moments) {
      fs::remove_all(folder_ / "killed");
      fs::create_directories(folder_ / "killed");
      num_kills += run_pare_traced(command("killed/s.h5", quiet), moment).outcome.status == 128 + SIGKILL;
      const bool was_complete = fs::exists(folder_ / "killed" / "s.h5");
      const Outcome again = record("killed/s.h5", source);
      ASSERT_EQ(again.status, was_complete ? 1 : 0) << "after a kill at call " << moment << ": " << again.err;
      num_resumed += again.err.find("continuing after") != std::string::npos;
      EXPECT_EQ(again.err.find("exists") != std::string::npos, was_complete) << again.err;
      ASSERT_EQ(promised_files(folder_ / "killed"), expected) << "after a kill at call " << moment;
    }
    EXPECT_EQ(num_kills, static_cast<int>(moments.size()));
    EXPECT_GE(num_resumed, is_text ? 4 : 1);
    fs::remove_all(folder_ / "whole");
  }
}

TEST_F(Record, ARunGoesOnWithItsOwnRecordingAlone) {
  const TracedOutcome whole = run_pare_traced(command("whole.h5", windows({"--quiet"})), -1);
  ASSERT_EQ(whole.outcome.status, 0) << whole.outcome.err;
  // This is after the second shard's rename.
  int moment = 0, num_renames = 0;
  for (; num_renames < 3; ++moment) {
    num_renames += whole.names[static_cast<size_t>(moment)].starts_with("rename");
  }
  ASSERT_EQ(run_pare_traced(command("out.h5", windows({"--quiet"})), moment + 1).outcome.status, 128 + SIGKILL);
  ASSERT_TRUE(fs::exists(folder_ / "out.h5.partial" / "shards" / "00000.h5"));
  const auto expect_refused = [&](const std::vector<std::string>& arguments, const std::vector<std::string>& words) {
    const auto before = promised_files(folder_ / "out.h5.partial");
    const Outcome refused = run_pare(arguments);
    EXPECT_EQ(refused.status, 1);
    for (const std::string& word : words) EXPECT_NE(refused.err.find(word), std::string::npos) << refused.err;
    EXPECT_EQ(promised_files(folder_ / "out.h5.partial"), before);
    EXPECT_FALSE(fs::exists(folder_ / "out.h5"));
  };
  expect_refused(command("out.h5", windows({"--top-k", "6"})), {"top_k is 5 there and 6 here", "--fresh"});
  expect_refused(command("out.h5", windows({"--temperatures", "1"})),
                 {"temperatures is [1.0,2.0] there and [1.0] here"});
  expect_refused(command("out.h5", windows({"--tokens", "40"})), {"tokens is 48 there and 40 here"});
  expect_refused(command("out.h5", windows({"--shard-tokens", "600"})), {"--shard-tokens"});
  expect_refused(command("out.h5", continuations()), {"kind is \"windows\" there and \"continuations\" here"});
  const std::string text = bytes_of(text_);
  write_text(text_, "X" + text);
  expect_refused(command("out.h5", windows()), {"data is \""});
  write_text(text_, text);
  fs::copy(kModel, folder_ / "model");
  std::string config = bytes_of(folder_ / "model" / "config.json");
  write_text(folder_ / "model" / "config.json", config + "\n");
  std::vector<std::string> other = command("out.h5", windows());
  other[1] = (folder_ / "model").string();
  expect_refused(other, {"model is \""});

  const fs::path shard = folder_ / "out.h5.partial" / "shards" / "00000.h5";
  std::string bytes = bytes_of(shard);
  bytes[bytes.size() / 2] ^= 1;
  write_text(shard, bytes);
  expect_refused(command("out.h5", windows()), {"00000.h5", "truncated or damaged"});
  const Outcome fresh = record("out.h5", windows({"--fresh"}));
  ASSERT_EQ(fresh.status, 0) << fresh.err;
  EXPECT_EQ(files_of("out.h5"), files_of("whole.h5"));
  EXPECT_FALSE(fs::exists(folder_ / "out.h5.partial"));
}

// Where addresses are limited, other texts go together, which would be other last bits.
TEST_F(Record, ContinuationsGoOnAsTheyBegan) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  if (before.rlim_cur != RLIM_INFINITY) GTEST_SKIP() << "there is a limit already";
  std::vector<std::string> quiet = continuations();
  quiet.push_back("--quiet");
  const TracedOutcome whole = run_pare_traced(command("whole.h5", quiet), -1);
  ASSERT_EQ(whole.outcome.status, 0) << whole.outcome.err;
  int moment = 0;
  for (int num_renames = 0; num_renames < 2; ++moment) {  // of the plan and the first shard
    num_renames += whole.names[static_cast<size_t>(moment)].starts_with("rename");
  }
  ASSERT_EQ(run_pare_traced(command("out.h5", quiet), moment + 1).outcome.status, 128 + SIGKILL);
  rlimit limit = before;
  limit.rlim_cur = rlim_t{1} << 46;
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  const Outcome refused = record("out.h5", continuations());
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(refused.status, 1);
  EXPECT_NE(refused.err.find("keys_and_values is \"in pages\" there and \"in whole lanes\" here"), std::string::npos)
      << refused.err;
  ASSERT_EQ(record("out.h5", continuations()).status, 0);
  EXPECT_EQ(files_of("out.h5"), files_of("whole.h5"));
}

// OUT.shards was made by a run that was killed between its last two renames, if it holds what the master in OUT.partial
// names. Then it is taken back. Anything else there stays, whatever a killed run has left.
TEST_F(Record, OnlyItsOwnShardsAreTakenBack) {
  const TracedOutcome whole = run_pare_traced(command("whole.h5", windows({"--quiet"})), -1);
  ASSERT_EQ(whole.outcome.status, 0) << whole.outcome.err;
  std::vector<int> renames;
  for (int call = 0; call < whole.num_calls; ++call) {
    if (whole.names[static_cast<size_t>(call)].starts_with("rename")) renames.push_back(call);
  }
  const fs::path shards = folder_ / "out.h5.shards", partial = folder_ / "out.h5.partial";
  const auto kill_at = [&](int call) {
    fs::remove_all(partial);
    ASSERT_EQ(run_pare_traced(command("out.h5", windows({"--quiet"})), call).outcome.status, 128 + SIGKILL);
  };
  const auto expect_stays = [&] {
    const auto before = promised_files(shards);
    for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{{}, {"--dry-run"}, {"--fresh"}}) {
      const Outcome refused = record("out.h5", windows(more));
      EXPECT_EQ(refused.status,
                more == std::vector<std::string>{"--dry-run"} && fs::exists(partial / "artifact") ? 0 : 1);
      if (refused.status != 0) {
        EXPECT_NE(refused.err.find("out.h5.shards' exists"), std::string::npos) << refused.err;
      }
      EXPECT_EQ(promised_files(shards), before);
      EXPECT_TRUE(fs::exists(partial / "record.json"));
    }
  };
  // The run was killed inside discard(), which removes shards first. The folder belongs to somebody else.
  kill_at(renames[3]);
  fs::remove_all(partial / "shards");
  fs::create_directories(shards);
  write_text(shards / "00000.h5", "years of work");
  expect_stays();
  // It is the same where a master is there as well.
  const fs::path own = folder_ / "own";
  fs::remove_all(shards);
  kill_at(renames.back());
  ASSERT_TRUE(fs::exists(partial / "artifact") && !fs::exists(partial / "shards"));
  fs::rename(shards, own);
  fs::create_directories(shards);
  write_text(shards / "00000.h5", "years of work");
  expect_stays();
  // These are its own shards with one file more, and then its own shards seen through a link.
  fs::remove_all(shards);
  fs::copy(own, shards);
  write_text(shards / "notes.txt", "years of work");
  expect_stays();
  fs::remove_all(shards);
  fs::create_directory_symlink(own, shards);
  expect_stays();
  fs::remove(shards);
  // These are its own shards. They are taken back, even by a run that discards them and has other options.
  fs::copy(own, shards);
  const Outcome again = record("out.h5", windows());
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(files_of("out.h5"), files_of("whole.h5"));
  fs::remove(folder_ / "out.h5");
  fs::remove_all(shards);
  kill_at(renames.back());
  const Outcome other = record("out.h5", windows({"--fresh", "--top-k", "6"}));
  ASSERT_EQ(other.status, 0) << other.err;
  EXPECT_NE(files_of("out.h5"), files_of("whole.h5"));
  EXPECT_FALSE(fs::exists(partial));
}

TEST_F(Record, RefusesBadInputBeforeAnyWork) {
  const auto expect_refused = [&](const std::vector<std::string>& options, int status,
                                  const std::vector<std::string>& words) {
    const Outcome refused = record("out.h5", options);
    EXPECT_EQ(refused.status, status) << refused.err;
    for (const std::string& word : words) EXPECT_NE(refused.err.find(word), std::string::npos) << refused.err;
    EXPECT_FALSE(fs::exists(folder_ / "out.h5"));
    EXPECT_FALSE(fs::exists(folder_ / "out.h5.partial"));
  };
  const std::string text = text_.string(), prompts = prompts_.string();
  expect_refused({}, 2, {"missing option: expected one of --text FILE and --prompts FILE"});
  expect_refused({"--text", text, "--prompts", prompts}, 2, {"give one of them"});
  expect_refused({"--text", text, "--samples", "2"}, 2, {"--samples belongs to --prompts"});
  expect_refused({"--prompts", prompts, "--windows", "2"}, 2, {"--windows belongs to --text"});
  expect_refused({"--text", text, "--temperatures", "1,,2"}, 2, {"positive numbers", "'1,,2'"});
  expect_refused({"--text", text, "--temperatures", "0"}, 2, {"positive numbers"});
  expect_refused({"--text", text, "--temperatures", "2,2"}, 1, {"lists 2.0 twice"});
  expect_refused({"--text", text, "--tokens", "48", "--top-k", "513"}, 1, {"--top-k 513", "512"});
  expect_refused({"--text", text, "--tokens", "48", "--windows", "5000"}, 1, {"5000 windows were asked for"});
  expect_refused({"--text", text, "--tokens", "1000"}, 1, {"the model's context is 512"});
  expect_refused({"--prompts", prompts, "--max-new-tokens", "600"}, 1,
                 {"none of its 3 prompts", "600", "context of 512"});
  expect_refused({"--prompts", prompts, "--samples", "1000000000", "--max-new-tokens", "450"}, 1,
                 {"3 prompts", "1000000000 times", "lower --samples"});
  expect_refused({"--prompts", prompts, "--samples", "10000000", "--shard-tokens", "64"}, 1,
                 {"--shard-tokens 64", "shards"});
  expect_refused({"--prompts", text}, 1, {"expected prompts in a .jsonl"});
  fs::create_directories(folder_ / "out.h5.shards");
  expect_refused({"--text", text, "--tokens", "48"}, 1, {"out.h5.shards' exists"});
  fs::remove(folder_ / "out.h5.shards");
  const Outcome dry = record("out.h5", windows({"--dry-run", "--json"}));
  EXPECT_EQ(dry.status, 0) << dry.err;
  EXPECT_EQ(Json::parse(dry.out).at("bytes_per_token"), 2 + 1 + 2 + 5 * 4 + 4 + 1);
  EXPECT_FALSE(fs::exists(folder_ / "out.h5.partial"));
  write_text(folder_ / "there.h5", "mine");
  const Outcome there = record("there.h5", windows());
  EXPECT_EQ(there.status, 1);
  EXPECT_NE(there.err.find("there.h5' exists"), std::string::npos) << there.err;
  EXPECT_EQ(bytes_of(folder_ / "there.h5"), "mine");
}

// A dry run calculates the result of many samples instead of counting.
TEST_F(Record, ADryRunOfManySamplesIsSoonDone) {
  const auto dry = [&](const std::string& samples, const std::string& shard_tokens) {
    const Outcome outcome = record("out.h5", {"--prompts", prompts_.string(), "--samples", samples, "--max-new-tokens",
                                              "20", "--shard-tokens", shard_tokens, "--dry-run", "--json"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return Json::parse(outcome.out);
  };
  EXPECT_EQ(dry("1000000000", "1000000000").at("sequences"), 3'000'000'000);
  // Shards must be cut where they were when sequences were counted one by one.
  const Tokenizer tokenizer = Tokenizer::open(kModel);
  for (const int64_t shard_tokens : {1, 64, 97, 1000}) {
    int64_t num_shards = 0, num_tokens = 0;
    for (const std::string& prompt : read_prompts(prompts_, {}).texts) {
      const auto length = static_cast<int64_t>(tokenizer.encode(prompt, true).size()) + 20;
      for (int sample = 0; sample < 7; ++sample) {
        if (num_shards == 0 || num_tokens + length > shard_tokens) {
          ++num_shards;
          num_tokens = 0;
        }
        num_tokens += length;
      }
    }
    EXPECT_EQ(dry("7", std::to_string(shard_tokens)).at("shards"), num_shards) << shard_tokens;
  }
}

TEST_F(Record, OptionsThatNothingCanBeDrawnWithAreRefusedBeforeAnyWork) {
  const Outcome outcome = record("out.h5", continuations({"--repetition-penalty", "1e-50"}));
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("repetition penalty"), std::string::npos) << outcome.err;
  EXPECT_FALSE(fs::exists(folder_ / "out.h5.partial"));
}

// A penalty and min_p are recorded as what they are, and give the texts of pare generate.
TEST_F(Record, PenalizesAndCutsWhatItDraws) {
  const LogitStore plain = recorded("plain.h5", continuations({"--temperature", "0"}));
  const LogitStore store =
      recorded("out.h5", continuations({"--temperature", "0", "--repetition-penalty", "8", "--min-p", "0.25"}));
  const Json source = Json::parse(store.origin().source);
  EXPECT_EQ(source.at("repetition_penalty"), 8.0);
  EXPECT_EQ(source.at("min_p"), 0.25);
  EXPECT_FALSE(Json::parse(plain.origin().source).contains("min_p"));
  EXPECT_FALSE(Json::parse(plain.origin().source).contains("repetition_penalty"));
  const std::string prompt = read_prompts(prompts_, {}).texts[0];
  const size_t num_prompt = Tokenizer::open(kModel).encode(prompt, true).size();
  const Outcome generated =
      run_pare({"generate", kModel, "--prompt", prompt, "--max-tokens", "20", "--repetition-penalty", "8", "--json"});
  ASSERT_EQ(generated.status, 0) << generated.err;
  const std::vector<int32_t> ids = store.sequence(0).ids;
  const auto expected = Json::parse(generated.out).at("ids").get<std::vector<int32_t>>();
  ASSERT_GE(ids.size(), num_prompt + expected.size());
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), ids.begin() + static_cast<int64_t>(num_prompt)));
  EXPECT_NE(plain.sequence(0).ids, ids);
  // At the probability of the first token nothing but it is left.
  EXPECT_EQ(recorded("one.h5", continuations({"--min-p", "1"})).sequence(0).ids, plain.sequence(0).ids);
}

TEST_F(Record, PromptsBeyondTheContextAreLeftOutAndCounted) {
  std::string long_prompt;
  for (int i = 0; i < 600; ++i) long_prompt += " cat";
  write_text(prompts_, "{\"prompt\": \"Once\"}\n{\"prompt\": \"" + long_prompt + "\"}\n{\"prompt\": \"The cat\"}\n");
  const std::vector<std::string> options = {"--prompts", prompts_.string(), "--samples", "2",     "--max-new-tokens",
                                            "8",         "--top-k",         "4",         "--json"};
  const Outcome outcome = record("out.h5", options);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("event: 1 of 3 prompts are left out"), std::string::npos) << outcome.err;
  EXPECT_EQ(Json::parse(outcome.out).at("prompts_left_out"), 1);
  // Both a reader of the results alone and a reader of the plan must be told.
  std::vector<std::string> dry = options, quiet = options;
  dry.push_back("--dry-run");
  quiet.back() = "--quiet";
  for (const Json& json : {Json::parse(outcome.out), Json::parse(record("dry.h5", dry).out)}) {
    EXPECT_TRUE(json.at("events").at(0).get<std::string>().starts_with("1 of 3 prompts are left out")) << json;
  }
  const Outcome silent = record("quiet.h5", quiet);
  EXPECT_NE(silent.out.find("event: 1 of 3 prompts are left out"), std::string::npos) << silent.out;
  EXPECT_EQ(silent.err, "");
  const LogitStore store = LogitStore::open(folder_ / "out.h5");
  EXPECT_EQ(store.num_sequences(), 4);
  EXPECT_EQ(Json::parse(store.origin().source).at("prompts_left_out"), 1);
}

TEST_F(Record, ReadsPromptsAndInstructions) {
  write_text(folder_ / "i.json", R"([{"instruction": "Add.", "input": "1 2", "output": "3"}, {"instruction": "Go."}])");
  const std::vector<std::string> prompts = read_prompts(folder_ / "i.json", {}).texts;
  // These are Stanford Alpaca's two prompts, with which answers are scored as well.
  EXPECT_EQ(prompts, (std::vector<std::string>{
                         "Below is an instruction that describes a task, paired with an input that provides further "
                         "context. Write a response that appropriately completes the request.\n\n### Instruction:\n"
                         "Add.\n\n### Input:\n1 2\n\n### Response:\n",
                         "Below is an instruction that describes a task. Write a response that appropriately completes "
                         "the request.\n\n### Instruction:\nGo.\n\n### Response:\n"}));
  const auto expect_refused = [&](const std::string& name, const std::string& content,
                                  std::initializer_list<std::string> words) {
    write_text(folder_ / name, content);
    expect_error<std::runtime_error>([&] { read_prompts(folder_ / name, {}); }, words);
  };
  expect_refused("p.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": 3}\n", {"p.jsonl:2", "'prompt'", "found number"});
  expect_refused("p.jsonl", "{\"text\": \"a\"}\n", {"p.jsonl:1", "'prompt'", "no such field"});
  expect_refused("p.jsonl", "{\"prompt\": \n", {"p.jsonl:1", "not valid JSON"});
  expect_refused("p.jsonl", "\n \n", {"p.jsonl", "no prompts"});
  expect_refused("p.json", "{}", {"p.json", "expected an array", "found object"});
  expect_refused("p.json", "[{\"instruction\": \"a\"}, 3]", {"item 1", "expected an object"});
  expect_refused("p.json", "[{\"instruction\": \"a\", \"input\": 3}]", {"item 0", "'input'", "found number"});
  expect_refused("p.json", "[{\"instruction\": \"\"}]", {"item 0", "instruction is empty"});
}

TEST(TokenizerHash, IsOfWhatIdsMeanAndNotOfTheFile) {
  const TemporaryFolder folder("tokenizer-hash");
  const auto hash = [&](const std::string& text) {
    write_text(folder / "tokenizer.json", text);
    return tokenizer_hash(folder.path());
  };
  const std::string base = hash(R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
                                    "added_tokens": [{"id": 3, "content": "<s>", "special": true}]})");
  EXPECT_EQ(base, hash(R"({"normalizer": null, "added_tokens": [{"content": "<s>", "id": 3}],
                           "model": {"merges": [["a", "b"]], "type": "BPE", "vocab": {"ab": 2, "b": 1, "a": 0}}})"));
  EXPECT_NE(base, hash(R"({"model": {"type": "BPE", "vocab": {"a": 1, "b": 0, "ab": 2}, "merges": ["a b"]},
                           "added_tokens": [{"id": 3, "content": "<s>"}]})"));
  EXPECT_NE(base, hash(R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": []},
                           "added_tokens": [{"id": 3, "content": "<s>"}]})"));
  EXPECT_NE(base, hash(R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})"));
  for (const char* text : {"", "[]", "{}", R"({"model": 3})", R"({"model": {"vocab": {}, "merges": ["ab"]}})",
                           R"({"model": {"vocab": {}}, "added_tokens": [3]})"}) {
    expect_error<std::runtime_error>([&] { hash(text); }, {"tokenizer.json", "expected"});
  }
}

}  // namespace
}  // namespace pare::test
