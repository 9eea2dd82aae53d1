// Checks training on documents. Each ends with its end token, which is learned, and shares windows where it may.
#include <gtest/gtest.h>

#include <cmath>

#include "compress/recipe/recipe.h"
#include "runtime/device/make_backend.h"
#include "runtime/engine/transformer.h"
#include "tests/compress/run/train_model_fixture.h"
#include "tests/expect_error.h"

namespace pare::test {
using namespace compress;
using namespace runtime;
namespace {

class TrainDocuments : public TrainModel {
 protected:
  // The documents are beginnings of stories of some 12 tokens. A model that knows whole stories would continue them.
  TrainDocuments() {
    const std::string text = read_file(kText);
    std::string lines;
    for (size_t first = 0, count = 0; first + 60 < text.size() && count < 400; first += 120, ++count) {
      lines += Json({{"text", text.substr(first, 20 + first % 17)}}).dump() + "\n";
    }
    write_text(documents_, lines);
  }
  std::string pass(const std::string& more) const {
    return "model: " + kModel + "\npasses:\n  - distill: {text: " + documents_.string() +
           ", tokens: 64, validation_windows: 4, precision: float32, validations: 1, " + more + "}\n";
  }
  // Returns the mean ln p of </s> after the beginning of a story.
  double end_log_prob(const fs::path& model) const {
    const Checkpoint checkpoint = Checkpoint::open(model);
    const Tokenizer tokenizer = Tokenizer::open(model);
    const std::unique_ptr<Backend> backend = make_backend({});
    Transformer transformer = Transformer::load(checkpoint, *backend);
    const std::string text = read_file(kText);
    double sum = 0.0;
    for (size_t n = 0; n < 20; ++n) {
      const std::vector<int32_t> ids = tokenizer.encode(text.substr(n * 120, 25), true);
      const std::unique_ptr<Transformer::Session> session = transformer.start(64);
      const std::span<const float> logits = session->feed(ids);
      double whole = 0.0;
      for (const float logit : logits) whole += std::exp(static_cast<double>(logit));
      sum += (static_cast<double>(logits[2]) - std::log(whole)) / 20.0;
    }
    return sum;
  }
  const fs::path documents_ = folder_ / "documents.jsonl";
};

TEST_F(TrainDocuments, TheirEndIsLearned) {
  run_json(pass("loss: hard_label, total_tokens: 12000, batch: 2, learning_rate: 1e-3"), "out");
  const double before = end_log_prob(kModel), after = end_log_prob(folder_ / "out");
  EXPECT_LT(before, -6.0) << "the model does not expect a story to end there";
  EXPECT_GT(after, before + 2.0);
}

// Windows of documents give what windows of each document give. Each of minillm's prompts comes from one document.
TEST_F(TrainDocuments, PromptsAreOfOneDocument) {
  const Json report = run_json(
      pass("loss: minillm, prompt_tokens: 8, sampled_tokens: 4, total_tokens: 200, batch: 2, micro_batch: 2"), "out");
  EXPECT_GT(report.at("training").at("training_windows").get<int64_t>(), 300);
  fs::remove_all(folder_ / "out");
  expect_refused(pass("loss: minillm, prompt_tokens: 40, sampled_tokens: 4, total_tokens: 200"),
                 {"documents.jsonl", "no document has 40 tokens"});
  // Pieces come after windows of one length, each as long as it is.
  std::string both =
      pass("loss: minillm, prompt_tokens: 8, sampled_tokens: 4, total_tokens: 2000, batch: 8, micro_batch: 4");
  both.replace(both.find(documents_.string()), documents_.string().size(),
               "[" + text() + ", " + documents_.string() + "]");
  const Json mixed = run_json(both, "mixed").at("training");
  const int64_t num_windows = read_npy(text()).num_windows;
  EXPECT_EQ(mixed.at("training_windows").get<int64_t>(),
            report.at("training").at("training_windows").get<int64_t>() + num_windows);
}

// A range over a whole sequence must be that of one document.
TEST_F(TrainDocuments, OfInputsRoundedBySequenceShareNoWindow) {
  const std::string round = "  - rtn: {bits: 8, group_size: -1, activations: {range: tensor}}\n";
  const auto recipe_of = [&](const std::string& more) {
    std::string text = pass("loss: hard_label, total_tokens: 300, " + more);
    return text.insert(text.find("  - distill"), round);
  };
  EXPECT_GT(run_json(recipe_of("batch: 2"), "out").at("training").at("training_windows").get<int64_t>(), 300);
  fs::remove_all(folder_ / "out");
  const Outcome outcome = run_pare(command(recipe_of("batch: 2, micro_batch: 2"), "out"));
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("sequences differ in length"), std::string::npos) << outcome.err;
}

TEST_F(TrainDocuments, MayBeMixedWithWindows) {
  write_text(folder_ / "r.yaml", "model: " + kModel + "\npasses:\n  - distill: {text: [" + text() + ", " +
                                     documents_.string() +
                                     "], tokens: 64, total_tokens: 1000, validation_windows: 4, validations: 1}\n");
  const Outcome outcome =
      run_pare({"run", (folder_ / "r.yaml").string(), "--out", (folder_ / "out").string(), "--json"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
}

TEST_F(TrainDocuments, WhatEndsThemMustBeAToken) {
  expect_refused(pass("total_tokens: 200, end_of_document: <end>"), {"'<end>', which is not a token"});
  expect_error<std::invalid_argument>(
      [&] { parse_recipe("model: m\npasses:\n  - distill: {text: t.npy, end_of_document: </s>}\n", "r.yaml"); },
      {"r.yaml:3", "end_of_document", "no text is read"});
  run_json(pass("total_tokens: 200, end_of_document: <s>"), "out");
}

}  // namespace
}  // namespace pare::test
