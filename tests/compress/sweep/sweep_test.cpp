// Grids of recipes: what points they make, and whole sweeps of a small model by the program.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "compress/recipe/recipe.h"
#include "compress/sweep/sweep_points.h"
#include "runtime/system/atomic_file.h"
#include "tests/compress/run_pare.h"
#include "tests/expect_error.h"
#include "tests/places.h"

namespace pare::test {
using namespace compress;
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::vector<std::string> names_of(const std::string& yaml) {
  std::vector<std::string> names;
  const SweepPoints found = sweep_points(yaml, "s.yaml");
  for (const SweepPoint& point : found.points) names.push_back(point.name);
  return names;
}

TEST(SweepPoints, AreEveryChoiceInOrderWithNamesOfTheirValues) {
  const std::string base = "passes: [gptq: {bits: 4}]\nsweep: {grid: ";
  EXPECT_EQ(names_of(base + "{gptq.bits: [3, 4], gptq.group_size: [-1, 32]}}\n"),
            (std::vector<std::string>{"bits-3_group_size--1", "bits-3_group_size-32", "bits-4_group_size--1",
                                      "bits-4_group_size-32"}));
  // A list of maps has the points of all of them, and whole values may be chosen as well.
  EXPECT_EQ(names_of(base + "[{gptq.bits: [3]}, {passes: [[rtn: {bits: 4}], [awq: {}, rtn: {bits: 4}]]}]}\n"),
            (std::vector<std::string>{"bits-3", "rtn-bits-4", "awq-rtn-bits-4"}));
  // Other values in the grid change no name.
  EXPECT_EQ(names_of(base + "{gptq.bits: [2, 3, 4], gptq.group_size: [32]}}\n").back(), "bits-4_group_size-32");
  // What is no name of a file becomes one, and different values keep different names.
  const std::vector<std::string> odd =
      names_of(base + "{gptq.prune: [\"2:4\", \"2 4\", none], gptq.layers: [{exclude: [\"*/../x\"]}]}}\n");
  EXPECT_EQ(std::set<std::string>(odd.begin(), odd.end()).size(), 3u);
  for (const std::string& name : odd) {
    EXPECT_TRUE(name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
                std::string::npos)
        << name;
  }
}

TEST(SweepPoints, AreRecipesWithTheirValues) {
  const SweepPoints found = sweep_points(
      "model: m\noutput: out/s\ncalibration: {text: t.txt, samples: 8}\npasses:\n  - awq: {}\n  - gptq: {bits: 4}\n"
      "    layers: {exclude: [\"*.k\"]}\nhead: {bits: 8}\nsweep:\n  grid: {gptq.bits: [3], head.group_size: [32]}\n",
      "s.yaml");
  ASSERT_EQ(found.points.size(), 1u);
  EXPECT_EQ(found.output, "out/s");
  EXPECT_TRUE(found.statistics.starts_with("statistics-") && found.statistics.ends_with(".h5"));
  const Recipe recipe = parse_recipe(found.points[0].recipe, "p.yaml");
  EXPECT_EQ(recipe.model, "m");
  EXPECT_TRUE(recipe.output.empty());
  EXPECT_FALSE(recipe.sweep);
  EXPECT_EQ(recipe.calibration->statistics, found.statistics);
  EXPECT_EQ(recipe.passes[1].options->grid()->bits, 3);
  EXPECT_EQ(recipe.passes[1].exclude, std::vector<std::string>{"*.k"});
  EXPECT_EQ(recipe.head->bits, 8);
  EXPECT_EQ(recipe.head->group_size, 32);
  EXPECT_EQ(parse_recipe(found.points[0].alone, "p.yaml").calibration->text, "t.txt");
  // Another calibration has another file of statistics, so that what was made with the first is not taken for its own.
  const auto statistics_of = [](const std::string& calibration) {
    return sweep_points("calibration: " + calibration + "\npasses: [gptq: {}]\nsweep: {grid: {gptq.bits: [3]}}\n", "s")
        .statistics;
  };
  EXPECT_EQ(statistics_of("{text: t.txt, samples: 8}"), found.statistics);
  EXPECT_NE(statistics_of("{text: t.txt, samples: 9}"), found.statistics);
  EXPECT_EQ(statistics_of("{statistics: own.h5}"), "");
  EXPECT_EQ(sweep_points("calibration: {text: t}\npasses: [gptq: {}]\nsweep: {grid: {gptq.bits: [3]}, "
                         "statistics: false}\n",
                         "s")
                .statistics,
            "");
  // An alias is changed in one of its places alone.
  const SweepPoints aliased =
      sweep_points("passes:\n  - rtn: &o {bits: 4}\nhead: *o\nsweep: {grid: {rtn.bits: [3]}}\n", "s");
  const Recipe unshared = parse_recipe(aliased.points[0].recipe, "p");
  EXPECT_EQ(unshared.passes[0].options->grid()->bits, 3);
  EXPECT_EQ(unshared.head->bits, 4);
}

TEST(SweepPoints, HostileGridsAreRefusedWithTheirPlace) {
  const auto refused = [](const std::string& rest, std::initializer_list<std::string> words) {
    const std::string yaml = "passes: [gptq: {}]\n" + rest;
    expect_error<std::invalid_argument>([&] { sweep_points(yaml, "s.yaml"); }, words);
  };
  refused("", {"s.yaml:1:", "found no 'sweep'", "pare run"});
  refused("sweep: 3\n", {"s.yaml:2:", "expected a map"});
  refused("sweep: {}\n", {"s.yaml:2:", "'grid' is missing"});
  refused("sweep: {grid: {}}\n", {"s.yaml:2:", "at least one key"});
  refused("sweep: {grid: []}\n", {"s.yaml:2:", "an empty list"});
  refused("sweep: {grid: {gptq.bits: []}}\n", {"s.yaml:2:", "at least one value"});
  refused("sweep: {grid: {gptq.bits: 3}}\n", {"s.yaml:2:", "expected a list"});
  refused("sweep: {grid: {gptq.bits: [3]}, statistic: true}\n", {"s.yaml:2:", "statistics"});
  refused("sweep: {grid: {gptq.bits: [3, 3]}}\n", {"s.yaml:2:", "bits-3 is there twice"});
  refused("sweep: {grid: [{gptq.bits: [3]}, {gptq.bits: [3]}]}\n", {"bits-3 is there twice"});
  refused("sweep: {grid: {gptq.bits: [3], passes.gptq.bits: [4]}}\n", {"stands twice"});
  refused("sweep: {grid: {gtpq.bits: [3]}}\n", {"s.yaml:2:", "did you mean 'gptq'"});
  refused("sweep: {grid: {rtn.bits: [3]}}\n", {"passes.rtn", "no such place"});
  refused("sweep: {grid: {gptq..bits: [3]}}\n", {"a dot between them"});
  refused("sweep: {grid: {.: [3]}}\n", {"a dot between them"});
  refused("sweep: {grid: {gptq.bits.deep: [3]}}\n", {"gptq.bits", "no such place"});
  for (const char* shared : {"model", "output", "calibration.samples", "sweep.grid"}) {
    refused(std::string("sweep: {grid: {") + shared + ": [3]}}\n", {"all points have one"});
  }
  std::string values = "1";
  for (int i = 2; i <= 40; ++i) values += ", " + std::to_string(i);
  refused("sweep: {grid: {gptq.bits: [" + values + "], gptq.group_size: [" + values + "]}}\n", {"more than 1000"});
  // Far more than can be counted.
  std::string many = "sweep:\n  grid:\n";
  for (int i = 0; i < 60; ++i) many += "    gptq.a" + std::to_string(i) + ": [" + values + "]\n";
  refused(many, {"more than 1000"});
  // Aliases that stand for more than memory holds.
  std::string bomb = "bomb:\n  a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string last = "*a" + std::to_string(i - 1);
    bomb += "  a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + last;
    for (int k = 1; k < 10; ++k) bomb += ", " + last;
    bomb += "]\n";
  }
  refused(bomb + "sweep: {grid: {gptq.bits: [3]}}\n", {"more values than any recipe has"});
}

