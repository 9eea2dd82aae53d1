// Runs of MiniLLM, whose student samples what it learns from, and finished phases that are made anew.
#include <gtest/gtest.h>

#include "tests/compress/train/train_model_fixture.h"

#include <csignal>
#include <cstdlib>

namespace pare::test {
namespace {

// MiniLLM's draws are those of the step, whichever process makes it.
TEST_F(TrainModel, KilledWhileItSamplesItEndsWithTheSameBytes) {
  const std::string yaml =
      recipe("  - distill: {text: " + text() +
                 ", loss: minillm, prompt_tokens: 8, sampled_tokens: 8, validation_windows: 2, precision: bfloat16, "
                 "validations: 2, batch: 2, total_tokens: 512, teacher: " +
                 kModel + "}\n",
             "student: {layers: 2}\n");
  const TracedOutcome whole = run_pare_traced(command(yaml, "whole"), -1);
  ASSERT_EQ(whole.outcome.status, 0) << whole.outcome.err;
  const auto expected = promised_files(folder_ / "whole");
  int state = -1;  // the rename of a state in the middle
  for (int call = 0; call < whole.num_calls; ++call) {
    if (whole.names[static_cast<size_t>(call)].starts_with("rename") && call < whole.num_calls * 2 / 3) state = call;
  }
  ASSERT_GE(state, 0);
  ASSERT_EQ(run_pare_traced(command(yaml, "killed"), state).outcome.status, 128 + SIGKILL);
  const Outcome resumed = run_pare(command(yaml, "killed"));
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_EQ(promised_files(folder_ / "killed"), expected);
  // With plain text beside the samples a step has its tokens, 2 windows of 64.
  const Json report = Json::parse(read_file(folder_ / "whole" / "report.json"));
  EXPECT_EQ(report.at("training").at("steps"), 4);
}

// Of a student whose table has rows that the teacher's lacks, none of these is ever drawn.
TEST_F(TrainModel, AStudentWithMoreRowsThanItsTeacherSamplesTheTeachersTokens) {
  const std::string wide = (folder_ / "wide").string();
  fs::create_directories(wide);
  for (const auto& entry : fs::directory_iterator(kModel))
    fs::copy(entry.path(), fs::path(wide) / entry.path().filename());
  const std::string script =
      "import json, sys, numpy\n"
      "from safetensors.numpy import load_file, save_file\n"
      "tensors = load_file(sys.argv[1] + '/model.safetensors')\n"
      "for name in tensors:\n"
      "    if name in ('model.embed_tokens.weight', 'lm_head.weight'):\n"
      "        rows = numpy.tile(tensors[name][:1] * 3, (32, 1))\n"
      "        tensors[name] = numpy.concatenate([tensors[name], rows.astype(tensors[name].dtype)])\n"
      "save_file(tensors, sys.argv[1] + '/model.safetensors', metadata={'format': 'pt'})\n"
      "config = json.load(open(sys.argv[1] + '/config.json'))\n"
      "config['vocab_size'] += 32\n"
      "json.dump(config, open(sys.argv[1] + '/config.json', 'w'))\n";
  write_text(folder_ / "widen.py", script);
  const char* const python = std::getenv("PARE_PYTHON");
  ASSERT_NE(python, nullptr) << "tests need PARE_PYTHON, which 'make test' sets up";
  ASSERT_EQ(std::system((std::string(python) + " " + (folder_ / "widen.py").string() + " " + wide).c_str()), 0);
  const Json report =
      run_json("model: " + kModel + "\npasses:\n  - distill: {student: " + wide + ", text: " + text() +
                   ", loss: minillm, prompt_tokens: 8, sampled_tokens: 24, validation_windows: 2, validations: 1, "
                   "batch: 4, total_tokens: 2048, minillm: {teacher_share: 0, language_model_weight: 0}}\n",
               "wide-trained");
  EXPECT_EQ(report.at("training").at("steps"), 16) << "samples of 32 tokens are all that is trained on";
}

TEST_F(TrainModel, FreshMakesFinishedPhasesAnew) {
  const std::string yaml = "model: " + kModel + "\nstudent: {layers: 2}\npasses:\n" + distill("total_tokens: 1000");
  const TracedOutcome whole = run_pare_traced(command(yaml, "whole"), -1);
  ASSERT_EQ(whole.outcome.status, 0) << whole.outcome.err;
  int last_rename = 0;  // the output's own
  for (int call = 0; call < whole.num_calls; ++call) {
    if (whole.names[static_cast<size_t>(call)].starts_with("rename")) last_rename = call;
  }
  ASSERT_EQ(run_pare_traced(command(yaml, "killed"), last_rename).outcome.status, 128 + SIGKILL);
  ASSERT_TRUE(fs::exists(folder_ / "killed.phase-1" / "pare.json"));
  // A phase that is taken up is not looked at again: one that is made anew is whole.
  write_text(folder_ / "killed.phase-1" / "stray.txt", "x");
  const Outcome fresh = run_pare(command(yaml, "killed", {"--fresh"}));
  ASSERT_EQ(fresh.status, 0) << fresh.err;
  EXPECT_NE((fresh.out + fresh.err).find("student: "), std::string::npos) << fresh.out << fresh.err;
  EXPECT_EQ(promised_files(folder_ / "killed"), promised_files(folder_ / "whole"));
}

}  // namespace
}  // namespace pare::test
