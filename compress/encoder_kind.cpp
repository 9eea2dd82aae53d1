#include <algorithm>
#include <optional>
#include <stdexcept>

#include "compress/model_kind.h"
#include "runtime/device/make_backend.h"
#include "runtime/engine/encoder.h"
#include "runtime/evaluate/evaluate_embeddings.h"
#include "runtime/evaluate/token_source.h"

namespace pare {
namespace {

namespace fs = std::filesystem;

class EncoderKind : public ModelKind {
 public:
  explicit EncoderKind(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  RunPlan plan(const Recipe& recipe) const override { return plan_encoder(recipe, checkpoint_); }

  std::vector<EngineVerdict> judge(const RunPlan& plan) const override { return judge_encoder_engines(plan); }

  // Calibration texts, as many as the recipe says, drawn at random and kept in order, each cut to the recipe's or the
  // model's number of tokens; and the pairs of the evaluations.
  RunData read_data(const Recipe& recipe, const RunPlan& plan) const override {
    RunData data;
    const Pooling pooling = read_pooling(checkpoint_.directory(), checkpoint_.encoder());
    const Tokenizer tokenizer = Tokenizer::open(checkpoint_.directory());
    if (plan.needs_calibration) {
      const CalibrationRecipe& calibration = *recipe.calibration;
      const std::vector<std::string> texts = read_texts(calibration.text);
      const int64_t max_tokens = std::min(calibration.num_tokens.value_or(kCalibrationTokens), pooling.max_tokens);
      const int64_t num_samples = calibration.num_samples.value_or(kCalibrationSamples);
      note_missing_samples(calibration, static_cast<int64_t>(texts.size()), "texts", data.events);
      data.texts.emplace();
      for (const int64_t text : draw_sorted(static_cast<int64_t>(texts.size()), num_samples, calibration.seed)) {
        data.texts->push_back(tokenizer.encode_truncated(texts[static_cast<size_t>(text)], max_tokens));
      }
    }
    for (const EmbeddingsRecipe& item : recipe.embeddings) {
      data.pairs.push_back(read_text_pairs(item.pairs, tokenizer, pooling.max_tokens));
      if (!item.reference && data.pairs.back().gold.empty()) {
        throw std::invalid_argument("recipe: embeddings: '" + item.pairs.string() +
                                    "' has no scores in a third column and 'reference' is false: there is nothing to "
                                    "compare with");
      }
    }
    return data;
  }

  Prediction predict(const Recipe& recipe, const RunPlan& plan, const RunData& data,
                     const RunLimits& limits) const override {
    EncoderWorkload workload;
    workload.num_threads = limits.num_threads;
    if (data.texts) workload.calibration_tokens = count_tokens(*data.texts);
    for (size_t i = 0; i < data.pairs.size(); ++i) {
      const int64_t num_models = recipe.embeddings[i].reference ? 2 : 1;
      workload.evaluated_texts += num_models * static_cast<int64_t>(data.pairs[i].texts.size());
      workload.evaluated_tokens += num_models * count_tokens(data.pairs[i].texts);
    }
    return predict_encoder(plan, checkpoint_, workload, limits.held_bytes, limits.max_memory_bytes, limits.matmul_rate);
  }

  // All states lie in memory.
  std::unique_ptr<ModelWalk> walk(const Recipe& recipe, const RunData& data, const LinearWeights&, Spill,
                                  const fs::path&, int, bool, bool) const override {
    return walk_texts(checkpoint_, data.texts ? &*data.texts : nullptr, data.texts ? recipe.calibration->seed : 0);
  }

  void evaluate(const Recipe& recipe, const RunData& data, const fs::path& directory, const Checkpoint& original,
                const BackendOptions& options, Progress& progress, RunReport& report) const override {
    if (data.pairs.empty()) return;
    const std::unique_ptr<Backend> backend = make_backend(options);
    const Checkpoint artifact = Checkpoint::open(directory);
    const Pooling pooling = read_pooling(directory, artifact.encoder());
    Encoder model = Encoder::load(artifact, *backend);
    std::optional<Encoder> reference;
    for (size_t i = 0; i < data.pairs.size(); ++i) {
      const bool compares = recipe.embeddings[i].reference;
      if (compares && !reference) reference = Encoder::load(original, *backend);
      const auto num_texts = static_cast<int64_t>(data.pairs[i].texts.size());
      progress.begin("evaluate", num_texts * (compares ? 2 : 1), "texts");
      report.embeddings.push_back(evaluate_embeddings(model, compares ? &*reference : nullptr, data.pairs[i], pooling,
                                                      [&](int64_t done, int64_t) { progress.update(done); }));
      progress.finish();
    }
  }

 private:
  const Checkpoint& checkpoint_;
};

}  // namespace

std::unique_ptr<ModelKind> make_encoder_kind(const Checkpoint& checkpoint) {
  return std::make_unique<EncoderKind>(checkpoint);
}

}  // namespace pare