class Sweeps : public testing::Test {
 protected:
  std::string recipe(const std::string& grid, const std::string& more = {}) const {
    const std::string data = std::string(kSourceFolder) + "/calibration_data/";
    return "model: " + data + "stories260k\ncalibration: {text: " + data +
           "stories.txt, samples: 8, tokens: 64}\npasses:\n  - gptq: {bits: 4, group_size: -1}\nevaluate:\n" +
           "  - perplexity: {text: " + data + "stories.txt, context: 64, windows: 3}\n" + more +
           "sweep:\n  grid: " + grid + "\n";
  }
  std::vector<std::string> arguments(const std::string& out) const {
    return {"sweep", (folder_ / "sweep.yaml").string(), "--out", (folder_ / out).string()};
  }
  Outcome sweep(const std::string& yaml, const std::string& out, std::vector<std::string> more = {"--quiet"}) const {
    write_text(folder_ / "sweep.yaml", yaml);
    std::vector<std::string> all = arguments(out);
    all.insert(all.end(), more.begin(), more.end());
    return run_pare(all);
  }
  // The promised files of every point.
  std::map<std::string, std::string> promised(const std::string& out) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(folder_ / out)) {
      if (!entry.is_directory()) continue;
      for (const auto& [name, hash] : promised_files(entry.path())) {
        files[entry.path().filename().string() + "/" + name] = hash;
      }
    }
    return files;
  }
  TemporaryFolder folder_{"sweeps"};
};

