// Reports as pages: read by Python's HTML parser, and shown by a headless browser where there is one.
#include "compress/report/report_page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "compress/report/html.h"
#include "compress/report/markdown_text.h"
#include "compress/report/runs_page.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/progress.h"
#include "tests/compress/run_pare.h"
#include "tests/expect_error.h"
#include "tests/places.h"

namespace pare::test {
using namespace compress;
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// The browser that this machine has; "" for none.
std::string browser() {
  for (const char* name : {"chromium-headless-shell", "chromium", "google-chrome"}) {
    const std::string path = std::string("/usr/bin/") + name;
    if (fs::exists(path)) return path;
  }
  return "";
}

// What check_page.py says of a page.
Json checked(const fs::path& page, const std::string& with_browser = {}) {
  const std::string line = std::string("python3 '") + kSourceFolder + "/tests/compress/report/check_page.py' '" +
                           page.string() + "' " + with_browser;
  FILE* const pipe = ::popen(line.c_str(), "r");
  std::string text;
  std::array<char, 4096> buffer;
  while (const size_t size = std::fread(buffer.data(), 1, buffer.size(), pipe)) text.append(buffer.data(), size);
  EXPECT_EQ(::pclose(pipe), 0) << page;
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

class ReportPages : public testing::Test {
 protected:
  Outcome run(const std::string& passes, const std::string& out, const std::string& more = {}) {
    write_text(folder_ / "recipe.yaml",
               "model: " + std::string(kSourceFolder) + "/calibration_data/stories260k\npasses:\n" + passes + more);
    return run_pare({"run", (folder_ / "recipe.yaml").string(), "--out", (folder_ / out).string(), "--quiet"});
  }
  TemporaryFolder folder_{"report-pages"};
  const std::string evaluate_ = "evaluate:\n  - perplexity: {text: " + std::string(kSourceFolder) +
                                "/calibration_data/stories.txt, context: 64, windows: 3}\n";
};

TEST_F(ReportPages, ARunHasOneThatSaysWhatItsFilesSay) {
  ASSERT_EQ(run("  - rtn: {bits: 4, group_size: -1}\n", "out", evaluate_).status, 0);
  const Json page = checked(folder_ / "out" / "report.html");
  const Json report = Json::parse(read_text_file(folder_ / "out" / "report.json"));
  const Json manifest = Json::parse(read_text_file(folder_ / "out" / "pare.json"));
  // The KL of tokens, and the layers' errors alone and together, each in two sizes.
  EXPECT_EQ(page.at("pictures"), 6);
  const auto table = std::ranges::find_if(page.at("tables"), [](const Json& t) { return t[0][0] == "layer"; });
  ASSERT_NE(table, page.at("tables").end());
  ASSERT_EQ(table->size(), manifest.at("layers").size() + 1);
  int64_t num_bytes = 0;
  for (size_t i = 0; i < manifest.at("layers").size(); ++i) {
    const Json& layer = manifest.at("layers")[i];
    EXPECT_EQ((*table)[i + 1][0], layer.at("name"));
    num_bytes += report.at("layer_bytes").at(layer.at("name").get<std::string>()).get<int64_t>();
  }
  EXPECT_LT(num_bytes, report.at("output_bytes").get<int64_t>());
  const Json& figures = page.at("tables")[0];
  char perplexity[40];
  std::snprintf(perplexity, sizeof(perplexity), "%.4f", report.at("perplexity")[0].at("perplexity").get<double>());
  EXPECT_EQ(figures[1][2], perplexity);
  // The histogram counts every token.
  const Json& histogram = report.at("perplexity")[0].at("kl_histogram");
  EXPECT_EQ(histogram.at("counts").size(), histogram.at("edges").size() + 1);
  int64_t num_tokens = 0;
  for (const Json& count : histogram.at("counts")) num_tokens += count.get<int64_t>();
  EXPECT_EQ(num_tokens, report.at("perplexity")[0].at("tokens"));
  // verify knows the page.
  const std::string out = (folder_ / "out").string();
  EXPECT_EQ(run_pare({"verify", out}).status, 0);
  write_text(folder_ / "out" / "report.html", "another page");
  const Outcome changed = run_pare({"verify", out});
  EXPECT_EQ(changed.status, 1);
  EXPECT_NE((changed.out + changed.err).find("report.html"), std::string::npos);
  fs::remove(folder_ / "out" / "report.html");
  EXPECT_EQ(run_pare({"verify", out}).status, 1);
}

TEST_F(ReportPages, SeveralRunsStandBesideOneAnother) {
  ASSERT_EQ(run("  - rtn: {bits: 4, group_size: -1}\n", "results/four", evaluate_).status, 0);
  ASSERT_EQ(run("  - rtn: {bits: 8, group_size: -1}\n", "results/eight", evaluate_).status, 0);
  ASSERT_EQ(run("  - rtn: {bits: 2, group_size: -1}\n", "two").status, 0);
  fs::create_directory(folder_ / "results" / "nothing");
  const Outcome outcome = run_pare({"report", (folder_ / "results").string(), (folder_ / "two").string(), "--out",
                                    (folder_ / "page.html").string(), "--markdown"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("nothing' is skipped: it has no pare.json"), std::string::npos) << outcome.err;
  for (const char* row :
       {"\n| two | rtn: 2 bits, a scale per row |", "\n| four | rtn: 4 bits", "\n| eight | rtn: 8 bits"}) {
    EXPECT_NE(outcome.out.find(row), std::string::npos) << row << outcome.out;
  }
  EXPECT_LT(outcome.out.find("| two |"), outcome.out.find("| four |"));  // by size
  const Json page = checked(folder_ / "page.html");
  ASSERT_EQ(page.at("tables")[0].size(), 4u);
  EXPECT_EQ(page.at("tables")[0][1][0], "two");
  EXPECT_EQ(page.at("tables")[0][1].back(), "nothing");
  EXPECT_NE(page.at("text").get<std::string>().find("is skipped: it has no pare.json"), std::string::npos);
  // Nothing is replaced, and nothing made of nothing.
  const Outcome again = run_pare({"report", (folder_ / "two").string(), "--out", (folder_ / "page.html").string()});
  EXPECT_EQ(again.status, 1);
  EXPECT_NE(again.err.find("is there already"), std::string::npos) << again.err;
  const Outcome table = run_pare({"report", (folder_ / "two").string(), "--out", (folder_ / "page.txt").string()});
  EXPECT_EQ(table.status, 2);
  EXPECT_NE(table.err.find("ends in .html"), std::string::npos) << table.err;
  EXPECT_FALSE(fs::exists(folder_ / "page.txt"));
  const Outcome inside =
      run_pare({"report", (folder_ / "two").string(), "--out", (folder_ / "two" / "p.html").string()});
  EXPECT_EQ(inside.status, 1);
  EXPECT_NE(inside.err.find("lies in the model's own folder"), std::string::npos) << inside.err;
  for (const char* empty : {"results/nothing", "missing"}) {
    const Outcome none = run_pare({"report", (folder_ / empty).string()});
    EXPECT_EQ(none.status, 1) << none.out;
  }
  write_text(folder_ / "results" / "nothing" / "pare.json", "{");
  write_text(folder_ / "results" / "nothing" / "report.json", "{}");
  EXPECT_EQ(find_runs({folder_ / "results"}).skipped.size(), 1u);
}

TEST_F(ReportPages, SpeedStandsBesideTheRoofsOfTheMachine) {
  const std::string benchmark = "benchmark: {prefill_tokens: 16, decode_tokens: 8, repetitions: 1}\n";
  ASSERT_EQ(run("  - rtn: {bits: 4, group_size: -1}\n", "out", evaluate_ + benchmark).status, 0);
  ASSERT_EQ(run("  - rtn: {bits: 4, group_size: -1}\n", "results/plain").status, 0);
  const Json report = Json::parse(read_text_file(folder_ / "out" / "report.json"));
  const Json page = checked(folder_ / "out" / "report.html");
  const auto table = std::ranges::find_if(page.at("tables"), [](const Json& t) { return t[0][0] == "what"; });
  ASSERT_NE(table, page.at("tables").end());
  ASSERT_EQ(table->size(), 5u);
  const std::vector<std::pair<std::string, std::string>> rows = {{"prefill of 16 tokens", "this model"},
                                                                 {"prefill of 16 tokens", "original"},
                                                                 {"decode of 8 tokens", "this model"},
                                                                 {"decode of 8 tokens", "original"}};
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ((*table)[i + 1][0], rows[i].first);
    EXPECT_EQ((*table)[i + 1][1], rows[i].second);
  }
  // The shares are rates over roofs, and the rates bytes and operations times speeds.
  for (const Json& result : {report.at("benchmark"), report.at("benchmark").at("reference")}) {
    const auto value = [&](const char* key) { return result.at(key).get<double>(); };
    EXPECT_NEAR(value("decode_gbps"), value("bytes_per_token") * value("decode_tokens_per_second") / 1e9,
                1e-6 * value("decode_gbps"));
    EXPECT_NEAR(value("decode_share"), value("decode_gbps") / value("decode_roof_gbps"), 1e-6);  // of one repetition
    EXPECT_LE(value("decode_lowest_roof_gbps"), value("decode_roof_gbps"));
    EXPECT_NEAR(value("prefill_gflops"),
                value("prefill_linear_flops") / 16.0 * value("prefill_tokens_per_second") / 1e9,
                1e-6 * value("prefill_gflops"));
    EXPECT_NEAR(value("prefill_share"), value("prefill_gflops") / value("prefill_roof_gflops"), 1e-6);
  }
  // The codes are read in place of floats.
  EXPECT_LT(report["benchmark"]["bytes_per_token"], report["benchmark"]["reference"]["bytes_per_token"]);
  const Outcome outcome = run_pare({"report", (folder_ / "out").string(), "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json row = Json::parse(outcome.out).at("runs").at(0);
  EXPECT_EQ(row.at("decode_share"), report["benchmark"]["decode_share"]);
  EXPECT_EQ(row.at("prefill_tokens_per_second"), report["benchmark"]["prefill_tokens_per_second"]);
  EXPECT_NE(runs_page(find_runs({folder_ / "out"})).find("Quality against the speed of decode"), std::string::npos);
  // What `pare bench` has measured is taken where the recipe says nothing of it.
  const Outcome bench = run_pare({"bench", (folder_ / "results" / "plain").string(), "--prefill-tokens", "16",
                                  "--decode-tokens", "8", "--repetitions", "1", "--json"});
  ASSERT_EQ(bench.status, 0) << bench.err;
  EXPECT_FALSE(find_runs({folder_ / "results"}).runs.at(0).decode);
  write_text(folder_ / "results" / "plain.bench.json", bench.out);
  EXPECT_EQ(find_runs({folder_ / "results"}).runs.at(0).decode,
            Json::parse(bench.out).at("decode_tokens_per_second").get<double>());
  // A speed is in no file that is inside the promise of equal bytes.
  EXPECT_EQ(read_text_file(folder_ / "out" / "pare.json").find("tokens_per_second"), std::string::npos);
  // What the model's context does not hold is refused before any work.
  const Outcome long_prompt =
      run("  - rtn: {bits: 4, group_size: -1}\n", "long", "benchmark: {prefill_tokens: 100000}\n");
  EXPECT_EQ(long_prompt.status, 1);
  EXPECT_NE(long_prompt.err.find("100000 tokens do not fit the model's context"), std::string::npos) << long_prompt.err;
}

// Accuracies and recoveries are those that the runs' evaluations say.
TEST_F(ReportPages, TasksAndSpeedsAreColumnsWhereARunHasThem) {
  const std::string tasks = std::string(kSourceFolder) + "/tests/golden/tasks/";
  const auto asks = [&](int limit) {
    return "evaluate:\n  - arc: {file: " + tasks + "arc.jsonl, limit: " + std::to_string(limit) + "}\n";
  };
  ASSERT_EQ(run("  - rtn: {bits: 4, group_size: -1}\n", "all/four", asks(4)).status, 0);
  ASSERT_EQ(run("  - rtn: {bits: 8, group_size: -1}\n", "all/eight", asks(4)).status, 0);
  ASSERT_EQ(run("  - rtn: {bits: 3, group_size: -1}\n", "all/other", asks(3)).status, 0);
  ASSERT_EQ(run("  - rtn: {bits: 2, group_size: -1}\n", "all/plain").status, 0);
  const auto result_of = [&](const std::string& name) {
    return Json::parse(read_text_file(folder_ / "all" / name / "report.json")).at("arc").at(0);
  };
  const auto percent = [](double share, int decimals) { return format_number(100.0 * share, decimals) + " %"; };
  const Outcome outcome = run_pare({"report", (folder_ / "all").string(), "--markdown", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  int num_with_tasks = 0;
  const Json rows = Json::parse(outcome.out).at("runs");
  for (const Json& row : rows) {
    if (!row.contains("tasks")) continue;
    ++num_with_tasks;
    const Json result = result_of(row.at("name")), &task = row.at("tasks").at(0);
    EXPECT_EQ(task.at("name"), "arc, acc_norm");
    EXPECT_EQ(task.at("accuracy"), result.at("acc_norm"));
    if (result.at("acc_norm_recovery").is_number()) {
      EXPECT_EQ(task.at("recovery"), result.at("acc_norm_recovery"));
    }
  }
  EXPECT_EQ(num_with_tasks, 3);
  const std::string table = runs_markdown(find_runs({folder_ / "all"}));
  for (const char* column : {"arc, acc_norm", "arc, acc_norm (2)"}) {  // the second of other questions
    EXPECT_NE(table.find("| " + markdown_text(column) + " |"), std::string::npos) << table;
  }
  EXPECT_NE(table.find(" " + percent(result_of("eight").at("acc_norm"), 2)), std::string::npos) << table;
  EXPECT_EQ(table.find("tokens/s"), std::string::npos) << table;
  // Every row has every column.
  std::istringstream lines(table);
  std::string line, first;
  std::getline(lines, first);
  for (int i = 0; i < 5; ++i) {
    std::getline(lines, line);
    EXPECT_EQ(std::ranges::count(line, '|'), std::ranges::count(first, '|')) << line;
  }
  write_text(folder_ / "all" / "plain.bench.json",
             R"({"decode_tokens_per_second": 12.34, "prefill_tokens_per_second": 567.8})");
  const std::string timed = runs_markdown(find_runs({folder_ / "all"}));
  EXPECT_NE(timed.find("| decode, tokens/s | prefill, tokens/s |"), std::string::npos) << timed;
  EXPECT_NE(timed.find("| 12.3 | 567.8 |"), std::string::npos) << timed;
  write_text(folder_ / "page.html", runs_page(find_runs({folder_ / "all"})));
  const Json page = checked(folder_ / "page.html");
  for (const Json& row : page.at("tables")[0]) EXPECT_EQ(row.size(), page.at("tables")[0][0].size());
  EXPECT_NE(page.at("tables")[0][0].dump().find("arc, acc_norm"), std::string::npos);
}

TEST(BestRuns, AreThoseThatNoOtherBeats) {
  std::vector<RunFigures> runs;
  const auto add = [&](double bytes, std::optional<double> kl, const std::string& data) {
    RunFigures run;
    run.bytes = bytes;
    run.kl = kl;
    run.perplexity = 1.0;
    run.data = data;
    runs.push_back(run);
  };
  add(1, 9.0, "a");
  add(2, 10.0, "a");
  add(3, 5.0, "a");
  add(3, 4.0, "a");
  add(4, 0.1, "b");
  add(5, 3.0, "a");
  // By brute force: another one is as small and better, or smaller and as good.
  std::vector<size_t> expected;
  for (size_t i = 0; i < runs.size(); ++i) {
    const bool is_beaten = std::ranges::any_of(runs, [&](const RunFigures& other) {
      return other.data == "a" && other.bytes <= runs[i].bytes && *other.kl <= *runs[i].kl &&
             (other.bytes < runs[i].bytes || *other.kl < *runs[i].kl);
    });
    if (runs[i].data == "a" && !is_beaten) expected.push_back(i);
  }
  EXPECT_EQ(best_runs(runs, "a"), expected);
  EXPECT_TRUE(best_runs(runs, "c").empty());
  // By speed, of which more is better; the first has none.
  for (size_t i = 1; i < runs.size(); ++i) runs[i].decode = 10.0 + static_cast<double>(i % 3);
  const auto slowness = [](const RunFigures& run) { return run.decode ? std::optional(-*run.decode) : std::nullopt; };
  EXPECT_EQ(best_runs(runs, "a", slowness), (std::vector<size_t>{5}));
}

// A report whose every text is somebody else's.
TEST(ReportPage, NoTextLeavesItsPlace) {
  const std::string evil = "</td></table><script>alert(1)</script><img src=x onerror=y> & \"'\x1b\n]]>";
  Json layers = Json::array();
  for (int i = 0; i < 3; ++i) {
    layers.push_back({{"name", "model.layers." + std::to_string(i) + "." + evil},
                      {"shape", {4, 4}},
                      {"method", evil},
                      {"bits", 4},
                      {"group_size", 2},
                      {"symmetric", false},
                      {"pattern", evil},
                      {"relative_error", i == 0 ? 0.0 : 0.1 * i},
                      {"error_measure", evil},
                      {"events", {evil}}});
  }
  const Json manifest = {
      {"pare", evil},
      {"recipe", evil},
      {"layers", layers},
      {"engines", {{{"engine", evil}, {"loads", false}, {"reasons", {evil}}}}},
      {"evaluations",
       {{{"data", evil},
         {"figures", {{{"name", "x"}, {"meaning", evil}, {"value", 1.5}, {"reference", 2.0}, {"decimals", 3}}}}}}}};
  const Json curve = {{{"step", 0}, {"tokens", 0}, {"validation_perplexity", 9.0}},
                      {{"step", 5}, {"tokens", 50}, {"loss", 2.0}, {"validation_perplexity", 1e300}}};
  const Json report = {
      {"output_bytes", 10},
      {"source_bytes", 20},
      {"bits_per_weight", 4.0},
      {"seconds", 1.0},
      {"peak_memory_bytes", 5},
      {"stage_seconds", {{evil, 1.0}}},
      {"events", {evil}},
      {"training", {{"kept_step", 5}, {"curve", curve}}},
      {"sensitivity",
       {{"label", evil},
        {"groups",
         {{{"name", evil},
           {"part", evil},
           {"scheme", evil},
           {"weights", 4},
           {"error", 0.5},
           {"kl", {{"value", 0.1}}}}}}}},
      {"budget",
       {{"weights", 100},
        {"size_bytes", 50},
        {"predicted_loss", 0.5},
        {"curve", {{{"size_bytes", 40}, {"predicted_loss", 1.0}}, {{"size_bytes", 60}, {"predicted_loss", 0.0}}}},
        {"uniform", {{{"scheme", evil}, {"size_bytes", 45}, {"predicted_loss", 0.7}}}},
        {"groups", {{{"name", evil}, {"bits", 4}, {"group_size", 32}, {"size_bytes", 8}, {"predicted_loss", 0.1}}}}}}};
  TemporaryFolder folder("evil-page");
  write_text(folder / "page.html", report_page(report.dump(), manifest.dump(), evil));
  const Json page = checked(folder / "page.html");
  EXPECT_NE(page.at("text").get<std::string>().find("<script>alert(1)</script>"), std::string::npos);  // as a text
  EXPECT_EQ(page.at("pictures"), 8);
  expect_error<std::runtime_error>([&] { report_page("{}", "{}", "x"); }, {"not what pare writes"});
  expect_error<std::runtime_error>([&] { report_page("[", "{}", "x"); }, {"report.json"});
}

TEST_F(ReportPages, ABrowserSortsItsTablesAndShowsItAtEveryWidth) {
  const std::string program = browser();
  if (program.empty()) GTEST_SKIP() << "no headless browser: apt-get install chromium-headless-shell";
  ASSERT_EQ(run("  - rtn: {bits: 4, group_size: -1}\n", "out", evaluate_).status, 0);
  checked(folder_ / "out" / "report.html", program);
}

}  // namespace
}  // namespace pare::test
