// Standard output and standard error of the built program, and what it says when it cannot write.
#include "runtime/commands/standard_output.h"

#include <fcntl.h>
#include <pty.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <numeric>

#include "runtime/commands/command_line.h"
#include "runtime/commands/commands.h"
#include "tests/places.h"
#include "tests/runtime/commands/pare_runtime.h"

namespace pare {
using namespace runtime;
namespace {

class StandardOutputOf : public PareRuntime {
 protected:
  // Returns every command that prints, with every form of its output.
  std::vector<std::string> all_words() const {
    const std::string model = " " + model_.string();
    std::vector<std::string> all = {"--help", "--version"};
    for (const Command& command : runtime_commands()) all.push_back(command.name + " --help");
    for (const std::string& words :
         {"tokenize" + model + " --text " + text_.string(), "generate" + model + " --prompt a --max-tokens 3",
          "eval" + model + " --text " + npy_, "inspect" + model, "inspect" + model + " --tensors", "verify" + model,
          "bench" + model + " --prefill-tokens 8 --decode-tokens 2 --repetitions 1"}) {
      for (const char* form : {"", " --quiet", " --json", " --json --quiet"}) all.push_back(words + form);
    }
    return all;
  }
  // Runs the program with standard output redirected as `redirection` says.
  Outcome run_into(const std::string& words, const std::string& redirection) const {
    const std::string err = (folder_.path() / "err").string();
    const std::string line = std::string(kBuildFolder) + "/pare-runtime " + words + " 2>" + err + " " + redirection;
    const int status = std::system(("bash -c '" + line + "'").c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, "", file_text(err)};
  }
};

TEST_F(StandardOutputOf, EveryCommandIsAFailureWhereTheDiskIsFull) {
  for (const std::string& words : all_words()) {
    const Outcome result = run_into(words, ">/dev/full");
    EXPECT_EQ(result.status, 1) << words;
    EXPECT_NE(result.err.find("pare-runtime: cannot write standard output: No space left on device"), std::string::npos)
        << words << ": " << result.err;
  }
  const std::string gguf = std::string(kSourceFolder) + "/tests/golden/gguf/llama_gqa_untied.gguf ";
  EXPECT_EQ(run_into("import " + gguf + (folder_.path() / "o").string(), ">/dev/full").status, 1);
}

TEST_F(StandardOutputOf, AClosedOneIsAFailure) {
  const Outcome result = run_into("tokenize " + model_.string() + " --text " + text_.string(), ">&-");
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.err.find("cannot write standard output: Bad file descriptor"), std::string::npos) << result.err;
}

// If the reader goes away, SIGPIPE ends the program as usual, after the program has removed its temporary files.
TEST_F(StandardOutputOf, AReaderThatGoesAwayEndsItQuietly) {
  const std::string gguf = std::string(kSourceFolder) + "/tests/golden/gguf/llama_gqa_untied.gguf";
  const std::filesystem::path temporary = folder_.path() / "tmp", err = folder_.path() / "err";
  std::filesystem::create_directory(temporary);
  const std::string path = program();
  int status = 0;
  for (const bool is_ignored : {false, true}) {
    std::array<int, 2> ends;
    ASSERT_EQ(pipe(ends.data()), 0);
    const pid_t child = fork();
    if (child == 0) {
      dup2(ends[1], STDOUT_FILENO);
      dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
      close(ends[0]);
      setenv("TMPDIR", temporary.c_str(), 1);
      std::signal(SIGPIPE, is_ignored ? SIG_IGN : SIG_DFL);
      execl(path.c_str(), "pare-runtime", "generate", gguf.c_str(), "--quiet", "--prompt", "a", nullptr);
      _exit(127);
    }
    close(ends[0]);
    close(ends[1]);
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(std::filesystem::is_empty(temporary));
    if (is_ignored) {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
      EXPECT_EQ(file_text(err), "pare-runtime: cannot write standard output: Broken pipe\n");
    } else {
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE) << status;
      EXPECT_EQ(file_text(err), "");
    }
  }
}

// Returns what a process writes to a terminal of its own.
std::string on_a_terminal(const std::vector<std::string>& words) {
  const std::string path = std::string(kBuildFolder) + "/pare-runtime";
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child < 0) throw std::runtime_error("no terminal to be had");
  if (child == 0) {
    std::vector<const char*> argv = {"pare-runtime"};
    for (const std::string& word : words) argv.push_back(word.c_str());
    argv.push_back(nullptr);
    execv(path.c_str(), const_cast<char**>(argv.data()));
    _exit(127);
  }
  std::string text;
  std::array<char, 4096> piece;
  for (ssize_t size = 0; (size = read(terminal, piece.data(), piece.size())) > 0;) {
    text.append(piece.data(), static_cast<size_t>(size));
  }
  close(terminal);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << text;
  return text;
}

// Text and statistics are two streams that go to one terminal, or to one pipe.
TEST_F(StandardOutputOf, StatisticsStandInALineOfTheirOwn) {
  const std::vector<std::string> words = {"generate", model_.string(), "--max-tokens", "3", "--prompt", "ab"};
  const std::string shown = on_a_terminal(words);
  const size_t statistics = shown.find("3 prompt tokens at ");
  ASSERT_NE(statistics, std::string::npos) << shown;
  EXPECT_EQ(shown.substr(statistics - 2, 2), "\r\n") << shown;
  const Outcome together = run_into("generate " + model_.string() + " --max-tokens 3 --prompt ab",
                                    ">" + (folder_.path() / "all").string() + " 2>&1");
  EXPECT_EQ(together.status, 0);
  const std::string all = file_text(folder_.path() / "all");
  ASSERT_NE(all.find("3 prompt tokens at "), std::string::npos) << all;
  EXPECT_EQ(all[all.find("3 prompt tokens at ") - 1], '\n') << all;
}

