// Commands that are killed or interrupted, or that run out of memory or disk space, or whose input never ends.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runtime/files/npy.h"
#include "tests/places.h"
#include "tests/runtime/commands/pare_runtime.h"

namespace pare {
using namespace runtime;
namespace {

// When a program that reads a .gguf is killed at any moment, it leaves links at most, and the next program removes
// them.
TEST_F(PareRuntime, AGgufFileThatWasBeingReadLeavesNoBytes) {
  const std::string gguf = std::string(kSourceFolder) + "/tests/golden/gguf/llama_gqa_untied.gguf";
  const std::filesystem::path temporary = folder_.path() / "tmp", err = folder_.path() / "err";
  std::filesystem::create_directory(temporary);
  std::filesystem::create_directory(temporary / "pare-import-strange");  // its process is gone
  std::filesystem::create_directory(temporary / "pare-other");
  std::ofstream(temporary / "pare-import-file") << "not a folder";
  // A folder of the user's stays, whatever its name is.
  std::filesystem::create_directory(temporary / "pare-import-abcdef");
  std::filesystem::create_symlink("thesis", temporary / "pare-import-abcdef" / "link");
  const TokenWindows few = read_npy(npy_);
  TokenWindows many = {.num_windows = 200000, .num_tokens = 64, .ids_NT = {}};
  while (many.ids_NT.size() < 200000 * 64) many.ids_NT.insert(many.ids_NT.end(), few.ids_NT.begin(), few.ids_NT.end());
  const std::string text = folder_.path() / "many.npy";
  write_npy(text, many);
  const auto left = [&] {
    std::multiset<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(temporary)) {
      if (entry.is_symlink() || !entry.is_directory()) names.insert(entry.path().filename());
      EXPECT_TRUE(entry.is_symlink() || entry.is_directory() || entry.path().filename() == "pare-import-file");
    }
    return names;
  };
  const std::string path = program();
  for (const int signal : {SIGKILL, SIGHUP}) {
    const pid_t child = fork();
    if (child == 0) {
      dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
      dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
      setenv("TMPDIR", temporary.c_str(), 1);
      std::signal(SIGHUP, SIG_DFL);
      execl(path.c_str(), "pare-runtime", "eval", gguf.c_str(), "--threads", "1", "--text", text.c_str(), nullptr);
      _exit(127);
    }
    int status = 0;
    pid_t ended = 0;
    while (ended == 0 && (!std::filesystem::exists(err) || file_text(err).find("load ") == std::string::npos)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      ended = waitpid(child, &status, WNOHANG);
    }
    ASSERT_EQ(ended, 0) << file_text(err);
    // While the program works, another one leaves its folder alone.
    const Outcome other = run("eval " + gguf + " --json --text " + npy_, "env TMPDIR=" + temporary.string());
    EXPECT_EQ(other.status, 0) << other.err;
    EXPECT_GE(left().size(), 4u);
    kill(child, signal);
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (signal == SIGHUP) {
      EXPECT_EQ(WEXITSTATUS(status), 130);
      EXPECT_EQ(left(), (std::multiset<std::string>{"link", "pare-import-file"}));
    } else {
      EXPECT_GE(left().size(), 4u);  // links without a target
      EXPECT_EQ(run("eval " + gguf + " --json --text " + npy_, "env TMPDIR=" + temporary.string()).status, 0);
      EXPECT_EQ(left(), (std::multiset<std::string>{"link", "pare-import-file"}));
    }
    std::filesystem::remove(err);
  }
  EXPECT_FALSE(std::filesystem::exists(temporary / "pare-import-strange"));
  EXPECT_TRUE(std::filesystem::is_symlink(temporary / "pare-import-abcdef" / "link"));
  EXPECT_TRUE(std::filesystem::exists(temporary / "pare-other"));
}

TEST_F(PareRuntime, SignalsEndWith130) {
  // There are enough windows for a minute of work by one thread. The signal is sent once standard error says that the
  // model is loaded.
  const TokenWindows few = read_npy(npy_);
  TokenWindows many = {.num_windows = 200000, .num_tokens = 64, .ids_NT = {}};
  while (many.ids_NT.size() < 200000 * 64) many.ids_NT.insert(many.ids_NT.end(), few.ids_NT.begin(), few.ids_NT.end());
  write_npy(folder_.path() / "many.npy", many);
  const std::string out = folder_.path() / "out", err = folder_.path() / "err", text = folder_.path() / "many.npy";
  const std::string path = program();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const pid_t child = fork();
    if (child == 0) {
      std::signal(SIGHUP, SIG_DFL);
      dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
      dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
      execl(path.c_str(), "pare-runtime", "eval", model_.c_str(), "--json", "--threads", "1", "--text", text.c_str(),
            nullptr);
      _exit(127);
    }
    ASSERT_GT(child, 0);
    int status = 0;
    pid_t ended = 0;
    while (ended == 0 && (!std::filesystem::exists(err) || file_text(err).find("load ") == std::string::npos)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      ended = waitpid(child, &status, WNOHANG);
    }
    ASSERT_EQ(ended, 0) << file_text(err);
    kill(child, signal);
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << signal;
    EXPECT_EQ(WEXITSTATUS(status), 130) << signal << ": " << file_text(err);
    EXPECT_EQ(file_text(out), "");
    EXPECT_NE(file_text(err).find("interrupted"), std::string::npos);
    EXPECT_EQ(file_text(err).find("a second Ctrl-C ends the program at once\n") != std::string::npos, signal == SIGINT);
    std::filesystem::remove(err);
  }
}

