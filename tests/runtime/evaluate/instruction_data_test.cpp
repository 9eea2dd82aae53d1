// Instruction files in the forms that data sets have, what is refused in them, and prompts.
#include "runtime/evaluate/instruction_data.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

class InstructionFile : public testing::Test {
 protected:
  InstructionData read(const std::string& content, const std::string& name = "data.json", int64_t num_examples = 0) {
    std::ofstream(folder_.path() / name, std::ios::binary) << content;
    return read_instructions(folder_.path() / name, num_examples);
  }
  TemporaryFolder folder_;
};

using Texts = std::vector<std::string>;

TEST_F(InstructionFile, AlpacasFormAsListAndAsLines) {
  const std::string first = R"({"instruction": "Add.", "input": "1 2", "output": "3", "id": 7})",
                    second = R"({"instruction": "Sing.", "output": ["La.", "Lo."]})",
                    third = R"({"instruction": "Go.", "input": " \n", "output": "Gone."})";
  const InstructionData list = read("[" + first + ", " + second + ",\n" + third + "]");
  const InstructionData lines = read(first + "\n\n" + second + "\r\n" + third, "data.jsonl");
  EXPECT_EQ(list.source, "data.json");
  EXPECT_EQ(lines.source, "data.jsonl");
  for (const InstructionData* data : {&list, &lines}) {
    ASSERT_EQ(data->examples.size(), 3u);
    EXPECT_EQ(data->examples[0].instruction, "Add.");
    EXPECT_EQ(data->examples[0].input, "1 2");
    EXPECT_EQ(data->examples[0].references, Texts{"3"});
    EXPECT_EQ(data->examples[1].input, "");
    EXPECT_EQ(data->examples[1].references, (Texts{"La.", "Lo."}));
    EXPECT_EQ(data->examples[2].input, "") << "white space is no input";
  }
  EXPECT_EQ(read("[" + first + "," + second + "]", "data.json", 1).examples.size(), 1u);
}

TEST_F(InstructionFile, EachInstanceOfSelfInstructIsAnExample) {
  const InstructionData data =
      read(R"({"name": "n", "instruction": "Add.", "instances": [{"input": "1 2", "output": "3"}, )"
           R"({"input": "", "output": "0"}]})",
           "data.jsonl");
  ASSERT_EQ(data.examples.size(), 2u);
  EXPECT_EQ(data.examples[0].input, "1 2");
  EXPECT_EQ(data.examples[1].instruction, "Add.");
  EXPECT_EQ(data.examples[1].references, Texts{"0"});
}

TEST_F(InstructionFile, TheOneThatComesWithPareHasFiftyExamples) {
  const InstructionData data =
      read_instructions(std::string(kSourceFolder) + "/calibration_data/instructions.jsonl", 0);
  EXPECT_EQ(data.examples.size(), 50u);
}

TEST_F(InstructionFile, OtherFilesAreRefusedWithThePlace) {
  const auto refused = [&](const std::string& content, const std::string& name,
                           std::initializer_list<std::string> parts) {
    expect_error<std::runtime_error>([&] { read(content, name); }, parts);
  };
  refused("[", "data.json", {"data.json", "not valid JSON"});
  refused("{}", "data.json", {"data.json", "a list of objects", "object"});
  refused("[3]", "data.json", {"data.json, object 1", "'instruction'", "number"});
  refused("{}\n", "data.jsonl", {"data.jsonl:1", "'instruction'", "no such field"});
  refused("\n{\"instruction\": 3}", "data.jsonl", {"data.jsonl:2", "'instruction'", "number"});
  refused("{\"instruction\": \" \"}", "data.jsonl", {"data.jsonl:1", "instruction is empty"});
  refused("{\"instruction\": \"a\"}", "data.jsonl", {"data.jsonl:1", "'output'", "no such field"});
  refused(R"({"instruction": "a", "output": ""})", "data.jsonl", {"data.jsonl:1", "output is empty"});
  refused(R"({"instruction": "a", "output": []})", "data.jsonl", {"data.jsonl:1", "output is empty"});
  refused(R"({"instruction": "a", "output": [1]})", "data.jsonl", {"strings in the list 'output'", "number"});
  refused(R"({"instruction": "a", "output": "b", "input": null})", "data.jsonl", {"'input'", "null"});
  refused(R"({"instruction": "a", "instances": {}})", "data.jsonl", {"'instances'", "object"});
  refused(R"({"instruction": "a", "instances": [{"output": "b"}, {"input": "c"}]})", "data.jsonl",
          {"data.jsonl:1, instance 2", "'output'"});
  refused(R"({"instruction": "a", "instances": [3]})", "data.jsonl", {"instance 1", "number"});
  refused("[{\"instruction\": \"\xFF\"}]", "data.json", {"not valid JSON", "UTF-8"});
  expect_error<std::invalid_argument>([&] { read("[]"); }, {"data.json", "at least 1", "found 0"});
  expect_error<std::invalid_argument>([&] { read(R"([{"instruction": "a", "output": "b"}])", "data.json", 2); },
                                      {"at least 2 examples", "found 1", "fewer"});
  expect_error<std::invalid_argument>([&] { read("[]", "data.csv"); }, {".json or .jsonl", "'.csv'"});
  expect_error<std::runtime_error>([&] { read_instructions(folder_.path() / "none.json", 0); }, {"none.json"});
}

