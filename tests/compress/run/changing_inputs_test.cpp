// Changes inputs under a run, at many moments. The run must end with the result of the unchanged inputs, or with an
// error that names the file. When the inputs are put back, it must go on to the same bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>

#include "runtime/files/safetensors.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/sha256.h"
#include "tests/compress/run_pare.h"

namespace pare::test {
using namespace runtime;
namespace {

namespace fs = std::filesystem;

class ChangingInputs : public testing::Test {
 protected:
  static constexpr const char* kSmallFile = "tokenizer_config.json";

  void SetUp() override {
    fs::copy(family("llama_gqa_untied"), original_);
    write_text(original_ / kSmallFile, "{\"a\": 1}");
    put_back();
    write_text(folder_ / "recipe.yaml",
               "model: " + model_.string() + "\ncalibration: {text: " + (model_ / "ids.npy").string() +
                   "}\npasses:\n  - gptq: {bits: 4, group_size: 32}\nevaluate:\n  - perplexity: {text: " +
                   (family("llama_gqa_untied") / "ids.npy").string() + ", context: 64}\n");
    const TracedOutcome whole = run_pare_disturbed(command("whole"), -1, [] {});
    ASSERT_EQ(whole.outcome.status, 0) << whole.outcome.err;
    expected_ = promised_files(folder_ / "whole");
    // The moments begin shortly before the model is opened: with the last calls before the first folder is made.
    const auto first_folder = std::find_if(whole.names.begin(), whole.names.end(),
                                           [](const std::string& name) { return name.starts_with("mkdir"); });
    first_ = static_cast<int>(first_folder - whole.names.begin()) - 24;
    end_ = whole.num_calls;
    ASSERT_GT(first_, 0);
  }
  std::vector<std::string> command(const std::string& out) const {
    return {"run", (folder_ / "recipe.yaml").string(), "--threads", "1", "--out", (folder_ / out).string()};
  }
  void put_back() const {
    fs::remove_all(model_);
    fs::copy(original_, model_);
  }
  // Returns other weights of the same shapes, with each value's lowest bits changed.
  std::string other_weights() const {
    const SafetensorsFile file = SafetensorsFile::open(original_ / "model.safetensors");
    std::string bytes = read_text_file(original_ / "model.safetensors");
    for (const auto& [name, view] : file.tensors()) {
      const auto begin = static_cast<size_t>(view.data.data() - file.file().bytes().data());
      for (size_t at = begin; at < begin + view.data.size(); at += 4) bytes[at] = static_cast<char>(bytes[at] ^ 1);
    }
    return bytes;
  }
  static void overwrite(const fs::path& path, const std::string& bytes) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  // `allowed` are the files that the run may end with beside those of the unchanged inputs: those of inputs that were
  // changed before it read any.
  void change_at_many_moments(const std::function<void()>& change, const std::vector<std::string>& words,
                              const std::map<std::string, std::string>& allowed = {}) {
    const int step = std::max(1, (end_ - first_) / 10);
    int num_refused = 0;
    for (int moment = first_; moment < end_; moment += step) {
      SCOPED_TRACE("at call " + std::to_string(moment) + " of " + std::to_string(end_));
      const Outcome outcome = run_pare_disturbed(command("out"), moment, change).outcome;
      put_back();
      if (outcome.status == 0) {
        const auto found = promised_files(folder_ / "out");
        EXPECT_TRUE(found == expected_ || (!allowed.empty() && found == allowed));
      } else {
        ++num_refused;
        EXPECT_EQ(outcome.status, 1) << outcome.err;
        EXPECT_FALSE(fs::exists(folder_ / "out"));
        EXPECT_TRUE(std::any_of(words.begin(), words.end(), [&](const std::string& word) {
          return outcome.err.find(word) != std::string::npos;
        })) << outcome.err;
        const Outcome resumed = run_pare(command("out"));
        EXPECT_EQ(resumed.status, 0) << resumed.err;
        EXPECT_EQ(promised_files(folder_ / "out"), expected_);
      }
      EXPECT_FALSE(fs::exists(folder_ / "out.partial"));
      fs::remove_all(folder_ / "out");
      if (HasFailure()) return;
    }
    EXPECT_GE(num_refused, 5);
  }
  std::map<std::string, std::string> outcome_of(const std::function<void()>& change) {
    change();
    EXPECT_EQ(run_pare(command("changed")).status, 0);
    put_back();
    return promised_files(folder_ / "changed");
  }

