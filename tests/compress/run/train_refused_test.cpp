// Checks what a training is refused for, with its line or before any work, and what is reported about it.
#include <gtest/gtest.h>

#include "compress/recipe/recipe.h"
#include "runtime/tokenizer/tokenizer_hash.h"
#include "tests/compress/run/train_model_fixture.h"
#include "tests/expect_error.h"

namespace pare::test {
using namespace compress;
using namespace prune;
using namespace quant;
using namespace runtime;
namespace {

TEST(TrainRecipe, WhatCannotFollowIsSaidWithItsLine) {
  const auto refused = [](const std::string& passes, std::initializer_list<std::string> parts) {
    expect_error<std::invalid_argument>(
        [&] { parse_recipe("model: m\ncalibration: {text: t}\npasses:\n" + passes, "r.yaml"); }, parts);
  };
  const std::string gptq = "  - gptq: {bits: 4}\n", sparsegpt = "  - sparsegpt: {}\n",
                    distill = "  - distill: {text: t}\n";
  refused(gptq + distill + gptq, {"r.yaml:6", "in codes already", "before distill"});
  refused(sparsegpt + distill + gptq, {"r.yaml:6", "pruned weights", "before distill"});
  refused("  - awq: {}\n" + distill, {"r.yaml:5", "only prepares", "rtn or gptq"});
  refused("  - llm_int8: {}\n" + distill, {"r.yaml:5", "llm_int8", "put distill before it"});
  refused("  - fp8: {}\n" + distill, {"r.yaml:5", "fp8", "put distill before it"});
  refused(gptq + "  - distill: {text: t, student: s}\n", {"r.yaml:5", "'student'", "leave one of the two out"});
  refused("  - distill: {}\n", {"r.yaml:4", "'text:'"});
  refused("  - distill: {text: t, sampled_tokens: 8}\n", {"r.yaml:4", "sampled_tokens", "minillm"});
  refused("  - distill: {logits: s.h5, loss: minillm}\n", {"r.yaml:4", "logits", "makes up"});
  refused("  - distill: {text: t, tokens: 64, loss: minillm, prompt_tokens: 64}\n", {"prompt_tokens", "64 tokens"});
  // A .npy has windows of its own length.
  parse_recipe("model: m\npasses:\n  - distill: {text: t.npy, loss: minillm, prompt_tokens: 600}\n", "r.yaml");
  refused("  - distill: {logits: s.h5, text: t}\n", {"r.yaml:4", "text", "leave this out"});
  refused("  - distill: {text: t, batch: 6, micro_batch: 4}\n", {"micro_batch", "found 4 and 6"});
  refused("  - distill: {text: t, train: {weights: false, scales: false, vectors: false}}\n",
          {"train", "nothing is left"});
  refused("  - distill: {text: t, loss: skew_kl, skew: 1}\n", {"r.yaml:4", "skew", "from 0 to 0.9999"});
  refused("  - distill: {text: t, loss: skew_reverse_kl, skew: 1}\n", {"r.yaml:4", "skew", "from 0 to 0.9999"});
  // With these values, float32 leaves only rounding.
  for (const char* beta : {"1e-5", "9.9e-5", "0.99995"}) {
    refused("  - distill: {text: t, loss: jensen_shannon, beta: " + std::string(beta) + "}\n",
            {"r.yaml:4", "beta", "0.0001 to 0.9999"});
  }
  for (const char* beta : {"0", "1e-4", "0.9999", "1"}) {
    parse_recipe("model: m\npasses:\n  - distill: {text: t, loss: jensen_shannon, beta: " + std::string(beta) + "}\n",
                 "r.yaml");
  }
  refused("  - distill: {text: t, loss: skew_kl, skew: 0.99995}\n", {"r.yaml:4", "skew", "from 0 to 0.9999"});
  refused("  - distill: {logits: s.h5, loss: forward_kl, temperature: 2, tail_label_weight: 1}\n",
          {"r.yaml:4", "tail_label_weight", "'temperature: 1'"});
  refused("  - distill: {logits: s.h5, tokens: 64}\n", {"r.yaml:4", "tokens", "leave this out"});
  parse_recipe("model: m\npasses:\n  - distill: {logits: s.h5, validation_text: v.txt, tokens: 64}\n", "r.yaml");
  refused("  - gptq: {bits: 8, activations: int8}\n  - distill: {text: t, precision: bfloat16}\n",
          {"r.yaml:5", "bfloat16", "float32"});
  refused(gptq + "  - distill: {text: t, train: {embedding: true}}\nhead: {bits: 8}\n",
          {"r.yaml:5", "head", "'embedding'"});
  parse_recipe("model: m\ncalibration: {text: t}\npasses:\n  - distill: {text: t, train: {embedding: true}}\n" + gptq +
                   "head: {bits: 8}\n",
               "r.yaml");
  refused("  - distill: {text: t}\n    layers: {override: {\"*\": {bits: 3}}}\n", {"override", "distill"});
}

TEST_F(TrainModel, WindowsThatTheTextsDoNotHaveAreToldAndStrictRefusesThem) {
  const std::string pass = "  - distill: {text: " + text() + ", validation_text: " + validation() +
                           ", tokens: 32, windows: 100000, total_tokens: 64, batch: 1, validations: 1}\n";
  const std::string events = run_json(recipe(pass), "told").at("events").dump();
  EXPECT_NE(events.find("windows of 64 tokens, not the 32 asked for"), std::string::npos) << events;
  EXPECT_NE(events.find("fewer than the 100000 asked for"), std::string::npos) << events;
  expect_refused(recipe(pass) + "strict: true\n", {"strict", "not the 32 asked for"});
  // The best checkpoint is chosen by windows that must be there.
  const std::string few = "  - distill: {text: " + text() + ", validation_text: " + validation() +
                          ", validation_windows: 1000, total_tokens: 64, batch: 1, validations: 1}\n";
  const std::string event = "fewer than 'validation_windows', 1000";
  EXPECT_NE(run_json(recipe(few), "few").at("events").dump().find(event), std::string::npos);
  expect_refused(recipe(few) + "strict: true\n", {"strict", event});
}

TEST_F(TrainModel, WhatCannotBeTrainedIsRefusedBeforeAnyWork) {
  const std::string some = "total_tokens: 4000";
  expect_refused(recipe(distill(some) + "    layers: {exclude: [\"*.no_such_layer\"]}\n"),
                 {"exclude", "no_such_layer"});
  expect_refused(recipe(distill(some)), {"--max-memory", "training needs"}, {"--max-memory", "1MiB"});
  write_text(folder_ / "short.txt", "Once upon a time there was a cat. The cat sat on a mat and was happy all day.");
  expect_refused("model: " + kModel + "\npasses:\n  - distill: {text: " + (folder_ / "short.txt").string() +
                     ", tokens: 16, validation_windows: 2}\n",
                 {"short.txt", "of which 2 are for validation", "longer text"});
  expect_refused("model: " + kModel + "\npasses:\n  - distill: {text: " + kText + ", tokens: 1024}\n",
                 {"stories.txt", "1024", "512", "'tokens'"});
  for (const std::string more : {", train: {weights: false, vectors: false}}\n",
                                 ", train: {vectors: false}}\n    layers: {exclude: [\"*\"]}\n"}) {
    expect_refused("model: " + kModel + "\npasses:\n  - distill: {text: " + text() + more,
                   {"nothing of", "stories260k", "'vectors'"});
  }
  for (const auto& entry : fs::directory_iterator(std::string(kSourceFolder) + "/tests/golden/encoders")) {
    if (!fs::exists(entry.path() / "config.json")) continue;
    expect_refused("model: " + entry.path().string() + "\npasses:\n  - distill: {text: " + text() + "}\n",
                   {"encoder", "decoders are trained"});
    expect_refused(recipe(distill(some + ", teacher: " + entry.path().string())), {"teacher", "encoder"});
  }
}

TEST_F(TrainModel, ATeacherMustFitTheStudent) {
  const std::string some = "total_tokens: 4000, teacher: ";
  const std::string other = changed_copy("other", "tokenizer.json", "\"<0xF7>\"", "\"<0xZZ>\"");
  ASSERT_NE(tokenizer_hash(other), tokenizer_hash(kModel));
  expect_refused(recipe(distill(some + other)),
                 {"different tokenizers", kModel, other, tokenizer_hash(kModel), tokenizer_hash(other)});
  const std::string narrow =
      changed_copy("narrow", "config.json", "\"max_position_embeddings\": 512", "\"max_position_embeddings\": 32");
  expect_refused(recipe(distill(some + narrow)), {"64 tokens", "context of the teacher", "32"});
  expect_refused(recipe(distill(some +
                                changed_copy("short", "config.json", "\"max_position_embeddings\": 512",
                                             "\"max_position_embeddings\": 80") +
                                ", loss: minillm, prompt_tokens: 48, sampled_tokens: 48")),
                 {"96 tokens", "context of the teacher", "80", "'sampled_tokens'"});
  // Hard labels need no teacher and read none. A dense student has no scales or offsets of codes to move either.
  run_json(recipe(distill("total_tokens: 1000, loss: hard_label, offset_learning_rate: 0.1, teacher: " + other)),
           "alone");
  const std::string events = Json::parse(read_file(folder_ / "alone" / "pare.json")).at("events").dump();
  EXPECT_NE(events.find("'loss: hard_label' has no teacher"), std::string::npos) << events;
  EXPECT_NE(events.find("'offset_learning_rate' applies to layers in codes"), std::string::npos) << events;
  EXPECT_EQ(events.find("'scale_learning_rate'"), std::string::npos) << "it was not given: " << events;
}

TEST_F(TrainModel, RangesOfSequencesAreNotThoseOfABatch) {
  const fs::path mixture = fs::path(kSourceFolder) / "tests/golden/families/mixtral_experts";
  const std::string windows = ", precision: float32, validation_windows: 1, total_tokens: 256, batch: 2, micro_batch: ";
  for (const char* range : {"token", "tensor"}) {
    const std::string name = std::string("int8-") + range;
    run_json("model: " + mixture.string() +
                 "\npasses:\n  - rtn: {bits: 8, group_size: -1, activations: {range: " + range + "}}\n",
             name);
    const std::string yaml = "model: " + mixture.string() +
                             "\npasses:\n  - distill: {student: " + (folder_ / name).string() +
                             ", text: " + (mixture / "ids.npy").string() + windows;
    if (range == std::string("tensor")) {
      expect_refused(yaml + "2}\n", {"experts", "whole sequence", "'micro_batch' is 2", "expected 1"});
      run_json(yaml + "1}\n", "one");
    } else {
      run_json(yaml + "2}\n", "two");
    }
  }
}

// A record is refused for the same reasons as a live teacher and a text.
TEST_F(TrainModel, ARecordMustFitTheStudent) {
  const std::string record = (folder_ / "record.h5").string();
  ASSERT_EQ(run_pare({"record", kModel, "--text", text(), "--windows", "8", "--top-k", "8", record}).status, 0);
  const std::string narrow =
      changed_copy("narrow", "config.json", "\"max_position_embeddings\": 512", "\"max_position_embeddings\": 32");
  const std::string passes =
      "\npasses:\n  - distill: {logits: " + record + ", validation_windows: 2, total_tokens: 64}\n";
  expect_refused("model: " + narrow + passes, {"record.h5", "64 tokens", "context is 32", "record shorter ones"});
  run_json("model: " + kModel + passes, "fits");
  // A record of all tokens leaves out the rows of a wider table, and knows their mass at its own temperatures alone.
  const std::string whole = (folder_ / "whole.h5").string();
  ASSERT_EQ(run_pare({"record", kModel, "--text", text(), "--windows", "8", "--top-k", "512", whole}).status, 0);
  const std::string warm =
      "\npasses:\n  - distill: {logits: " + whole + ", validation_windows: 2, total_tokens: 64, temperature: 3}\n";
  expect_refused("model: " + widened_copy("wide") + warm, {"whole.h5", "temperatures 1.000 2.000, not at 3.000"});
  run_json("model: " + kModel + warm, "warm");
  // This record has no tail in which a label could lie.
  const auto with_tail = [](const std::string& store) {
    return "\npasses:\n  - distill: {logits: " + store +
           ", validation_windows: 2, total_tokens: 64, loss: forward_kl, tail_label_weight: 1}\n";
  };
  expect_refused("model: " + kModel + with_tail(whole), {"whole.h5", "merges none", "tail_label_weight"});
  run_json("model: " + kModel + with_tail(record), "tail");
}

// A layer has zeros that nothing declares as pruned. They are kept, and an event says so.
TEST_F(TrainModel, ZerosThatAreKeptForTheirNumberAreAnEvent) {
  const std::string sparse = changed_copy("sparse", "tokenizer_config.json", "{", "{");
  write_text(folder_ / "prune.py",
             "import sys\nfrom safetensors.numpy import load_file, save_file\n"
             "path = sys.argv[1] + '/model.safetensors'\ntensors = load_file(path)\n"
             "tensors['model.layers.1.mlp.up_proj.weight'][:, ::10] = 0\n"
             "save_file(tensors, path, metadata={'format': 'pt'})\n");
  const char* const python = std::getenv("PARE_PYTHON");
  ASSERT_NE(python, nullptr) << "tests need PARE_PYTHON, which 'make test' sets up";
  ASSERT_EQ(std::system((std::string(python) + " " + (folder_ / "prune.py").string() + " " + sparse).c_str()), 0);
  const std::string yaml = recipe(distill("total_tokens: 1000, student: " + sparse));
  const std::string events = run_json(yaml, "kept").at("events").dump();
  for (const char* part : {"1 layer has more zeros than 5 %", "model.layers.1.mlp.up_proj (", "their zeros stay 0"}) {
    EXPECT_NE(events.find(part), std::string::npos) << events;
  }
  const Outcome strict = run_pare(command(yaml + "strict: true\n", "strict"));
  EXPECT_NE(strict.status, 0);
  EXPECT_NE(strict.err.find("model.layers.1.mlp.up_proj"), std::string::npos) << strict.err;
  EXPECT_EQ(strict.err.find("step 1/"), std::string::npos) << "before any step: " << strict.err;
  // A model that declares its zeros gives no event.
  run_json(recipe("  - wanda: {pattern: unstructured, ratio: 0.3}\n"), "pruned");
  const std::string none =
      run_json(recipe(distill("total_tokens: 1000, student: " + (folder_ / "pruned").string())), "trained")
          .at("events")
          .dump();
  EXPECT_EQ(none.find("zeros"), std::string::npos) << none;
}

// In memory a record takes its tokens and what they predict, however much longer than the others one sequence is. That
// is some 2 KB here, and would be some 27 KB if all were filled up to the longest.
TEST_F(TrainModel, ARecordOfUnequalSequencesMustFitMemory) {
  const fs::path prompts = folder_ / "prompts.jsonl";
  std::string lines, long_prompt = "Once";
  for (int i = 0; i < 80; ++i) long_prompt += " upon";
  for (int i = 0; i < 40; ++i) lines += "{\"prompt\": \"Once\"}\n";
  write_text(prompts, lines + "{\"prompt\": \"" + long_prompt + "\"}\n");
  const std::string record = (folder_ / "unequal.h5").string();
  const Outcome recorded = run_pare({"record", kModel, "--prompts", prompts.string(), "--samples", "1",
                                     "--max-new-tokens", "2", "--top-k", "8", record});
  ASSERT_EQ(recorded.status, 0) << recorded.err;
  write_text(folder_ / "unequal.yaml", "model: " + kModel + "\npasses:\n  - distill: {logits: " + record +
                                           ", validation_windows: 2, total_tokens: 64}\n");
  const auto refused = [&](const std::string& budget, const std::vector<std::string>& words) {
    const Outcome outcome = run_pare(
        {"run", (folder_ / "unequal.yaml").string(), "--out", (folder_ / "o").string(), "--max-memory", budget});
    EXPECT_EQ(outcome.status, 1);
    for (const std::string& word : words) EXPECT_NE(outcome.err.find(word), std::string::npos) << outcome.err;
  };
  refused("512", {"unequal.h5", "41 sequences", "tokens in all, which do not fit", "512 B", "--max-memory"});
  refused("20KiB", {"--max-memory", "training needs"});  // enough for a model and its gradients, but not for the record
                                                         // as well
}

TEST_F(TrainModel, StudentsInFormsThatCannotBeTrainedAreRefused) {
  run_json("model: " + kModel + "\ncalibration: {text: " + text() +
               ", samples: 8}\npasses:\n  - llm_int8: {threshold: 1.5}\n",
           "int8");
  run_json("model: " + kModel + "\npasses:\n  - fp8: {}\n", "fp8");
  expect_refused(recipe(distill("student: " + (folder_ / "int8").string())), {"llm_int8", "distil before"});
  expect_refused(recipe(distill("student: " + (folder_ / "fp8").string())), {"fp8 codes", "distil before"});
}

}  // namespace
}  // namespace pare::test