// Every token of this model ends the text.
TEST_F(StandardOutputOf, AModelThatStopsAtOnceIsSaidTo) {
  nlohmann::json config = nlohmann::json::parse(file_text(model_ / "config.json"));
  std::vector<int> all(config.at("vocab_size").get<size_t>());
  std::iota(all.begin(), all.end(), 0);
  config["eos_token_id"] = all;
  std::ofstream(model_ / "config.json") << config;
  std::filesystem::remove(model_ / "generation_config.json");
  const Outcome result = run("generate " + model_.string() + " --max-tokens 5 --prompt ab");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, "ab\n");
  EXPECT_NE(result.err.find("the model ended the text at once"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("0 new ones\n"), std::string::npos) << result.err;
}

// The escape character is a token (written as byte-level tokenizers write it), and it is in a name.
TEST_F(StandardOutputOf, ControlCharactersOfAModelReachFilesAndNoTerminal) {
  std::string tokenizer = ascii_tokenizer_json();
  const size_t q = tokenizer.find("\"q\":83");
  ASSERT_NE(q, std::string::npos);
  tokenizer.replace(q, 3, "\"\u011b\"");
  std::ofstream(model_ / "tokenizer.json") << tokenizer;
  const std::string prompt = "a\x1b[31mb";
  const std::vector<std::string> words = {"generate", model_.string(), "--quiet", "--max-tokens",
                                          "1",        "--prompt",      prompt};
  const std::string shown = on_a_terminal(words);
  EXPECT_TRUE(shown.starts_with("a\\x1b[31mb")) << shown;
  EXPECT_EQ(shown.find('\x1b'), std::string::npos);
  EXPECT_TRUE(
      run("generate " + model_.string() + " --quiet --max-tokens 1 --prompt '" + prompt + "'").out.starts_with(prompt));
  expect_failure("inspect 'no\x1b[31mne'", 1, {"no\\x1b[31mne"});
  expect_failure("eval m --text 't\x1b'", 1, {"m"});
}

TEST_F(StandardOutputOf, ControlCharactersOfNamesAreShownEverywhere) {
  std::string bytes = file_text(model_ / "model.safetensors");
  const size_t name = bytes.find("model.norm.weight");
  ASSERT_NE(name, std::string::npos);
  uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), 8);
  bytes.replace(name, 17, "model\\u001bnorm.w");  // again 17 letters, which JSON reads as 12
  std::ofstream(folder_.path() / "x.safetensors", std::ios::binary) << bytes;
  const std::string words = "inspect " + (folder_.path() / "x.safetensors").string();
  const Outcome table = run(words + " --tensors");
  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_NE(table.out.find("model\\x1bnorm.w"), std::string::npos) << table.out;
  EXPECT_EQ(table.out.find('\x1b'), std::string::npos);
  EXPECT_EQ(run_json(words).dump().find('\x1b'), std::string::npos);
}

// A name must not look like a message of the program, nor hide what follows it in its line.
TEST_F(StandardOutputOf, NamesBreakNoLineAndTurnNone) {
  std::string bytes = file_text(model_ / "model.safetensors");
  const size_t name = bytes.find("model.norm.weight");
  ASSERT_NE(name, std::string::npos);
  bytes.replace(name, 17, "a\\nb\\tc\u202e\u2066dddd");
  std::ofstream(folder_.path() / "x.safetensors", std::ios::binary) << bytes;
  const Outcome table = run("inspect " + (folder_.path() / "x.safetensors").string() + " --tensors");
  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_NE(table.out.find("a\\x0ab\\x09c\\u202e\\u2066dddd F32"), std::string::npos) << table.out;
  expect_failure("inspect 'no\nwhere\tat\u202eall'", 1, {"no\\x0awhere\\x09at\\u202eall: no such file"});
  // Messages of several lines stay several lines.
  std::ofstream(model_ / "pare.json") << R"({"outputs": {"config.json": "00", "a\nb": "00"}})";
  const Outcome damaged = run("verify " + model_.string());
  EXPECT_EQ(damaged.status, 1);
  EXPECT_NE(damaged.err.find(" problem(s):\n  "), std::string::npos) << damaged.err;
  EXPECT_NE(damaged.err.find("a\\x0ab"), std::string::npos) << damaged.err;
}

TEST(Visible, ShowsControlCharactersAndNothingElse) {
  EXPECT_EQ(visible("plain\ttext\n"), "plain\ttext\n");
  EXPECT_EQ(visible("\x1b[2J\r\x7f"), "\\x1b[2J\\x0d\\x7f");
  EXPECT_EQ(visible(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(visible("\u00e9 \u2603 \U0001f600"), "\u00e9 \u2603 \U0001f600");
  EXPECT_EQ(visible("\u009b31m"), "\\x9b31m");  // CSI as one character
  EXPECT_EQ(visible("\x9b"
                    "31m"),
            "\\x9b31m");  // a byte of no character
  EXPECT_EQ(visible("\xc3"
                    "a"),
            "\xc3"
            "a");
  EXPECT_EQ(visible("\xc2"), "\\xc2");
  EXPECT_EQ(visible("{\"a\": \"\u009b\x7f\"}", "\\u00"), "{\"a\": \"\\u009b\\u007f\"}");
}

}  // namespace
}  // namespace pare
