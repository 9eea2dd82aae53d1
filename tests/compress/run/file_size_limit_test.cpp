// What commands say where no file may grow (`ulimit -f`): the name that the user gave, or where the file lies.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "tests/compress/run_pare.h"
#include "tests/places.h"

namespace pare::test {
namespace {

namespace fs = std::filesystem;

// Runs the program, whose files may not grow beyond num_bytes.
Outcome run_limited(rlim_t num_bytes, const std::vector<std::string>& arguments) {
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit limit = {num_bytes, before.rlim_max};
  signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &limit);
  const Outcome outcome = run_pare(arguments);
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, SIG_DFL);
  return outcome;
}

// Where a command makes files of its own for a model, in the folder for temporary files: a draft of a .gguf, an import,
// codes that are decoded. The message names that folder, and no file in the model's.
TEST(FileSizeLimit, OfTemporaryFilesIsSaidOfTheirFolder) {
  const TemporaryFolder folder("file-limit");
  const fs::path stories = fs::path(kSourceFolder) / "calibration_data/stories260k",
                 gguf = fs::path(kSourceFolder) / "tests/golden/gguf/bloom_distances.gguf",
                 coded = fs::path(kSourceFolder) / "tests/golden/llm_compressor/w4a16";
  write_text(folder / "w8.yaml", "model: " + stories.string() + "\npasses:\n  - rtn: {bits: 8, group_size: -1}\n");
  write_text(folder / "again.yaml", "model: " + coded.string() + "\npasses:\n  - rtn: {bits: 8, group_size: -1}\n");
  const std::string w8 = (folder / "w8").string(), out = (folder / "out").string();
  ASSERT_EQ(run_pare({"run", (folder / "w8.yaml").string(), "--out", w8}).status, 0);
  const auto expect_refused = [&](const std::string& model, const std::vector<std::string>& arguments) {
    SCOPED_TRACE(arguments.front() + " " + model);
    const Outcome outcome = run_limited(8192, arguments);
    EXPECT_EQ(outcome.status, 1);
    const std::string start = "cannot write temporary files for '" + model + "' in '";
    EXPECT_NE(outcome.err.find(start), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("File too large: set TMPDIR"), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("ulimit -f"), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.err.find("draft.gguf"), std::string::npos) << outcome.err;
    EXPECT_FALSE(fs::exists(out));
    EXPECT_FALSE(fs::exists(out + ".gguf"));
  };
  expect_refused(w8, {"export", w8, out + ".gguf", "--format", "gguf"});
  expect_refused(w8, {"export", w8, out + ".gguf", "--format", "f32"});
  expect_refused(coded.string(), {"run", (folder / "again.yaml").string(), "--out", out});
  expect_refused(gguf.string(), {"export", gguf.string(), out, "--format", "dense"});
}

// Where the file lies beside the output, its name begins with the output's.
TEST(FileSizeLimit, OfOutputsIsSaidByTheirNames) {
  const TemporaryFolder folder("file-limit-outputs");
  const fs::path stories = fs::path(kSourceFolder) / "calibration_data/stories260k";
  const std::string model = "model: " + stories.string() + "\n", ids = (folder / "ids.txt").string();
  std::string story;
  for (int i = 0; i < 50; ++i) story += "Once upon a time there was a little girl who went to the park. ";
  write_text(ids, story);
  write_text(folder / "w8.yaml", model + "passes:\n  - rtn: {bits: 8, group_size: -1}\n");
  write_text(folder / "dense.yaml", model + "container: dense\npasses:\n  - rtn: {bits: 8, group_size: -1}\n");
  write_text(folder / "calibrate.yaml", model + "calibration: {text: " + ids + ", tokens: 16}\n");
  const std::string w8 = (folder / "w8").string(), out = (folder / "out").string();
  ASSERT_EQ(run_pare({"run", (folder / "w8.yaml").string(), "--out", w8}).status, 0);
  const std::vector<std::vector<std::string>> commands = {
      {"run", (folder / "w8.yaml").string(), "--out", out},
      {"run", (folder / "dense.yaml").string(), "--out", out},
      {"export", w8, out, "--format", "dense"},
      {"export", w8, out, "--format", "gptq"},
      {"calibrate", (folder / "calibrate.yaml").string(), out},
      {"record", stories.string(), "--text", ids, "--tokens", "16", out}};
  for (const std::vector<std::string>& command : commands) {
    SCOPED_TRACE(command.front() + " " + command[1]);
    const Outcome outcome = run_limited(8192, command);
    EXPECT_EQ(outcome.status, 1);
    EXPECT_NE(outcome.err.find("cannot write '" + out), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("File too large"), std::string::npos) << outcome.err;
    EXPECT_FALSE(fs::exists(out));
    fs::remove_all(out + ".partial");
  }
}

}  // namespace
}  // namespace pare::test