TEST_F(Sweeps, PointsHaveTheBytesOfTheirRecipesRunAloneAndStandBesideOneAnother) {
  const std::string grid = "[{gptq.bits: [3, 8]}, {passes: [[rtn: {bits: 4, group_size: -1}]]}]";
  const Outcome dry = sweep(recipe(grid), "out", {"--dry-run"});
  ASSERT_EQ(dry.status, 0) << dry.err;
  for (const char* name : {"bits-3: ", "bits-8: ", "rtn-bits-4-group_size-1: ", "in all 3 points"}) {
    EXPECT_NE(dry.out.find(name), std::string::npos) << name << dry.out;
  }
  EXPECT_FALSE(fs::exists(folder_ / "out"));

  const Outcome outcome = sweep(recipe(grid), "out");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* row : {"| bits-3 | gptq: 3 bits", "| bits-8 | gptq: 8 bits", "| rtn-bits-4-group\\_size-1 | rtn"}) {
    EXPECT_NE(outcome.out.find(row), std::string::npos) << row << outcome.out;
  }
  EXPECT_NE(read_text_file(folder_ / "out" / "report.html").find("bits-8"), std::string::npos);
  int num_statistics = 0;
  for (const auto& entry : fs::directory_iterator(folder_ / "out")) num_statistics += entry.path().extension() == ".h5";
  EXPECT_EQ(num_statistics, 1);
  for (const std::string name : {"bits-3", "rtn-bits-4-group_size-1"}) {
    const Outcome alone = run_pare({"run", (folder_ / "out" / (name + ".yaml")).string(), "--out",
                                    (folder_ / ("alone-" + name)).string(), "--quiet"});
    ASSERT_EQ(alone.status, 0) << alone.err;
    EXPECT_EQ(promised_files(folder_ / ("alone-" + name)), promised_files(folder_ / "out" / name));
    EXPECT_EQ(run_pare({"verify", (folder_ / "out" / name).string()}).status, 0);
  }
  // `pare report` takes the folder.
  const Outcome report = run_pare({"report", (folder_ / "out").string()});
  EXPECT_EQ(report.status, 0) << report.err;
  EXPECT_NE(report.out.find("| bits-3 |"), std::string::npos);

  // What is there is kept. Other values in the grid run alone.
  const auto time_of = [&] { return fs::last_write_time(folder_ / "out" / "bits-3" / "report.json"); };
  const auto before = time_of();
  const Outcome more =
      sweep(recipe("[{gptq.bits: [2, 3, 8]}, {passes: [[rtn: {bits: 4, group_size: -1}]]}]"), "out", {"--json"});
  ASSERT_EQ(more.status, 0) << more.err;
  const Json json = Json::parse(more.out);
  std::map<std::string, std::string> status;
  for (size_t i = 0; i < 4; ++i) status[json["points"][i]["name"]] = json["points"][i]["status"];
  EXPECT_EQ(status, (std::map<std::string, std::string>{{"bits-2", "done"},
                                                        {"bits-3", "made already"},
                                                        {"bits-8", "made already"},
                                                        {"rtn-bits-4-group_size-1", "made already"}}));
  EXPECT_EQ(time_of(), before);

  // Results of another recipe are not taken for those of this one.
  const Outcome changed = sweep(recipe(grid, "strict: true\n"), "out");
  EXPECT_EQ(changed.status, 1);
  EXPECT_NE(changed.err.find("was made by another recipe"), std::string::npos) << changed.err;
  EXPECT_EQ(time_of(), before);
  // A recipe with a grid is no run.
  const Outcome run = run_pare({"run", (folder_ / "sweep.yaml").string(), "--out", (folder_ / "run").string()});
  EXPECT_EQ(run.status, 1);
  EXPECT_NE(run.err.find("pare sweep"), std::string::npos) << run.err;
}