// These are exactly the strings that models were trained on.
TEST(PromptTemplates, AreThePublishedOnes) {
  const InstructionExample alone = {.instruction = "Sing.", .input = "", .references = {"La."}};
  const InstructionExample with_input = {.instruction = "Add.", .input = "1 2", .references = {"3"}};
  EXPECT_EQ(make_prompt(alone, PromptTemplate::plain), "Sing.\n");
  EXPECT_EQ(make_prompt(with_input, PromptTemplate::plain), "Add.\n1 2\n");
  EXPECT_EQ(make_prompt(alone, PromptTemplate::alpaca),
            "Below is an instruction that describes a task. Write a response that appropriately completes the request."
            "\n\n### Instruction:\nSing.\n\n### Response:\n");
  EXPECT_EQ(make_prompt(with_input, PromptTemplate::alpaca),
            "Below is an instruction that describes a task, paired with an input that provides further context. Write "
            "a response that appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### Input:\n1 2\n\n### "
            "Response:\n");
  EXPECT_EQ(make_prompt(alone, PromptTemplate::chatml), "<|im_start|>user\nSing.<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(make_prompt(with_input, PromptTemplate::chatml),
            "<|im_start|>user\nAdd.\n\n1 2<|im_end|>\n<|im_start|>assistant\n");
}

TEST(PromptTemplates, GoByName) {
  EXPECT_EQ(name_of(PromptTemplate::plain), "plain");
  EXPECT_EQ(name_of(PromptTemplate::alpaca), "alpaca");
  EXPECT_EQ(name_of(PromptTemplate::chatml), "chatml");
}

// Returns a vocabulary of a few characters, with ChatML's tokens as added tokens, as words of the vocabulary alone, or
// without them.
Tokenizer tokenizer_with(const std::string& added, const std::string& in_vocabulary) {
  return Tokenizer::parse(R"({"added_tokens": [)" + added + R"(], "model": {"type": "BPE", "vocab": {"a": 0, "u": 1)" +
                              in_vocabulary + R"(}, "merges": []}})",
                          "a test");
}

TEST(PromptTemplates, ChatmlNeedsItsTokensAsAddedOnes) {
  const std::string start = R"({"id": 2, "content": "<|im_start|>", "special": true})",
                    end = R"({"id": 3, "content": "<|im_end|>", "special": true})";
  const Tokenizer both = tokenizer_with(start + ", " + end, "");
  EXPECT_EQ(end_tokens(PromptTemplate::chatml, both), std::vector<int32_t>{3});
  EXPECT_TRUE(end_tokens(PromptTemplate::alpaca, both).empty());
  EXPECT_TRUE(end_tokens(PromptTemplate::plain, tokenizer_with("", "")).empty());
  const auto refused = [](const Tokenizer& tokenizer, const std::string& token) {
    expect_error<std::invalid_argument>([&] { end_tokens(PromptTemplate::chatml, tokenizer); },
                                        {"chatml", "'" + token + "'", "alpaca"});
  };
  refused(tokenizer_with("", ""), "<|im_start|>");
  refused(tokenizer_with(start, ""), "<|im_end|>");
  refused(tokenizer_with(start, R"(, "<|im_end|>": 3)"), "<|im_end|>");
}

}  // namespace
}  // namespace pare
