#include <algorithm>
#include <optional>

#include "compress/model_kind.h"
#include "compress/survey/budget.h"
#include "compress/survey/survey.h"
#include "runtime/device/make_backend.h"
#include "runtime/engine/memory_need.h"
#include "runtime/engine/transformer.h"
#include "runtime/evaluate/evaluate.h"
#include "runtime/evaluate/evaluate_instructions.h"
#include "runtime/system/interrupt.h"

namespace pare {
namespace {

namespace fs = std::filesystem;

class DecoderKind : public ModelKind {
 public:
  explicit DecoderKind(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  RunPlan plan(const Recipe& recipe) const override { return plan_decoder(recipe, checkpoint_); }

  std::vector<EngineVerdict> judge(const RunPlan& plan) const override {
    return judge_engines(plan, checkpoint_.description());
  }

  RunData read_data(const Recipe& recipe, const RunPlan& plan) const override {
    return pare::read_data(recipe, plan, checkpoint_);
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
    for (size_t i = 0; i < data.evaluations.size(); ++i) {
      const TokenWindows& windows = data.evaluations[i].windows;
      workload.evaluations.push_back({windows.num_windows, windows.num_tokens, recipe.evaluate[i].reference});
    }
    for (size_t i = 0; i < data.prompts.size(); ++i) {
      const InstructionsRecipe& item = recipe.instructions[i];
      AnswersExtent answers{.num_examples = static_cast<int64_t>(data.prompts[i].ids.size()),
                            .max_new_tokens = item.options.max_new_tokens,
                            .reference = item.reference};
      for (const std::vector<int32_t>& ids : data.prompts[i].ids) {
        const auto num_tokens = static_cast<int64_t>(ids.size());
        answers.prompt_tokens += num_tokens;
        answers.longest_tokens = std::max(answers.longest_tokens, num_tokens + item.options.max_new_tokens);
      }
      workload.answers.push_back(answers);
    }
    if (recipe.budget) {  // the loss that the survey predicted is measured
      workload.evaluations.push_back({workload.survey->extent.num_windows, workload.survey->extent.num_tokens, true});
      workload.linear_bytes = plan.budget_bytes;
    }
    return pare::predict(plan, checkpoint_, workload, limits.held_bytes, limits.max_memory_bytes, limits.matmul_rate);
  }

  std::unique_ptr<ModelWalk> walk(const Recipe& recipe, const RunData& data, const LinearWeights& embedding,
                                  Spill spill, const fs::path& spill_directory, int num_threads, bool with_original,
                                  bool keeps_block_inputs) const override {
    if (!data.calibration) return walk_statistics(checkpoint_, data.statistics ? &*data.statistics : nullptr);
    std::unique_ptr<ModelWalk> walk = walk_windows(checkpoint_, *data.calibration, embedding,
                                                   {.sample_seed = recipe.calibration->seed,
                                                    .spill = spill,
                                                    .spill_directory = spill_directory,
                                                    .num_threads = num_threads,
                                                    .experts = recipe.calibration->experts,
                                                    .with_original = with_original,
                                                    .keeps_block_inputs = keeps_block_inputs});
    checkpoint_.drop_pages(checkpoint_.embedding());
    return walk;
  }

  void evaluate(const Recipe& recipe, const RunData& data, const fs::path& directory, const Checkpoint& original,
                const BackendOptions& options, Progress& progress, RunReport& report) const override {
    if (recipe.evaluate.empty() && recipe.instructions.empty() && !recipe.budget) return;
    const std::unique_ptr<Backend> backend = make_backend(options);
    const Checkpoint artifact = Checkpoint::open(directory);
    check_memory(recipe, data, artifact, original, *backend);
    Transformer model = Transformer::load(artifact, *backend);
    std::optional<Transformer> reference;
    const auto measure = [&](const ScoredWindows& windows, bool compares, AttentionBits bits) {
      if (compares && !reference) reference = Transformer::load(original, *backend);
      model.use_attention_bits(bits);
      progress.begin("evaluate", windows.windows.num_windows, "windows");
      Evaluation evaluation =
          pare::evaluate(model, windows, compares ? &*reference : nullptr, [&](double done, int64_t) {
            throw_if_interrupted();
            progress.update_within(done);
          });
      progress.finish();
      return evaluation;
    };
    for (size_t i = 0; i < data.evaluations.size(); ++i) {
      const PerplexityRecipe& item = recipe.evaluate[i];
      report.evaluations.push_back(
          measure(data.evaluations[i], item.reference, {.kv = item.kv_bits, .products = item.attention_bits}));
    }
    if (!recipe.instructions.empty()) {
      const Tokenizer tokenizer = Tokenizer::open(checkpoint_.directory());  // the artifact's is a copy
      model.use_attention_bits({});
      for (size_t i = 0; i < data.instructions.size(); ++i) {
        const InstructionsRecipe& item = recipe.instructions[i];
        const auto num_examples = static_cast<int64_t>(data.instructions[i].examples.size());
        const auto answer = [&](Transformer& answerer, int64_t before) {
          return evaluate_instructions(answerer, tokenizer, data.instructions[i], data.prompts[i], item.options,
                                       [&](int64_t done, int64_t) { progress.update(before + done); });
        };
        if (item.reference && !reference) reference = Transformer::load(original, *backend);
        progress.begin("evaluate", num_examples * (item.reference ? 2 : 1), "examples");
        report.instructions.push_back(answer(model, 0));
        InstructionEvaluation& evaluation = report.instructions.back();
        if (item.reference) evaluation.comparison = compare_instructions(evaluation, answer(*reference, num_examples));
        progress.finish();
      }
    }
    if (recipe.budget) report.budget_measured = measure(*data.survey, /*compares=*/true, {});
  }

 private:
  // Whether what is evaluated fits a device.
  static void check_memory(const Recipe& recipe, const RunData& data, const Checkpoint& artifact,
                           const Checkpoint& original, const Backend& backend) {
    int64_t num_tokens = Transformer::kBatchRows;
    for (const ScoredWindows& windows : data.evaluations) num_tokens = std::max(num_tokens, windows.windows.num_tokens);
    const auto compares = [](const auto& items) {
      return std::any_of(items.begin(), items.end(), [](const auto& item) { return item.reference; });
    };
    int64_t answer_tokens = 0;  // of the longest prompt with its answer
    for (size_t i = 0; i < data.prompts.size(); ++i) {
      for (const std::vector<int32_t>& ids : data.prompts[i].ids) {
        const int64_t most = static_cast<int64_t>(ids.size()) + recipe.instructions[i].options.max_new_tokens;
        answer_tokens = std::max(answer_tokens, most);
      }
    }
    const auto need_of = [&](const Checkpoint& checkpoint) {
      MemoryNeed need = memory_need(checkpoint, {.num_rows = num_tokens, .num_tokens = num_tokens});
      if (answer_tokens == 0) return need;
      // Beside what windows were worked on with, which is kept.
      const MemoryNeed answers =
          memory_need(checkpoint, {.num_rows = answer_tokens, .num_tokens = answer_tokens, .keeps_every_layer = true});
      need.cache_bytes += answers.cache_bytes;
      need.work_bytes += answers.work_bytes;
      return need;
    };
    std::vector<MemoryNeed> needs = {need_of(artifact)};
    if (recipe.budget || compares(recipe.evaluate) || compares(recipe.instructions)) needs.push_back(need_of(original));
    require_memory(backend, needs);
  }

  const Checkpoint& checkpoint_;
};

}  // namespace

std::unique_ptr<ModelKind> make_decoder_kind(const Checkpoint& checkpoint) {
  return std::make_unique<DecoderKind>(checkpoint);
}

std::unique_ptr<ModelKind> ModelKind::of(const Checkpoint& checkpoint) {
  return checkpoint.is_encoder() ? make_encoder_kind(checkpoint) : make_decoder_kind(checkpoint);
}

}  // namespace pare
