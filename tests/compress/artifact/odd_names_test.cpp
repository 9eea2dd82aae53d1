// Names that a file system allows and a text does not: bytes that are not UTF-8. All descriptions of the work hold them
// as U+FFFD, and no work is lost at its end because of them.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "compress/artifact/parts.h"
#include "compress/record/logit_store.h"
#include "runtime/system/atomic_file.h"
#include "tests/compress/run_pare.h"
#include "tests/places.h"

namespace pare::test {
using namespace compress;
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kModel = std::string(kSourceFolder) + "/calibration_data/stories260k";
const std::string kReplacement = "\xef\xbf\xbd";

class OddNames : public testing::Test {
 protected:
  OddNames() {
    write_text(text_, read_text_file(std::string(kSourceFolder) + "/calibration_data/stories.txt").substr(0, 2000));
    write_text(recipe_, "model: " + kModel + "\ncalibration: {samples: 4, tokens: 32, text: " + kSourceFolder +
                            "/calibration_data/stories.txt}\npasses:\n  - gptq: {bits: 4, group_size: -1}\n");
  }
  // Returns the JSON object that a command ends with.
  static Json made(std::vector<std::string> words) {
    words.push_back("--json");
    const Outcome outcome = run_pare(words);
    EXPECT_EQ(outcome.status, 0) << words.front() << ": " << outcome.err;
    return outcome.status == 0 ? Json::parse(outcome.out) : Json::object();
  }

  TemporaryFolder folder_{"odd-names"};
  fs::path text_ = folder_ / "t\xff.txt", recipe_ = folder_ / "recipe.yaml";
};

TEST_F(OddNames, OutputsAreMadeUnderThem) {
  const std::string name = "out\xfe", shown = "out" + kReplacement;
  const Json run = made({"run", recipe_.string(), "--out", (folder_ / name).string()});
  EXPECT_EQ(run.value("output", ""), (folder_.path() / shown).string());
  EXPECT_TRUE(fs::exists(folder_ / name / "pare.json"));
  EXPECT_EQ(run_pare({"verify", (folder_ / name).string()}).status, 0);
  const Json statistics = made({"calibrate", recipe_.string(), (folder_ / "s\xfe.h5").string()});
  EXPECT_EQ(statistics.value("output", ""), (folder_.path() / ("s" + kReplacement + ".h5")).string());
  // A recording's file holds its own name, by which its shards are found.
  const Outcome record = run_pare({"record", kModel, (folder_ / "r\xfe.h5").string(), "--text", text_.string()});
  EXPECT_EQ(record.status, 1);
  EXPECT_NE(record.err.find("a name in UTF-8"), std::string::npos) << record.err;
}

TEST_F(OddNames, TextsAreReadAndNamed) {
  // A line feed may not be in an attribute either, like a byte that is not UTF-8.
  fs::copy(text_, folder_ / "line\nfeed.txt");
  for (const fs::path& text : {text_, folder_ / "line\nfeed.txt"}) {
    fs::remove_all(folder_ / "record.h5");
    fs::remove_all(folder_ / "record.h5.shards");
    made({"record", kModel, (folder_ / "record.h5").string(), "--text", text.string(), "--tokens", "32"});
    EXPECT_NO_THROW(LogitStore::open(folder_ / "record.h5"));
  }
  const Json found = made({"eval", kModel, "--text", text_.string(), "--context", "64", "--windows", "2"});
  EXPECT_NE(found.dump().find("t" + kReplacement + ".txt"), std::string::npos) << found.dump();
}

// A run of such a name must go on after a kill at every fifth of its renames.
TEST_F(OddNames, RunsGoOnUnderThem) {
  const std::vector<std::string> whole = {"run", recipe_.string(), "--out", (folder_ / "whole").string()};
  const TracedOutcome traced = run_pare_traced(whole, -1);
  ASSERT_EQ(traced.outcome.status, 0) << traced.outcome.err;
  int num_renames = 0;
  for (int call = 0; call < traced.num_calls; ++call) {
    if (!traced.names[static_cast<size_t>(call)].starts_with("rename") || ++num_renames % 5 != 0) continue;
    const fs::path out = folder_ / ("k\xff" + std::to_string(call));
    const std::vector<std::string> words = {"run", recipe_.string(), "--out", out.string()};
    ASSERT_EQ(run_pare_traced(words, call).outcome.status, 128 + SIGKILL);
    const Outcome resumed = run_pare(words);
    ASSERT_EQ(resumed.status, 0) << resumed.err;
    EXPECT_EQ(promised_files(out), promised_files(folder_ / "whole"));
  }
  EXPECT_GE(num_renames, 5);
}

TEST_F(OddNames, AFingerprintOfThemIsKnownAgain) {
  const Fingerprint fingerprint = {{"excluded", "a\xff*"}, {"model", "m"}};
  { const Parts parts(folder_ / "parts", fingerprint, false); }
  EXPECT_NO_THROW(Parts(folder_ / "parts", fingerprint, false));
  EXPECT_THROW(Parts(folder_ / "parts", {{"excluded", "b*"}, {"model", "m"}}, false), std::runtime_error);
}

}  // namespace
}  // namespace pare::test