TEST_F(Sweeps, AKilledOneGoesOnWhereItWas) {
  const std::string grid = "{gptq.bits: [3, 8]}";
  write_text(folder_ / "sweep.yaml", recipe(grid));
  const TracedOutcome whole = run_pare_traced(arguments("whole"), -1);
  ASSERT_EQ(whole.outcome.status, 0) << whole.outcome.err;
  const auto expected = promised("whole");
  EXPECT_GT(expected.size(), 8u);
  for (const double share : {0.02, 0.2, 0.4, 0.6, 0.8, 0.97}) {
    const std::string out = "killed-" + std::to_string(static_cast<int>(100 * share));
    const TracedOutcome killed =
        run_pare_traced(arguments(out), static_cast<int>(share * static_cast<double>(whole.num_calls)));
    EXPECT_EQ(killed.outcome.status, 128 + SIGKILL) << share;
    const Outcome again = sweep(recipe(grid), out);
    EXPECT_EQ(again.status, 0) << share << again.err;
    EXPECT_EQ(promised(out), expected) << share;
    EXPECT_TRUE(fs::exists(folder_ / out / "report.html"));
  }
}

// A result whose weights are gone, or cut off, is none.
TEST_F(Sweeps, DamagedResultsAreNamed) {
  const std::string yaml = recipe("{gptq.bits: [3, 8]}");
  ASSERT_EQ(sweep(yaml, "out").status, 0);
  const fs::path weights = folder_ / "out" / "bits-3" / "model.safetensors";
  const auto expect_named = [&](const std::string& what) {
    const Outcome again = sweep(yaml, "out");
    EXPECT_EQ(again.status, 1);
    for (const std::string& word : {std::string("point bits-3"), std::string("damaged"), what, std::string("remove")}) {
      EXPECT_NE(again.err.find(word), std::string::npos) << word << again.err;
    }
    const Outcome report = run_pare({"report", (folder_ / "out").string()});
    EXPECT_EQ(report.status, 0) << report.err;
    EXPECT_EQ(report.out.find("bits-3"), std::string::npos) << report.out;
    EXPECT_NE(report.out.find("bits-8"), std::string::npos) << report.out;
    EXPECT_NE(report.err.find(what), std::string::npos) << report.err;
  };
  fs::resize_file(weights, fs::file_size(weights) - 1);
  expect_named("a truncated file");
  fs::remove(weights);
  expect_named("model.safetensors: listed in pare.json, but missing");
  fs::remove_all(weights.parent_path());
  EXPECT_EQ(sweep(yaml, "out").status, 0);
  EXPECT_EQ(run_pare({"verify", weights.parent_path().string()}).status, 0);
}

