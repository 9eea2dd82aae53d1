#include "runtime/commands/version_report.h"

#include <gtest/gtest.h>

#include <regex>

#include "tests/runtime/commands/pare_runtime.h"
#include "tests/runtime/system/tested_isas.h"

namespace pare {
namespace {

namespace fs = std::filesystem;

class VersionReport : public PareRuntime {
 protected:
  // Returns what a shell's command line prints, without the end of its last line. Expects that its exit status is
  // `status`.
  std::string printed(const std::string& line, int status = 0) const {
    const fs::path out = folder_.path() / "printed";
    const int ended = std::system(("{ " + line + "; } >" + out.string() + " 2>/dev/null").c_str());
    EXPECT_EQ(WIFEXITED(ended) ? WEXITSTATUS(ended) : -1, status) << line;
    std::string text = file_text(out);
    if (text.ends_with('\n')) text.pop_back();
    return text;
  }
  static bool has_git() { return std::system("git --version >/dev/null 2>&1") == 0; }
};

TEST_F(VersionReport, NamesWhatAReportOfAFaultNeeds) {
  const nlohmann::json report = run_json("--version");
  std::vector<std::string> keys;
  for (const auto& [key, value] : report.items()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"commit", "compiler", "cuda", "isa", "libtorch", "model_types", "modified",
                                            "program", "version"}));
  EXPECT_EQ(report["program"], "pare-runtime");
  EXPECT_EQ("pare-runtime " + report["version"].get<std::string>() + "\n", run("--version").out);
  EXPECT_TRUE(report["libtorch"].is_null());
  EXPECT_TRUE(report["cuda"].is_boolean());
  EXPECT_TRUE(std::regex_search(report["compiler"].get<std::string>(), std::regex(R"(^(GCC|clang) \d+\.\d+\.\d+)")))
      << report["compiler"];
  const auto holds = [&](const char* kind, const char* type) {
    const nlohmann::json& types = report["model_types"][kind];
    return std::find(types.begin(), types.end(), type) != types.end();
  };
  EXPECT_TRUE(holds("decoders", "llama") && holds("decoders", "qwen3_moe") && holds("encoders", "roberta"));
  EXPECT_TRUE(holds("with_images", "gemma3") && holds("with_images", "qwen3_vl"));
  EXPECT_TRUE(holds("gguf", "llama") && !holds("gguf", ""));
  const Outcome held = run("--version --json", "env PARE_ISA=" + baseline_name());
  EXPECT_EQ(nlohmann::json::parse(held.out)["isa"], baseline_name());
}

// The test does not know whether the commit is the newest: that depends on when the program was built.
TEST_F(VersionReport, ItsCommitIsOneOfTheSources) {
  const nlohmann::json report = run_json("--version");
  const std::string commit = report["commit"].get<std::string>();
  const std::string git = std::string("git -C ") + kSourceFolder;
  if (!has_git() || std::system((git + " ls-files --error-unmatch CMakeLists.txt >/dev/null 2>&1").c_str()) != 0) {
    EXPECT_EQ(commit, "unknown");
    EXPECT_TRUE(report["modified"].is_null());
    return;
  }
  EXPECT_TRUE(std::regex_match(commit, std::regex("[0-9a-f]{40}"))) << commit;
  EXPECT_EQ(printed(git + " cat-file -t " + commit), "commit");
  EXPECT_TRUE(report["modified"].is_boolean());
}

TEST_F(VersionReport, OtherWordsAreRefused) {
  expect_failure("--version --jsn", 2, {"'--jsn'", "--help"});
  expect_failure("--version eval", 2, {"'eval'"});
  expect_failure("--version --json eval", 2, {"'eval'"});
}

// Tests the source file that a build writes, for a folder in every state.
TEST_F(VersionReport, TheBuildsSourceFollowsTheCommit) {
  const fs::path sources = folder_.path() / "sources", made = folder_.path() / "made.cpp";
  const std::string git = "git -C " + sources.string() + " -c user.name=a -c user.email=b ";
  const auto write = [&] {
    printed("cmake -D SOURCE=" + sources.string() + " -D OUTPUT=" + made.string() + " -P " + kSourceFolder +
            "/runtime/commands/write_source_state.cmake");
    std::smatch found;
    const std::string text = file_text(made);
    EXPECT_TRUE(std::regex_search(text, found, std::regex(R"re(commit = "(\w+)", \.is_modified = ([\w:]+)\})re")))
        << text;
    return std::pair(found[1].str(), found[2].str());
  };
  const std::pair<std::string, std::string> unknown = {"unknown", "std::nullopt"};
  fs::create_directory(sources);
  std::ofstream(sources / "CMakeLists.txt") << "# one\n";
  EXPECT_EQ(write(), unknown);
  if (!has_git()) GTEST_SKIP() << "no git";
  printed(git + "init");
  EXPECT_EQ(write(), unknown);  // no commit yet
  printed(git + "add CMakeLists.txt && " + git + "commit -m one");
  const std::string first = printed(git + "rev-parse HEAD");
  EXPECT_EQ(write(), std::pair(first, std::string("false")));

  const fs::file_time_type long_ago = fs::last_write_time(made) - std::chrono::hours(1);
  fs::last_write_time(made, long_ago);
  std::ofstream(sources / "notes.txt") << "git does not keep this\n";
  EXPECT_EQ(write(), std::pair(first, std::string("false")));
  EXPECT_EQ(fs::last_write_time(made), long_ago);  // nothing is compiled again

  std::ofstream(sources / "CMakeLists.txt") << "# two\n";
  EXPECT_EQ(write(), std::pair(first, std::string("true")));
  printed(git + "commit -a -m two");
  const std::string second = printed(git + "rev-parse HEAD");
  EXPECT_NE(second, first);
  EXPECT_EQ(write(), std::pair(second, std::string("false")));

  // The sources were unpacked inside another repository.
  const fs::path outer = folder_.path() / "outer";
  fs::create_directory(outer);
  fs::rename(sources / ".git", outer / ".git");
  fs::rename(sources, outer / "sources");
  fs::create_directory_symlink(outer / "sources", sources);
  EXPECT_EQ(write(), unknown);
}

}  // namespace
}  // namespace pare
