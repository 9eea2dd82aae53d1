#include "tests/compress/run_pare.h"
#include "tests/places.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <torch/version.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "runtime/system/sha256.h"

namespace pare::test {
using namespace runtime;
namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Runs in the child: redirects output into files, then starts pare.
[[noreturn]] void become_pare(const std::vector<std::string>& arguments, const fs::path& out, const fs::path& err,
                              bool traced) {
  dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
  dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
  const std::string program = std::string(kBuildFolder) + "/pare";
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  if (traced) ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
  execv(program.c_str(), argv.data());
  _exit(127);
}

int exit_status(int wait_status) {
  return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
}

const std::map<long, const char*> kFileCalls = {
    {SYS_openat, "openat"},   {SYS_open, "open"},           {SYS_write, "write"}, {SYS_writev, "writev"},
    {SYS_rename, "rename"},   {SYS_renameat2, "renameat2"}, {SYS_fsync, "fsync"}, {SYS_fdatasync, "fdatasync"},
    {SYS_unlink, "unlink"},   {SYS_unlinkat, "unlinkat"},   {SYS_rmdir, "rmdir"}, {SYS_mkdir, "mkdir"},
    {SYS_mkdirat, "mkdirat"}, {SYS_fallocate, "fallocate"}, {SYS_flock, "flock"}, {SYS_renameat, "renameat"}};

// Says whether the call opens a file below /proc or /sys. Libraries do that once, in the thread that needs them first,
// and only the first thread is traced: such calls would number the others differently from run to run.
bool opens_facts_of_the_machine(pid_t process, const user_regs_struct& registers) {
  const auto call = static_cast<long>(registers.orig_rax);
  if (call != SYS_open && call != SYS_openat) return false;
  const unsigned long long path = call == SYS_open ? registers.rdi : registers.rsi;
  const long first = ptrace(PTRACE_PEEKDATA, process, reinterpret_cast<void*>(path), nullptr);
  std::array<char, sizeof first> text = {};
  std::memcpy(text.data(), &first, sizeof first);
  const std::string_view begin(text.data(), text.size());
  return begin.starts_with("/proc/") || begin.starts_with("/sys/");
}

}  // namespace

TemporaryFolder::TemporaryFolder(const std::string& name)
    : path_(fs::temp_directory_path() / ("pare-" + name + "-" + std::to_string(getpid()))) {
  fs::remove_all(path_);
  fs::create_directories(path_);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

Outcome run_pare(const std::vector<std::string>& arguments) {
  const TemporaryFolder logs("logs");
  const pid_t child = fork();
  if (child == 0) become_pare(arguments, logs / "out", logs / "err", false);
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) throw std::runtime_error("cannot run pare");
  return {exit_status(status), read_file(logs / "out"), read_file(logs / "err")};
}

namespace {

// `before_call` gets the process and the number of the call that it is about to make. If it returns false, the process
// ends there.
TracedOutcome trace(const std::vector<std::string>& arguments, bool counts_from_start,
                    const std::function<bool(pid_t, int)>& before_call) {
  const TemporaryFolder logs("logs");
  TracedOutcome result;
  const pid_t child = fork();
  if (child == 0) become_pare(arguments, logs / "out", logs / "err", true);
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) throw std::runtime_error("cannot run pare");
  if (WIFSTOPPED(status)) ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
  bool entering = true;
  bool counting = counts_from_start;
  int passed_on = 0;
  while (WIFSTOPPED(status)) {
    ptrace(PTRACE_SYSCALL, child, nullptr, passed_on);
    passed_on = 0;
    if (waitpid(child, &status, 0) != child) throw std::runtime_error("cannot follow pare");
    if (!WIFSTOPPED(status)) break;
    if (WSTOPSIG(status) != (SIGTRAP | 0x80)) {
      passed_on = WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
      continue;
    }
    const bool at_entry = entering;
    entering = !entering;
    if (!at_entry) continue;
    user_regs_struct registers = {};
    ptrace(PTRACE_GETREGS, child, nullptr, &registers);
    const auto call = kFileCalls.find(static_cast<long>(registers.orig_rax));
    if (call == kFileCalls.end() || opens_facts_of_the_machine(child, registers)) continue;
    counting |= call->first == SYS_mkdir || call->first == SYS_mkdirat;
    if (!counting) continue;
    if (!before_call(child, result.num_calls)) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      break;
    }
    result.names.emplace_back(call->second);
    ++result.num_calls;
  }
  result.outcome = {exit_status(status), read_file(logs / "out"), read_file(logs / "err")};
  return result;
}

}  // namespace

TracedOutcome run_pare_traced(const std::vector<std::string>& arguments, int kill_at, int signal) {
  return trace(arguments, /*counts_from_start=*/false, [&](pid_t child, int call) {
    if (call != kill_at) return true;
    if (signal != SIGKILL) kill(child, signal);
    return signal != SIGKILL;
  });
}

TracedOutcome run_pare_disturbed(const std::vector<std::string>& arguments, int at,
                                 const std::function<void()>& action) {
  return trace(arguments, /*counts_from_start=*/true, [&](pid_t, int call) {
    if (call == at) action();
    return true;
  });
}

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::map<std::string, std::string> promised_files(const fs::path& directory) {
  std::map<std::string, std::string> hashes;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    const std::string name = entry.path().lexically_relative(directory).string();
    if (!entry.is_regular_file() || name == "report.json" || name == "report.html") continue;
    hashes[name] = sha256_file(entry.path());
  }
  return hashes;
}

fs::path family(const std::string& name) {
  return fs::path(kSourceFolder) / "tests" / "golden" / "families" / name;
}

TEST(RunPare, TheVersionForReportsNamesLibTorch) {
  const Outcome report = run_pare({"--version", "--json"});
  ASSERT_EQ(report.status, 0) << report.err;
  const nlohmann::json json = nlohmann::json::parse(report.out);
  EXPECT_EQ(json.at("program"), "pare");
  EXPECT_EQ(json.at("libtorch"), TORCH_VERSION);
}

TEST(RunPare, TracingSeesTheCallsAndKills) {
  const TemporaryFolder folder("trace");
  write_text(folder / "recipe.yaml", "passes: [rtn: {bits: 4, group_size: 32, scales: minmax}]\n");
  const std::vector<std::string> arguments = {"run",     (folder / "recipe.yaml").string(),
                                              "--model", family("llama_gqa_untied").string(),
                                              "--out",   (folder / "out").string()};
  const TracedOutcome killed = run_pare_traced(arguments, 10);
  EXPECT_EQ(killed.outcome.status, 128 + SIGKILL) << killed.outcome.err;
  EXPECT_EQ(killed.num_calls, 10);
  const TracedOutcome whole = run_pare_traced(arguments, -1);
  EXPECT_EQ(whole.outcome.status, 0) << whole.outcome.err;
  EXPECT_GT(whole.num_calls, 30);
}

}  // namespace pare::test