TEST_F(Sweeps, AFailingPointLosesNoOther) {
  const std::string yaml = recipe("{gptq.bits: [2, 8]}", "fail_if: {kl: 0.05}\n");
  const Outcome outcome = sweep(yaml, "out");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("1 point has failed"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("bits-2: fail_if"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.out.find("| bits-8 |"), std::string::npos) << outcome.out;
  EXPECT_TRUE(fs::exists(folder_ / "out" / "bits-8" / "pare.json"));
  EXPECT_FALSE(fs::exists(folder_ / "out" / "bits-2"));
  const Outcome json = sweep(yaml, "out", {"--json"});
  EXPECT_EQ(json.status, 1);
  EXPECT_EQ(json.out, "");
}

// The recipe is the same, and its text has changed. New points would start from the statistics of the old one, and
// points that are made did.
TEST_F(Sweeps, StatisticsOfAnEarlierTextAreRefused) {
  const std::string data = std::string(kSourceFolder) + "/calibration_data/", text = (folder_ / "own.txt").string();
  const auto yaml = [&](const std::string& bits) {
    return "model: " + data + "stories260k\ncalibration: {text: " + text +
           ", samples: 2, tokens: 16}\npasses:\n  - gptq: {bits: 4, group_size: -1}\nsweep: {grid: {gptq.bits: [" +
           bits + "]}}\n";
  };
  const std::string all = read_text_file(data + "stories.txt");
  write_text(text, all.substr(0, 4000));
  ASSERT_EQ(sweep(yaml("8"), "out").status, 0);
  write_text(text, all.substr(4000, 4000));
  for (const char* const bits : {"8", "3, 8"}) {  // nothing is left to do for the first
    const Outcome more = sweep(yaml(bits), "out");
    EXPECT_EQ(more.status, 1);
    EXPECT_NE(more.err.find("was taken on other windows than"), std::string::npos) << more.err;
  }
  EXPECT_FALSE(fs::exists(folder_ / "out" / "bits-3"));
  write_text(text, all.substr(0, 4000));
  for (const char* const bits : {"8", "3, 8", "3, 8"}) EXPECT_EQ(sweep(yaml(bits), "out").status, 0);
}

TEST_F(Sweeps, EveryPointIsCheckedBeforeTheFirstRuns) {
  // Group sizes are held against the model, ranges against the options.
  const Outcome group = sweep(recipe("{gptq.group_size: [-1, 32]}"), "out");
  EXPECT_EQ(group.status, 1);
  EXPECT_NE(group.err.find("point group_size-32"), std::string::npos) << group.err;
  EXPECT_NE(group.err.find("none was begun"), std::string::npos) << group.err;
  const Outcome bits = sweep(recipe("{gptq.bits: [4, 11]}"), "out");
  EXPECT_EQ(bits.status, 1);
  EXPECT_NE(bits.err.find("point bits-11:"), std::string::npos) << bits.err;
  EXPECT_NE(bits.err.find("gptq.bits"), std::string::npos) << bits.err;
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  // Places are asked before as well.
  fs::create_directories(folder_ / "out" / "bits-3");
  const Outcome place = sweep(recipe("{gptq.bits: [8, 3]}"), "out");
  EXPECT_EQ(place.status, 1);
  EXPECT_NE(place.err.find("is there already, and is no result"), std::string::npos) << place.err;
  EXPECT_FALSE(fs::exists(folder_ / "out" / "bits-8"));
  fs::remove(folder_ / "out" / "bits-3");
  write_text(folder_ / "out" / "bits-3.yaml", "mine: true\n");
  const Outcome file = sweep(recipe("{gptq.bits: [8, 3]}"), "out");
  EXPECT_EQ(file.status, 1);
  EXPECT_NE(file.err.find("no sweep has written it"), std::string::npos) << file.err;
  EXPECT_EQ(read_text_file(folder_ / "out" / "bits-3.yaml"), "mine: true\n");
}

}  // namespace
}  // namespace pare::test
