// Checks recipes of several phases. Nothing beside the output may be touched, and what another recipe has left in
// OUT.partial must be found before any work.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <functional>

#include "tests/compress/run/train_model_fixture.h"

namespace pare::test {
using namespace runtime;
namespace {

class Phases : public TrainModel {
 protected:
  static constexpr const char* kPrune = "  - magnitude: {pattern: \"2:4\"}\n";
  std::string train(int64_t total_tokens = 600) const {
    return distill("total_tokens: " + std::to_string(total_tokens));
  }
  static std::string of(const std::string& items) { return "model: " + kModel + "\npasses:\n" + items; }

  // Returns every name below the folder, with the target of a link and the content of a file.
  std::map<std::string, std::string> tree(const fs::path& folder) const {
    std::map<std::string, std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      const std::string name = entry.path().lexically_relative(folder).string();
      found[name] = entry.is_symlink()        ? "-> " + fs::read_symlink(entry.path()).string()
                    : entry.is_regular_file() ? read_file(entry.path())
                                              : "folder";
    }
    return found;
  }
  std::string run_ok(const std::string& yaml, const std::string& out, const std::vector<std::string>& more = {}) {
    const Outcome outcome = run_pare(command(yaml, out, more));
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.out + outcome.err;
  }
  // Kills the run before the first rename at which is_time() holds. From then on is_time() must hold at each rename
  // before the output's own.
  void kill_when(const std::string& yaml, const std::string& out, const std::function<bool()>& is_time) {
    const TracedOutcome whole = run_pare_traced(command(yaml, out + "-whole", {"--quiet"}), -1);
    ASSERT_EQ(whole.outcome.status, 0) << whole.outcome.err;
    std::vector<int> renames;
    for (int call = 0; call < whole.num_calls; ++call) {
      if (whole.names[static_cast<size_t>(call)].starts_with("rename")) renames.push_back(call);
    }
    const auto is_late = [&](int call) {
      fs::remove_all(folder_ / (out + ".partial"));
      EXPECT_EQ(run_pare_traced(command(yaml, out, {"--quiet"}), call).outcome.status, 128 + SIGKILL);
      return is_time();
    };
    const auto first = std::partition_point(renames.begin(), renames.end(), [&](int call) { return !is_late(call); });
    ASSERT_NE(first, renames.end()) << "there is no such moment";
    EXPECT_TRUE(is_late(*first));
  }
  fs::path partial() const { return folder_ / "out.partial"; }
  bool has_first() const { return fs::exists(partial() / "phase-1" / "made"); }
  // Expects a refusal before any phase works, with nothing changed.
  void expect_refused_untouched(const std::string& yaml, const std::string& why) {
    const auto before = tree(partial());
    const Outcome outcome = run_pare(command(yaml, "out"));
    EXPECT_EQ(outcome.status, 1);
    EXPECT_NE(outcome.err.find(why), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("--fresh"), std::string::npos) << outcome.err;
    EXPECT_EQ(tree(partial()), before);
  }
};

// Earlier versions handed on here: a link to a model that the same pass has made.
TEST_F(Phases, WhatALinkBesideTheOutputLeadsToStays) {
  run_ok(of(kPrune), "pruned");
  const auto pruned = tree(folder_ / "pruned");
  fs::create_directory_symlink("pruned", folder_ / "out.phase-1");
  run_ok(of(kPrune + train()), "out");
  EXPECT_EQ(tree(folder_ / "pruned"), pruned);
  EXPECT_TRUE(fs::is_symlink(folder_ / "out.phase-1"));
}

// A user's model lies there. It is whole, is what the first phase would make, and has one of the user's files in it.
// Neither a run, nor a refused one, nor a dry run may read it or remove anything.
TEST_F(Phases, AModelBesideTheOutputIsNeitherReadNorRemoved) {
  run_ok(of(kPrune), "out.phase-1");
  write_text(folder_ / "out.phase-1" / "notes.json", "{\"mine\": true}");
  fs::create_directories(folder_ / "out.phase-1.partial");
  write_text(folder_ / "out.phase-1.partial" / "mine", "mine");
  const std::string yaml = of(kPrune + train());
  const auto beside = [&] {
    auto found = tree(folder_ / "out.phase-1");
    found.merge(tree(folder_ / "out.phase-1.partial"));
    return found;
  };
  const auto before = beside();
  run_ok(yaml, "out", {"--dry-run"});
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  run_ok(yaml, "out");
  EXPECT_FALSE(fs::exists(folder_ / "out" / "notes.json"));
  EXPECT_FALSE(fs::exists(partial()));
  const auto made = tree(folder_ / "out");
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{{"--dry-run"}, {}, {"--fresh"}}) {
    EXPECT_EQ(run_pare(command(yaml, "out", more)).status, 1) << "the output exists";
  }
  EXPECT_EQ(beside(), before);
  EXPECT_EQ(tree(folder_ / "out"), made);
}

