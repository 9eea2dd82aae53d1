// What tests of `pare export` do again and again.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/model/checkpoint.h"
#include "runtime/system/atomic_file.h"
#include "tests/compress/run_pare.h"

namespace pare::test {

// Models that `pare export` writes in another format, in a folder of their own.
class Export : public testing::Test {
 protected:
  std::filesystem::path at(const std::string& name) const { return folder_ / name; }
  std::string bytes(const std::string& name) const { return runtime::read_text_file(at(name)); }

  // Runs a recipe on a golden model.
  void make(const std::string& name, const std::string& out, const std::string& recipe) {
    write_text(at("r.yaml"), "model: " + family(name).string() + "\n" + recipe);
    const Outcome run = run_pare({"run", at("r.yaml").string(), "--out", at(out).string(), "--quiet"});
    ASSERT_EQ(run.status, 0) << run.err;
  }
  Outcome exported(const std::string& from, const std::string& to, const std::string& format,
                   const std::string& option = "") {
    std::vector<std::string> words = {"export", at(from).string(), at(to).string(), "--format", format, "--json"};
    if (!option.empty()) words.push_back(option);
    return run_pare(words);
  }
  nlohmann::json export_to(const std::string& from, const std::string& to, const std::string& format,
                           const std::string& option = "") {
    const Outcome outcome = exported(from, to, format, option);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(run_pare({"verify", at(to).string()}).status, 0);
    return outcome.status == 0 ? nlohmann::json::parse(outcome.out) : nlohmann::json();
  }
  void refused(const std::string& from, const std::string& format, std::initializer_list<std::string> words,
               const std::string& option = "") {
    const Outcome outcome = exported(from, "refused", format, option);
    EXPECT_EQ(outcome.status, 1) << outcome.out;
    EXPECT_TRUE(outcome.out.empty());
    for (const std::string& word : words) EXPECT_NE(outcome.err.find(word), std::string::npos) << outcome.err;
    EXPECT_FALSE(std::filesystem::exists(at("refused")));
    EXPECT_FALSE(std::filesystem::exists(at("refused.partial")));
  }

  // W by rows, from the codes: no effective weights, no comparison of the export.
  static std::vector<float> weight(const runtime::Checkpoint& checkpoint, const runtime::LinearDescription& linear) {
    std::vector<float> values(static_cast<size_t>(linear.num_out * linear.num_in));
    runtime::weight_rows(checkpoint.linear(linear), 0, linear.num_out, values);
    return values;
  }
  TemporaryFolder folder_{"export"};
};

inline int64_t count(const nlohmann::json& result, const std::string& passage) {
  int64_t number = 0;
  for (const nlohmann::json& layer : result.at("layers")) number += layer.at("passage") == passage;
  return number;
}

}  // namespace pare::test
