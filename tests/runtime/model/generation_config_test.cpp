// generation_config.json: what is read of it, what is refused, and that its end tokens replace config.json's.
#include "runtime/model/generation_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/model/checkpoint.h"
#include "runtime/system/atomic_file.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

GenerationConfig read(const std::string& text) {
  const TemporaryFolder folder;
  write_file_atomically(folder.path() / kGenerationConfigName, text);
  return read_generation_config(folder.path());
}

TEST(GenerationConfig, AFolderWithoutTheFileDrawsNothing) {
  const TemporaryFolder folder;
  const GenerationConfig config = read_generation_config(folder.path());
  EXPECT_FALSE(config.samples);
  EXPECT_TRUE(config.eos_tokens.empty());
  EXPECT_TRUE(config.not_applied.empty());
}

TEST(GenerationConfig, EndTokensAreOneOrAList) {
  EXPECT_EQ(read(R"({"eos_token_id": 7})").eos_tokens, (std::vector<int32_t>{7}));
  EXPECT_EQ(read(R"({"eos_token_id": [7, 9]})").eos_tokens, (std::vector<int32_t>{7, 9}));
  EXPECT_TRUE(read(R"({"eos_token_id": null})").eos_tokens.empty());
}

// The defaults are transformers': GenerationConfig._get_default_generation_params.
TEST(GenerationConfig, DrawsAsTheFileSaysOnlyWithDoSample) {
  EXPECT_FALSE(read(R"({"temperature": 0.6, "top_k": 20})").samples);
  EXPECT_FALSE(read(R"({"do_sample": false, "temperature": 0.6})").samples);
  EXPECT_FALSE(read(R"({"do_sample": true, "temperature": 0.0})").samples);
  const GenerationConfig all = read(R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95})");
  EXPECT_TRUE(all.samples);
  EXPECT_EQ(all.temperature, 0.6);
  EXPECT_EQ(all.top_k, 20);
  EXPECT_EQ(all.top_p, 0.95);
  const GenerationConfig none = read(R"({"do_sample": true})");
  EXPECT_EQ(none.temperature, 1.0);
  EXPECT_EQ(none.top_k, 50);
  EXPECT_EQ(none.top_p, 1.0);
  EXPECT_EQ(none.min_p, 0.0);
  EXPECT_EQ(read(R"({"do_sample": true, "min_p": 0.1})").min_p, 0.1);
  EXPECT_EQ(read(R"({"do_sample": true, "min_p": 0})").min_p, 0.0);
  EXPECT_EQ(read(R"({"min_p": 0.1})").min_p, 0.0);
}

// The penalty counts without do_sample, too.
TEST(GenerationConfig, ThePenaltyCountsWhereNothingIsDrawn) {
  EXPECT_EQ(read("{}").repetition_penalty, 1.0);
  EXPECT_EQ(read(R"({"repetition_penalty": 1.1})").repetition_penalty, 1.1);
  EXPECT_EQ(read(R"({"do_sample": true, "temperature": 0, "repetition_penalty": 1.1})").repetition_penalty, 1.1);
  for (const std::string value : {"0", "-1", "\"much\""}) {
    const std::string complaint = read(R"({"repetition_penalty": )" + value + "}").complaint;
    EXPECT_NE(complaint.find("repetition_penalty"), std::string::npos) << complaint;
  }
}

TEST(GenerationConfig, WhatIsNotAppliedIsNamed) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(read(R"({"no_repeat_ngram_size": 3, "num_beams": 4})").not_applied,
            (Names{"no_repeat_ngram_size 3", "num_beams 4"}));
  EXPECT_EQ(read(R"({"no_repeat_ngram_size": 0, "min_length": 0, "suppress_tokens": []})").not_applied, Names());
  EXPECT_EQ(read(R"({"suppress_tokens": [1], "stop_strings": ["a"]})").not_applied,
            (Names{"suppress_tokens", "stop_strings"}));
  EXPECT_EQ(read(R"({"typical_p": 0.9})").not_applied, Names());  // nothing is drawn
  EXPECT_EQ(read(R"({"do_sample": true, "typical_p": 0.9})").not_applied, (Names{"typical_p 0.9"}));
}

TEST(GenerationConfig, DamagedFilesAreRefusedWithTheKey) {
  const auto refused = [](const char* text, std::initializer_list<std::string> parts) {
    expect_error<std::invalid_argument>([&] { read(text); }, parts);
  };
  refused("[]", {"generation_config.json", "object"});
  refused(R"({"eos_token_id": "</s>"})", {"generation_config.json", "eos_token_id", "a token id", "</s>"});
  refused(R"({"eos_token_id": [1, "2"]})", {"eos_token_id"});
}

// transformers 5.17 loads models with all of these, and minds what concerns drawing only where tokens are drawn.
TEST(GenerationConfig, ValuesOfDrawingAreMindedWhereTokensAreDrawn) {
  EXPECT_TRUE(read(R"({"eos_token_id": -1})").eos_tokens.empty());
  for (const std::string value : {R"("temperature": "hot")", R"("temperature": -1)", R"("top_k": -1)",
                                  R"("top_k": 1.5)", R"("top_p": 1.5)", R"("min_p": 1.5)"}) {
    EXPECT_EQ(read("{" + value + "}").complaint, "");
    const std::string complaint = read(R"({"do_sample": true, )" + value + "}").complaint;
    EXPECT_NE(complaint.find("generation_config.json"), std::string::npos) << complaint;
    EXPECT_NE(complaint.find(value.substr(1, 5)), std::string::npos) << complaint;
  }
  EXPECT_NE(read(R"({"do_sample": "yes"})").complaint.find("do_sample"), std::string::npos);

  const TemporaryFolder folder;
  std::filesystem::copy(std::filesystem::path(kSourceFolder) / "calibration_data/stories260k", folder.path() / "m");
  write_file_atomically(folder.path() / "m" / kGenerationConfigName, R"({"do_sample": true, "top_k": -1})");
  const Checkpoint checkpoint = Checkpoint::open(folder.path() / "m");
  expect_error<std::invalid_argument>([&] { checkpoint.generation(); }, {"generation_config.json", "top_k", "-1"});
}

TEST(GenerationConfig, ItsEndTokensReplaceThoseOfTheConfig) {
  const TemporaryFolder folder;
  const auto stories = std::filesystem::path(kSourceFolder) / "calibration_data/stories260k";
  std::filesystem::copy(stories, folder.path() / "m");
  EXPECT_EQ(Checkpoint::open(folder.path() / "m").description().stop_tokens, (std::vector<int32_t>{2}));
  write_file_atomically(folder.path() / "m" / kGenerationConfigName, R"({"eos_token_id": [5, 7]})");
  const Checkpoint checkpoint = Checkpoint::open(folder.path() / "m");
  EXPECT_EQ(checkpoint.description().stop_tokens, (std::vector<int32_t>{5, 7}));
  EXPECT_EQ(checkpoint.description().eos_tokens, (std::vector<int32_t>{2}));
  write_file_atomically(folder.path() / "m" / kGenerationConfigName, R"({"do_sample": true})");
  EXPECT_EQ(Checkpoint::open(folder.path() / "m").description().stop_tokens, (std::vector<int32_t>{2}));
  write_file_atomically(folder.path() / "m" / kGenerationConfigName, "{");
  expect_error<std::invalid_argument>([&] { Checkpoint::open(folder.path() / "m"); }, {"generation_config.json"});
}

}  // namespace
}  // namespace pare