// The things that would be discarded by name lie elsewhere.
TEST_F(Phases, LinksInTheClaimedFolderAreRefusedAndNotFollowed) {
  const std::string yaml = of(kPrune + train());
  kill_when(yaml, "out", [&] { return has_first() && fs::exists(partial() / "training" / "state"); });
  for (const std::string name : {"training", "progress", "phase-1", "phase-1/made"}) {
    const fs::path place = partial() / name, elsewhere = folder_ / "elsewhere";
    fs::rename(place, elsewhere);
    fs::create_directory_symlink(elsewhere, place);
    const auto before = tree(folder_ / "elsewhere");
    for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{{}, {"--fresh"}}) {
      const Outcome outcome = run_pare(command(yaml, "out", more));
      EXPECT_EQ(outcome.status, 1) << name;
      EXPECT_NE(outcome.err.find(name + "' is a link"), std::string::npos) << outcome.err;
    }
    EXPECT_EQ(tree(elsewhere), before) << name;
    fs::remove(place);
    fs::rename(elsewhere, place);
  }
  // The whole folder belongs to another output.
  fs::rename(partial(), folder_ / "other.partial");
  fs::create_directory_symlink("other.partial", partial());
  const auto before = tree(folder_ / "other.partial");
  EXPECT_EQ(run_pare(command(yaml, "out", {"--fresh"})).status, 1);
  EXPECT_EQ(tree(folder_ / "other.partial"), before);
  fs::remove(partial());
  fs::rename(folder_ / "other.partial", partial());
  run_ok(yaml, "out");
  EXPECT_EQ(promised_files(folder_ / "out"), promised_files(folder_ / "out-whole"));
}

TEST_F(Phases, AFolderOfSomebodyElseInTheirPlaceIsFoundBeforeTheFirst) {
  fs::create_directories(partial() / "phase-1");
  write_text(partial() / "phase-1" / "mine", "mine");
  const Outcome outcome = run_pare(command(of(kPrune + train()), "out"));
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("not an unfinished output of pare"), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find("phase 1 of 2"), std::string::npos) << outcome.err;
  EXPECT_EQ(tree(partial()), (std::map<std::string, std::string>{{"phase-1", "folder"}, {"phase-1/mine", "mine"}}));
}

// A run of one phase has left something where the second of two works.
TEST_F(Phases, RemainsOfARecipeOfOnePhaseAreFoundBeforeTheFirstOfTwo) {
  kill_when(of(train()), "out", [&] { return fs::exists(partial() / "training" / "state"); });
  expect_refused_untouched(of(kPrune + train()), "unfinished run of another recipe");
  run_ok(of(kPrune + train()), "two");
  run_ok(of(kPrune + train()), "out", {"--fresh"});
  EXPECT_EQ(promised_files(folder_ / "out"), promised_files(folder_ / "two"));
  EXPECT_FALSE(fs::exists(partial()));
}

// This is the other way round, and there are phases of the same number that differ.
TEST_F(Phases, RemainsOfOtherPhasesAreFoundBeforeAnyWork) {
  const std::string two = of(kPrune + train()), three = of(kPrune + train(800) + train());
  kill_when(two, "out", [&] { return has_first() && fs::exists(partial() / "training" / "state"); });
  expect_refused_untouched(of(kPrune), "unfinished run of another recipe");
  expect_refused_untouched(of(kPrune + train(800)), "unfinished run with another recipe");
  expect_refused_untouched(of("  - magnitude: {pattern: \"1:4\"}\n" + train()), "unfinished run with another recipe");
  expect_refused_untouched(three, "unfinished run of another recipe");
  run_ok(two, "out");
  EXPECT_EQ(promised_files(folder_ / "out"), promised_files(folder_ / "out-whole"));
  fs::remove_all(folder_ / "out");
  fs::remove_all(folder_ / "out-whole");
  // The difference is in the first phase.
  kill_when(two, "out", [&] { return has_first() || fs::exists(partial() / "phase-1" / "progress" / "00001.json"); });
  EXPECT_FALSE(has_first());
  expect_refused_untouched(of(train()), "unfinished run of another recipe");
  // If nothing of the differing phase has been finished, the run goes on from the other phases.
  run_ok(three, "three");
  run_ok(three, "out");
  EXPECT_EQ(promised_files(folder_ / "out"), promised_files(folder_ / "three"));
}

}  // namespace
}  // namespace pare::test
