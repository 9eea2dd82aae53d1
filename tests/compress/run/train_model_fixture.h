// The fixture of runs that train: the embedded model, its text in two files, and `pare` as a user runs it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/commands/verify.h"
#include "runtime/evaluate/token_source.h"
#include "runtime/evaluate/windows_tokenizer.h"
#include "runtime/files/npy.h"
#include "runtime/model/checkpoint.h"
#include "runtime/tokenizer/tokenizer.h"
#include "runtime/tokenizer/tokenizer_hash.h"
#include "tests/compress/run_pare.h"
#include "tests/places.h"

namespace pare::test {
using namespace runtime;

namespace fs = std::filesystem;
using Json = nlohmann::json;

inline const std::string kData = std::string(kSourceFolder) + "/calibration_data/";
inline const std::string kModel = kData + "stories260k";
inline const std::string kText = kData + "stories.txt";

inline std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline std::vector<float> values_of(const Checkpoint& checkpoint, const LinearDescription& linear) {
  std::vector<float> values(static_cast<size_t>(linear.num_out * linear.num_in));
  weight_rows(checkpoint.linear(linear), 0, linear.num_out, values);
  return values;
}

class TrainModel : public testing::Test {
 protected:
  // The text's first windows are trained on, and its last ones are for validation and evaluation. They are files, so
  // that both see the same windows.
  TrainModel() {
    const Tokenizer tokenizer = Tokenizer::open(kModel);
    const TokenWindows all = read_token_windows(kText, &tokenizer, 64, 0, true, 512);
    const auto part = [&](int64_t first, int64_t count, const std::string& name) {
      TokenWindows windows{count, 64, {}};
      windows.ids_NT.assign(all.ids_NT.begin() + first * 64, all.ids_NT.begin() + (first + count) * 64);
      write_windows(folder_ / name, windows, tokenizer_hash(kModel));
    };
    part(0, all.num_windows - 40, "training.npy");
    part(all.num_windows - 40, 40, "validation.npy");
  }

  std::string text() const { return (folder_ / "training.npy").string(); }
  std::string validation() const { return (folder_ / "validation.npy").string(); }
  // Returns an item of `passes:`. It trains in float32, because the runtime's sums are to be compared.
  std::string distill(const std::string& more) const {
    return "  - distill: {text: " + text() + ", validation_text: " + validation() +
           ", validation_windows: 40, precision: float32, validations: 4, batch: 8, micro_batch: 4, " + more + "}\n";
  }
  std::string recipe(const std::string& items, const std::string& more = "") const {
    return "model: " + kModel + "\ncalibration: {text: " + text() + ", samples: 16}\n" + more + "passes:\n" + items +
           "evaluate:\n  - perplexity: {text: " + validation() + ", context: 64}\n";
  }
  std::vector<std::string> command(const std::string& yaml, const std::string& out,
                                   const std::vector<std::string>& more = {}) {
    write_text(folder_ / (out + ".yaml"), yaml);
    std::vector<std::string> words = {
        "run", (folder_ / (out + ".yaml")).string(), "--out", (folder_ / out).string(), "--threads", "2"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Json run_json(const std::string& yaml, const std::string& out) {
    const Outcome outcome = run_pare(command(yaml, out, {"--json"}));
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.status == 0 ? Json::parse(outcome.out) : Json();
  }
  void expect_verifies(const std::string& out) {
    const Verification verification = verify(folder_ / out);
    EXPECT_TRUE(verification.has_manifest);
    EXPECT_TRUE(verification.problems.empty()) << verification.problems.front();
  }
  // The runtime must measure on the artifact what training measured on the validation windows.
  static void expect_measured(const Json& report) {
    const double trained = report.at("training").at("kept_validation_perplexity");
    EXPECT_NEAR(report.at("perplexity")[0].at("perplexity").get<double>(), trained, 0.005 * trained);
  }
  void expect_refused(const std::string& yaml, const std::vector<std::string>& words,
                      const std::vector<std::string>& more = {}) {
    const Outcome outcome = run_pare(command(yaml, "out", more));
    EXPECT_TRUE(outcome.status == 1 || outcome.status == 2) << outcome.status << ": " << outcome.err;
    for (const std::string& word : words) {
      EXPECT_NE(outcome.err.find(word), std::string::npos) << "no '" << word << "' in: " << outcome.err;
    }
    for (const char* left : {"out", "out.partial"}) {
      EXPECT_FALSE(fs::exists(folder_ / left)) << left;
    }
  }
  // Makes a copy of the model with a text in one of its files replaced.
  std::string changed_copy(const std::string& name, const std::string& file, const std::string& from,
                           const std::string& to) {
    fs::copy(kModel, folder_ / name, fs::copy_options::recursive);
    std::string content = read_file(folder_ / name / file);
    const size_t place = content.find(from);
    EXPECT_NE(place, std::string::npos) << from;
    write_text(folder_ / name / file, content.replace(place, from.size(), to));
    return (folder_ / name).string();
  }

  // Makes a copy of the model whose table has 32 more rows that are no tokens, as in real checkpoints.
  std::string widened_copy(const std::string& name) {
    fs::copy(kModel, folder_ / name, fs::copy_options::recursive);
    const std::string wide = (folder_ / name).string();
    const std::string script =
        "import json, sys, numpy\n"
        "from safetensors.numpy import load_file, save_file\n"
        "tensors = load_file(sys.argv[1] + '/model.safetensors')\n"
        "for name in tensors:\n"
        "    if name in ('model.embed_tokens.weight', 'lm_head.weight'):\n"
        "        rows = numpy.tile(tensors[name][:1] * 3, (32, 1))\n"
        "        tensors[name] = numpy.concatenate([tensors[name], rows.astype(tensors[name].dtype)])\n"
        "save_file(tensors, sys.argv[1] + '/model.safetensors', metadata={'format': 'pt'})\n"
        "config = json.load(open(sys.argv[1] + '/config.json'))\n"
        "config['vocab_size'] += 32\n"
        "json.dump(config, open(sys.argv[1] + '/config.json', 'w'))\n";
    write_text(folder_ / "widen.py", script);
    const char* const python = std::getenv("PARE_PYTHON");
    EXPECT_NE(python, nullptr) << "tests need PARE_PYTHON, which 'make test' sets up";
    EXPECT_EQ(std::system((std::string(python == nullptr ? "false" : python) + " " + (folder_ / "widen.py").string() +
                           " " + wide)
                              .c_str()),
              0);
    return wide;
  }

  TemporaryFolder folder_{"train_model"};
};

}  // namespace pare::test
