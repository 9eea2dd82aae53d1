// Runs the real `pare` of this build as a user does, and looks at what it leaves.
#pragma once

#include <csignal>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace pare::test {

// A fresh folder that is removed with the object.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& name);
  ~TemporaryFolder();
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct Outcome {
  int status = -1;  // exit status; 128 + signal when it was killed
  std::string out, err;
};

Outcome run_pare(const std::vector<std::string>& arguments);

// Does the same, but sends `signal` when the main thread is about to make the `kill_at`-th system call that touches
// files. Calls count from 0, from the first one that makes a folder; -1 means never. num_calls is how many it made in
// all, or until then.
struct TracedOutcome {
  Outcome outcome;
  int num_calls = 0;
  std::vector<std::string> names;  // the names of the calls, in order
};
TracedOutcome run_pare_traced(const std::vector<std::string>& arguments, int kill_at, int signal = SIGKILL);

// Does the same, but calls `action` while the program stands before its `at`-th such call. Calls count from the first
// one, which loads the program; -1 means never. num_calls counts in the same way.
TracedOutcome run_pare_disturbed(const std::vector<std::string>& arguments, int at,
                                 const std::function<void()>& action);

void write_text(const std::filesystem::path& path, const std::string& text);

// Returns the SHA-256 of every file below `directory` that is inside the promise of equal bytes: all but report.json
// and report.html.
std::map<std::string, std::string> promised_files(const std::filesystem::path& directory);

// Returns tests/golden/families/NAME.
std::filesystem::path family(const std::string& name);

}  // namespace pare::test
