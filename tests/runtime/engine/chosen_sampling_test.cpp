// Whether a value comes from the user, from generation_config.json or from neither, and what is said of it.
#include "runtime/engine/chosen_sampling.h"

#include <gtest/gtest.h>

namespace pare {
using namespace runtime;
namespace {

GenerationConfig drawing_file() {
  GenerationConfig config;
  config.samples = true;
  config.temperature = 0.6;
  config.top_k = 20;
  config.top_p = 0.95;
  return config;
}

TEST(ChosenSampling, WithoutAFileTheRestIsOtherwise) {
  const ChosenSampling chosen = choose_sampling({.top_p = 0.5}, {}, {.temperature = 2.0, .top_k = 3, .seed = 9});
  EXPECT_EQ(chosen.sampling.temperature, 2.0);
  EXPECT_EQ(chosen.sampling.top_k, 3);
  EXPECT_EQ(chosen.sampling.top_p, 0.5);
  EXPECT_EQ(chosen.sampling.min_p, 0.0);
  EXPECT_EQ(chosen.sampling.repetition_penalty, 1.0);
  EXPECT_EQ(chosen.sampling.seed, 9u);
  EXPECT_TRUE(chosen.notes.empty());
}

TEST(ChosenSampling, AFileThatDrawsDecidesWhatIsNotGiven) {
  GenerationConfig file = drawing_file();
  const ChosenSampling chosen = choose_sampling({.top_k = 7}, file, {});
  EXPECT_EQ(chosen.sampling.temperature, 0.6);
  EXPECT_EQ(chosen.sampling.top_k, 7);
  EXPECT_EQ(chosen.sampling.top_p, 0.95);
  ASSERT_EQ(chosen.notes.size(), 1u);
  EXPECT_EQ(chosen.notes[0],
            "tokens are drawn as generation_config.json says: temperature 0.6, top-p 0.95 "
            "(--temperature 0 takes the most probable ones)");
  file.min_p = 0.1;
  EXPECT_EQ(choose_sampling({}, file, {}).sampling.min_p, 0.1);
  EXPECT_NE(choose_sampling({}, file, {}).notes[0].find("min-p 0.1"), std::string::npos);
  EXPECT_EQ(choose_sampling({.min_p = 0.2}, file, {}).sampling.min_p, 0.2);
}

TEST(ChosenSampling, AtTemperatureZeroTheCutsOfTheFileDoNotCount) {
  const ChosenSampling chosen = choose_sampling({.temperature = 0.0}, drawing_file(), {});
  EXPECT_EQ(chosen.sampling.temperature, 0.0);
  EXPECT_EQ(chosen.sampling.top_k, 0);
  EXPECT_EQ(chosen.sampling.top_p, 1.0);
  EXPECT_TRUE(chosen.notes.empty());
}

TEST(ChosenSampling, ThePenaltyOfTheFileCountsForGreedyTexts) {
  GenerationConfig file;
  file.repetition_penalty = 1.1;
  file.not_applied = {"num_beams 2"};
  const ChosenSampling chosen = choose_sampling({}, file, {});
  EXPECT_EQ(chosen.sampling.temperature, 0.0);
  EXPECT_EQ(chosen.sampling.repetition_penalty, 1.1);
  ASSERT_EQ(chosen.notes.size(), 2u);
  EXPECT_NE(chosen.notes[0].find("generation_config.json says: repetition-penalty 1.1"), std::string::npos);
  EXPECT_EQ(chosen.notes[1], "generation_config.json asks for what pare does not apply: num_beams 2");
  const ChosenSampling without = choose_sampling({.repetition_penalty = 1.0}, file, {});
  EXPECT_EQ(without.sampling.repetition_penalty, 1.0);
  EXPECT_EQ(without.notes.size(), 1u);
}

}  // namespace
}  // namespace pare
