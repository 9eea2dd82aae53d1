// Runs MiniLLM, whose student samples what it learns from, and makes finished phases again.
#include <gtest/gtest.h>

#include "tests/compress/run/train_model_fixture.h"

#include <csignal>
#include <cstdlib>

namespace pare::test {
using namespace runtime;
namespace {

// Traced runs are quiet, because lines of progress depend on the clock and count as calls.

// MiniLLM's draws depend on the step, not on the process that makes it.
TEST_F(TrainModel, KilledWhileItSamplesItEndsWithTheSameBytes) {
  const std::string yaml =
      recipe("  - distill: {text: " + text() +
                 ", loss: minillm, prompt_tokens: 8, sampled_tokens: 8, validation_windows: 2, precision: bfloat16, "
                 "validations: 2, batch: 2, total_tokens: 512, teacher: " +
                 kModel + "}\n",
             "student: {layers: 2}\n");
  const TracedOutcome whole = run_pare_traced(command(yaml, "whole", {"--quiet"}), -1);
  ASSERT_EQ(whole.outcome.status, 0) << whole.outcome.err;
  const auto expected = promised_files(folder_ / "whole");
  int state = -1;  // the rename of a state in the middle
  for (int call = 0; call < whole.num_calls; ++call) {
    if (whole.names[static_cast<size_t>(call)].starts_with("rename") && call < whole.num_calls * 2 / 3) state = call;
  }
  ASSERT_GE(state, 0);
  ASSERT_EQ(run_pare_traced(command(yaml, "killed", {"--quiet"}), state).outcome.status, 128 + SIGKILL);
  const Outcome resumed = run_pare(command(yaml, "killed"));
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_EQ(promised_files(folder_ / "killed"), expected);
  // With plain text beside the samples, a step has the text's tokens: 2 windows of 64.
  const Json report = Json::parse(read_file(folder_ / "whole" / "report.json"));
  EXPECT_EQ(report.at("training").at("steps"), 4);
}

// If a student's table has rows that the teacher's lacks, none of them is ever drawn.
TEST_F(TrainModel, AStudentWithMoreRowsThanItsTeacherSamplesTheTeachersTokens) {
  const std::string wide = widened_copy("wide");
  const Json report =
      run_json("model: " + kModel + "\npasses:\n  - distill: {student: " + wide + ", text: " + text() +
                   ", loss: minillm, prompt_tokens: 8, sampled_tokens: 24, validation_windows: 2, validations: 1, "
                   "batch: 4, total_tokens: 2048, minillm: {teacher_share: 0, language_model_weight: 0}}\n",
               "wide-trained");
  EXPECT_EQ(report.at("training").at("steps"), 16) << "samples of 32 tokens are all that is trained on";
}

TEST_F(TrainModel, FreshMakesFinishedPhasesAnew) {
  const std::string yaml = "model: " + kModel + "\nstudent: {layers: 2}\npasses:\n" + distill("total_tokens: 1000");
  const TracedOutcome whole = run_pare_traced(command(yaml, "whole", {"--quiet"}), -1);
  ASSERT_EQ(whole.outcome.status, 0) << whole.outcome.err;
  int last_rename = 0;  // the output's own
  for (int call = 0; call < whole.num_calls; ++call) {
    if (whole.names[static_cast<size_t>(call)].starts_with("rename")) last_rename = call;
  }
  ASSERT_EQ(run_pare_traced(command(yaml, "killed", {"--quiet"}), last_rename).outcome.status, 128 + SIGKILL);
  ASSERT_TRUE(fs::exists(folder_ / "killed.partial" / "phase-1" / "made" / "pare.json"));
  fs::copy(folder_ / "killed.partial", folder_ / "other.partial", fs::copy_options::recursive);
  const Outcome other = run_pare(command(yaml, "other"));
  ASSERT_EQ(other.status, 0) << other.err;
  EXPECT_EQ((other.out + other.err).find(" tensors in "), std::string::npos) << "the finished phase is gone on from";
  const Outcome fresh = run_pare(command(yaml, "killed", {"--fresh"}));
  ASSERT_EQ(fresh.status, 0) << fresh.err;
  EXPECT_NE((fresh.out + fresh.err).find(" tensors in "), std::string::npos) << fresh.out << fresh.err;
  EXPECT_EQ(promised_files(folder_ / "killed"), promised_files(folder_ / "whole"));
}

}  // namespace
}  // namespace pare::test
