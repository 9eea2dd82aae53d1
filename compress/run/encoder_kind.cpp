#include <algorithm>

#include "compress/run/model_kind.h"
#include "runtime/evaluate/token_source.h"

namespace pare::compress {
namespace {

namespace fs = std::filesystem;

class EncoderKind : public ModelKind {
 public:
  explicit EncoderKind(const runtime::Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  RunPlan plan(const Recipe& recipe) const override { return plan_encoder(recipe, checkpoint_); }

  std::vector<EngineVerdict> judge(const RunPlan& plan) const override {
    return judge_encoder_engines(plan, checkpoint_.encoder());
  }

  // Calibration texts, as many as the recipe says, drawn at random and kept in order, each cut to the recipe's or the
  // model's number of tokens; and the data of the evaluations.
  RunData read_data(const Recipe& recipe, const RunPlan& plan) const override {
    RunData data;
    const runtime::Pooling pooling =
        runtime::read_pooling(checkpoint_.directory(), checkpoint_.encoder().context_length);
    runtime::EvaluationSource source(checkpoint_, nullptr, data.events);
    const runtime::Tokenizer& tokenizer = *source.tokenizer();
    if (plan.needs_calibration) {
      const CalibrationRecipe& calibration = *recipe.calibration;
      const std::vector<std::string> texts = runtime::read_texts(calibration.text);
      const int64_t max_tokens = std::min(calibration.num_tokens.value_or(kCalibrationTokens), pooling.max_tokens);
      const int64_t num_samples = calibration.num_samples.value_or(kCalibrationSamples);
      note_missing_samples(calibration, static_cast<int64_t>(texts.size()), "texts", data.events);
      data.texts.emplace();
      for (const int64_t text : draw_sorted(static_cast<int64_t>(texts.size()), num_samples, calibration.seed)) {
        data.texts->push_back(tokenizer.encode_truncated(texts[static_cast<size_t>(text)], max_tokens));
      }
      runtime::check_ids_of_texts(*data.texts, checkpoint_.encoder().vocabulary_size, calibration.text);
    }
    read_evaluations(recipe, source, data);
    return data;
  }

  Prediction predict(const Recipe& recipe, const RunPlan& plan, const RunData& data,
                     const RunLimits& limits) const override {
    EncoderWorkload workload;
    workload.num_threads = limits.num_threads;
    if (data.texts) {
      workload.calibration_tokens = count_tokens(*data.texts);
      for (const std::vector<int32_t>& ids : *data.texts) {
        workload.longest_text = std::max(workload.longest_text, static_cast<int64_t>(ids.size()));
      }
    }
    workload.evaluations = evaluation_extents(recipe, data);
    workload.evaluated_bytes = data.evaluated_bytes;
    return predict_encoder(plan, checkpoint_, workload, limits.held_bytes, limits.max_memory_bytes, limits.matmul_rate);
  }

  // All states lie in memory.
  std::unique_ptr<ModelWalk> walk(const Recipe& recipe, const RunData& data, const runtime::LinearWeights&, Spill,
                                  const fs::path&, int, bool, bool) const override {
    return walk_texts(checkpoint_, data.texts ? &*data.texts : nullptr, data.texts ? recipe.calibration->seed : 0);
  }

 private:
  const runtime::Checkpoint& checkpoint_;
};

}  // namespace

std::unique_ptr<ModelKind> make_encoder_kind(const runtime::Checkpoint& checkpoint) {
  return std::make_unique<EncoderKind>(checkpoint);
}

}  // namespace pare::compress