  TemporaryFolder folder_{"changing"};
  fs::path original_ = folder_ / "original", model_ = folder_ / "model";
  std::map<std::string, std::string> expected_;
  int first_ = 0, end_ = 0;
};

TEST_F(ChangingInputs, WeightsOverwrittenInPlace) {
  const std::string other = other_weights();
  const auto change = [&] { overwrite(model_ / "model.safetensors", other); };
  change_at_many_moments(change, {"changed while it was read: '" + (model_ / "model.safetensors").string() + "'"},
                         outcome_of(change));
}

TEST_F(ChangingInputs, WeightsReplacedByRenaming) {
  const std::string other = other_weights();
  const auto change = [&] {
    write_text(folder_ / "new", other);
    fs::rename(folder_ / "new", model_ / "model.safetensors");
  };
  change_at_many_moments(change, {"changed while it was read: '" + (model_ / "model.safetensors").string() + "'"},
                         outcome_of(change));
}

TEST_F(ChangingInputs, SmallFilesRemovedAndCalibrationDataChanged) {
  const auto remove = [&] { fs::remove(model_ / kSmallFile); };
  change_at_many_moments(remove, {"changed while it was read: '" + (model_ / kSmallFile).string() + "' is gone"},
                         outcome_of(remove));
  const auto write = [&] {
    std::string ids = read_text_file(model_ / "ids.npy");
    std::swap(ids[ids.size() - 8], ids[ids.size() - 4]);
    overwrite(model_ / "ids.npy", ids);
  };
  fs::remove_all(folder_ / "changed");
  change_at_many_moments(write, {"changed while it was read: '" + (model_ / "ids.npy").string() + "'"},
                         outcome_of(write));
}

TEST_F(ChangingInputs, WeightsCutShort) {
  change_at_many_moments([&] { fs::resize_file(model_ / "model.safetensors", 8192); },
                         {"model.safetensors' became shorter while it was read", "changed while it was read",
                          "data_offsets", "which its bytes come from, became shorter"});
}

TEST_F(ChangingInputs, StatisticsOfAChangedModelAreNotPublished) {
  const fs::path output = folder_ / "s.h5";
  const std::vector<std::string> words = {"calibrate", (folder_ / "recipe.yaml").string(), output.string(), "--threads",
                                          "1"};
  const std::string other = other_weights();
  const auto change = [&] { overwrite(model_ / "model.safetensors", other); };
  std::map<bool, std::string> allowed;
  int num_calls = 0;
  for (const bool is_changed : {true, false}) {
    if (is_changed) change();
    const TracedOutcome whole = run_pare_disturbed(words, -1, [] {});
    put_back();
    ASSERT_EQ(whole.outcome.status, 0) << whole.outcome.err;
    allowed[is_changed] = sha256_file(output);
    fs::remove(output);
    num_calls = whole.num_calls;
  }
  ASSERT_NE(allowed[true], allowed[false]);
  int num_refused = 0;
  for (int moment = num_calls - 1; moment > num_calls - 60 && moment >= 0; moment -= 6) {
    const Outcome outcome = run_pare_disturbed(words, moment, change).outcome;
    put_back();
    if (outcome.status == 0) {
      const std::string found = sha256_file(output);
      EXPECT_TRUE(found == allowed[false] || found == allowed[true]) << moment << " of " << num_calls;
      fs::remove(output);
    } else {
      ++num_refused;
      EXPECT_NE(outcome.err.find("changed while it was read"), std::string::npos) << outcome.err;
    }
    EXPECT_FALSE(fs::exists(output));
  }
  EXPECT_GE(num_refused, 2);
}

}  // namespace
}  // namespace pare::test
