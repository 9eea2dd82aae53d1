// What reaches standard output and standard error of the built program, and what is said where it does not.
#include "runtime/commands/standard_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <csignal>

#include "runtime/commands/command_line.h"
#include "runtime/commands/commands.h"
#include "tests/runtime/commands/pare_runtime.h"

namespace pare {
namespace {

class StandardOutputOf : public PareRuntime {
 protected:
  // Every command that prints, with every form of its output.
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
  // Standard output goes where `redirection` says.
  Outcome run_into(const std::string& words, const std::string& redirection) const {
    const std::string err = (folder_.path() / "err").string();
    const std::string line = PARE_BUILD_DIR "/pare-runtime " + words + " 2>" + err + " " + redirection;
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
  const std::string gguf = PARE_SOURCE_DIR "/tests/golden/gguf/llama_gqa_untied.gguf ";
  EXPECT_EQ(run_into("import " + gguf + (folder_.path() / "o").string(), ">/dev/full").status, 1);
}

TEST_F(StandardOutputOf, AClosedOneIsAFailure) {
  const Outcome result = run_into("tokenize " + model_.string() + " --text " + text_.string(), ">&-");
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.err.find("cannot write standard output: Bad file descriptor"), std::string::npos) << result.err;
}

// A reader that goes away ends the program as it ends others, when what it has made beside is gone.
TEST_F(StandardOutputOf, AReaderThatGoesAwayEndsItQuietly) {
  const std::string gguf = PARE_SOURCE_DIR "/tests/golden/gguf/llama_gqa_untied.gguf";
  const std::filesystem::path temporary = folder_.path() / "tmp", err = folder_.path() / "err";
  std::filesystem::create_directory(temporary);
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
      execl(PARE_BUILD_DIR "/pare-runtime", "pare-runtime", "generate", gguf.c_str(), "--quiet", "--prompt", "a",
            nullptr);
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

TEST(Visible, ShowsControlCharactersAndNothingElse) {
  EXPECT_EQ(visible("plain\ttext\n"), "plain\ttext\n");
  EXPECT_EQ(visible("\x1b[2J\r\x7f"), "\\x1b[2J\\x0d\\x7f");
  EXPECT_EQ(visible(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(visible("\u00e9 \u2603 \U0001f600"), "\u00e9 \u2603 \U0001f600");
  EXPECT_EQ(visible("\u009b31m"), "\\x9b31m");  // CSI as one character
  EXPECT_EQ(visible("\x9b"
                    "31m"),
            "\\x9b31m");  // ... and as a byte that belongs to none
  EXPECT_EQ(visible("\xc3"
                    "a"),
            "\xc3"
            "a");
  EXPECT_EQ(visible("\xc2"), "\\xc2");
  EXPECT_EQ(visible("{\"a\": \"\u009b\x7f\"}", "\\u00"), "{\"a\": \"\\u009b\\u007f\"}");
}

}  // namespace
}  // namespace pare
