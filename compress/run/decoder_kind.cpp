#include "compress/run/model_kind.h"
#include "compress/survey/budget.h"
#include "compress/survey/survey.h"

namespace pare::compress {
namespace {

namespace fs = std::filesystem;

class DecoderKind : public ModelKind {
 public:
  explicit DecoderKind(const runtime::Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  RunPlan plan(const Recipe& recipe) const override { return plan_decoder(recipe, checkpoint_); }

  std::vector<EngineVerdict> judge(const RunPlan& plan) const override {
    return judge_engines(plan, checkpoint_.description());
  }

  RunData read_data(const Recipe& recipe, const RunPlan& plan) const override {
    return compress::read_data(recipe, plan, checkpoint_);
  }

  Prediction predict(const Recipe& recipe, const RunPlan& plan, const RunData& data,
                     const RunLimits& limits) const override {
    Workload workload;
    workload.num_threads = limits.num_threads;
    if (data.calibration) {
      workload.num_windows = data.calibration->num_windows;
      workload.num_tokens = data.calibration->num_tokens;
      workload.experts = recipe.calibration->experts;
    }
    if (data.survey) {
      const size_t num_bits = recipe.budget ? recipe.budget->allowed.size() : 0;
      workload.survey = {survey_extent(plan, *data.survey, survey_options(recipe)), static_cast<int64_t>(num_bits) * 4};
    }
    workload.evaluations = evaluation_extents(recipe, data);
    workload.evaluated_bytes = data.evaluated_bytes;
    if (recipe.budget) workload.linear_bytes = plan.budget_bytes;
    return compress::predict(plan, checkpoint_, workload, limits.held_bytes, limits.max_memory_bytes,
                             limits.matmul_rate);
  }

  std::unique_ptr<ModelWalk> walk(const Recipe& recipe, const RunData& data, const runtime::LinearWeights& embedding,
                                  Spill spill, const fs::path& spill_directory, int num_workers, bool with_original,
                                  bool keeps_block_inputs) const override {
    if (!data.calibration) return walk_statistics(checkpoint_, data.statistics ? &*data.statistics : nullptr);
    std::unique_ptr<ModelWalk> walk = walk_windows(checkpoint_, *data.calibration, embedding,
                                                   {.sample_seed = recipe.calibration->seed,
                                                    .spill = spill,
                                                    .spill_directory = spill_directory,
                                                    .num_workers = num_workers,
                                                    .experts = recipe.calibration->experts,
                                                    .with_original = with_original,
                                                    .keeps_block_inputs = keeps_block_inputs});
    checkpoint_.drop_pages(checkpoint_.embedding());
    return walk;
  }

 private:
  const runtime::Checkpoint& checkpoint_;
};

}  // namespace

std::unique_ptr<ModelKind> make_decoder_kind(const runtime::Checkpoint& checkpoint) {
  return std::make_unique<DecoderKind>(checkpoint);
}

std::unique_ptr<ModelKind> ModelKind::of(const runtime::Checkpoint& checkpoint) {
  return checkpoint.is_encoder() ? make_encoder_kind(checkpoint) : make_decoder_kind(checkpoint);
}

}  // namespace pare::compress