// Here one window is one batch, too long to wait for. The second signal ends the process as if there were no handler.
TEST_F(PareRuntime, ASignalInsideABatchIsHeard) {
  copy_family("llama_gqa_untied", folder_.path() / "long", {{"max_position_embeddings", 400000}});
  std::ofstream(folder_.path() / "long" / "tokenizer.json") << ascii_tokenizer_json();
  std::ofstream(text_) << std::string(400000, 'x');
  const std::string err = folder_.path() / "err", path = program(), model = folder_.path() / "long";
  for (const bool twice : {false, true}) {
    const pid_t child = fork();
    if (child == 0) {
      dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
      dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
      execl(path.c_str(), "pare-runtime", "eval", model.c_str(), "--threads", "1", "--context", "400000", "--text",
            text_.c_str(), nullptr);
      _exit(127);
    }
    ASSERT_GT(child, 0);
    int status = 0;
    pid_t ended = 0;
    const auto wait_for = [&](const std::string& words) {
      while (ended == 0 && (!std::filesystem::exists(err) || file_text(err).find(words) == std::string::npos)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        ended = waitpid(child, &status, WNOHANG);
      }
      ASSERT_EQ(ended, 0) << file_text(err);
    };
    wait_for("load ");
    kill(child, SIGINT);
    wait_for("stopping");
    if (twice) kill(child, SIGINT);
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (twice) {
      EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 130) << status;
    } else {
      EXPECT_EQ(WEXITSTATUS(status), 130) << file_text(err);
    }
    std::filesystem::remove(err);
  }
}

// When the program cannot have the memory that it needs, it says so and fails. The limits go from too little for
// loading to enough.
class PareRuntimeOutOfMemory : public PareRuntime {
 protected:
  void expect_messages(const std::string& words, int step_kibibytes) const;
};
void PareRuntimeOutOfMemory::expect_messages(const std::string& words, int step_kibibytes) const {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer needs address space of its own";
#endif
  int status = -1, num_messages = 0;
  bool loaded = false;  // the kernel could map the program, so that its loader ran
  for (int kibibytes = 2 * step_kibibytes; status != 0; kibibytes += step_kibibytes) {
    ASSERT_LT(kibibytes, 1 << 20) << "this takes less than 1 GiB";
    const Outcome result = run(words, "ulimit -v " + std::to_string(kibibytes) + "; OMP_NUM_THREADS=1");
    status = result.status;
    if (status == 139 && !loaded) continue;  // the kernel ends what its own limit keeps it from mapping
    loaded = true;
    if (status == 0 || status == 127) continue;        // 127: the loader has no memory for the libraries
    if (status == 134 && num_messages == 0) continue;  // nor has what is made before main
    ASSERT_EQ(status, 1) << kibibytes << " KiB: " << result.err;
    EXPECT_NE(result.err.find("memory"), std::string::npos) << result.err;
    num_messages += result.err.starts_with("pare-runtime: out of memory: use a smaller model");
  }
  EXPECT_GT(num_messages, 0);
}

TEST_F(PareRuntimeOutOfMemory, RunningIsAMessage) {
  expect_messages("eval " + model_.string() + " --threads 1 --quiet --text " + npy_, 4 << 10);
}

TEST_F(PareRuntimeOutOfMemory, TokenizingIsAMessage) {
  std::ofstream(text_) << std::string(2000000, 'x');
  expect_messages("tokenize " + model_.string() + " --json --quiet --text " + text_.string(), 8 << 10);
}

// A limit of the shell on the size of files acts like a full disk.
TEST_F(PareRuntime, AFileBeyondTheLimitIsAMessage) {
  const std::string gguf = std::string(kSourceFolder) + "/tests/golden/gguf/llama_gqa_untied.gguf ";
  const Outcome result = run("import " + gguf + (folder_.path() / "o").string(), "ulimit -f 16;");
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.err.find("File too large"), std::string::npos) << result.err;
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "o"));
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "o.partial"));
}

TEST_F(PareRuntime, TextsWithoutAnEndAreRefused) {
  const std::string zero = (folder_.path() / "zero").string(), pipe = (folder_.path() / "pipe.txt").string();
  for (const char* extension : {".txt", ".jsonl"}) {
    std::filesystem::create_symlink("/dev/zero", zero + extension);
  }
  const std::string words = " " + model_.string() + " --text ";
  for (const std::string command : {"tokenize", "eval"}) {
    expect_failure(command + words + zero + ".txt", 1, {"zero.txt'", "a device; expected a file"});
  }
  expect_failure("eval " + model_.string() + " --instructions " + zero + ".jsonl", 1, {"a device; expected a file"});
  expect_failure("import /dev/zero " + (folder_.path() / "o").string(), 1, {"/dev/zero", "expected a file"});
  // A pipe that ends is read.
  EXPECT_EQ(run("tokenize" + words + pipe, "mkfifo " + pipe + "; printf 'a b' >" + pipe + " & ").out, "0 67 1 68\n");
}

}  // namespace
}  // namespace pare
