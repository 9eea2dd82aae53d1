#include "compress/encoder_run.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "compress/passes/compress_block.h"
#include "compress/walk/encoder_walk.h"
#include "runtime/evaluate/token_source.h"
#include "runtime/format/bitsandbytes_int8.h"
#include "runtime/system/interrupt.h"

namespace pare {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

void refuse_what_encoders_lack(const Recipe& recipe, const EncoderDescription& model) {
  const auto refuse = [&](bool is_asked, const std::string& what) {
    if (is_asked) throw std::invalid_argument("recipe: " + what);
  };
  if (recipe.scaling) {
    refuse(true, std::string(recipe.scaling->name()) + ": this encoder (" + model.family +
                     ") normalizes behind its residual sums, so that a norm's output feeds the residual stream as well "
                     "as the next linears: dividing it has no exact inverse there, and nothing is scaled. Leave the "
                     "pass out");
  }
  refuse(recipe.head.has_value(), "head: an encoder has no head, and its embeddings stay as they are: leave it out");
  refuse(recipe.container == Container::awq_gemm, "container awq-gemm is one of decoders: use compressed-tensors");
  refuse(recipe.sensitivity.has_value() || recipe.budget.has_value(),
         "sensitivity and budget measure the loss of a next token, which an encoder does not predict: leave them out");
  refuse(recipe.calibration && !recipe.calibration->statistics.empty(),
         "calibration: statistics files are made of decoders: give an encoder 'text'");
  refuse(!recipe.evaluate.empty(),
         "evaluate: perplexity is one of decoders; an encoder is measured by 'embeddings: {pairs: FILE}'");
  refuse(recipe.passes.empty(), "nothing to do: give 'passes:' with a method that rounds weights or inputs");
}

// Compresses the stage's layers on the statistics of its input and puts them into the block.
void compress_stage(const PlannedRun& plan, int64_t b, Stage stage, const LayerStatistics& statistics,
                    EncoderBlock& block, std::vector<CompressedLayer>& done) {
  const std::vector<const PlannedLayer*> layers = compressed_layers(plan.blocks[static_cast<size_t>(b)], stage);
  if (layers.empty()) return;
  const auto start = Clock::now();
  const std::optional<GptqFactor> factor = factor_of(layers, statistics.hessian_II);
  compress_layers(layers, statistics, factor, /*scaling=*/"", start, block, done);
}

}  // namespace

PlannedRun plan_encoder(const Recipe& recipe, const Checkpoint& checkpoint) {
  const EncoderDescription& model = checkpoint.encoder();
  check_not_quantized(checkpoint);
  refuse_what_encoders_lack(recipe, model);
  PlannedRun plan;
  std::vector<std::string> names;
  for (const EncoderBlockDescription& block : model.blocks) {
    plan_block(recipe, model.dtype, block_layers(block, kStages), plan);
    for (const PlannedLayer& layer : plan.blocks.back()) names.push_back(layer.linear.name);
  }
  check_patterns(recipe, names);
  plan.unquantized.insert(plan.unquantized.end(), model.unused_linears.begin(), model.unused_linears.end());
  if (plan.num_layers() == 0)
    throw std::invalid_argument("recipe: every layer is excluded: nothing would be compressed");
  check_calibration(recipe, plan);
  return plan;
}

std::vector<EngineVerdict> judge_encoder_engines(const PlannedRun& plan) {
  EngineVerdict transformers{"transformers with compressed-tensors", true, {}};
  const auto add = [&](const std::string& reason) {
    transformers.loads = false;
    if (std::find(transformers.reasons.begin(), transformers.reasons.end(), reason) == transformers.reasons.end()) {
      transformers.reasons.push_back(reason);
    }
  };
  for (const auto& layers : plan.blocks) {
    for (const PlannedLayer& layer : layers) {
      if (!layer.options) continue;
      const std::string unread = container_format(layer.scheme.container).unread_by(Engine::transformers);
      if (!unread.empty()) add(unread);
      if (layer.scheme.container == kBitsAndBytes) add("bitsandbytes is not tried with encoders");
      if (layer.scheme.act_order == StoredActOrder::group) {
        add("act_order group: compressed-tensors 0.19 no longer reads weight_g_idx; use static");
      }
    }
  }
  return {{"pare", true, {}}, transformers};
}

RunData read_encoder_data(const Recipe& recipe, const PlannedRun& plan, const Checkpoint& checkpoint) {
  RunData data;
  const Pooling pooling = read_pooling(checkpoint.directory(), checkpoint.encoder());
  const Tokenizer tokenizer = Tokenizer::open(checkpoint.directory());
  if (plan.needs_calibration) {
    const CalibrationRecipe& calibration = *recipe.calibration;
    const std::vector<std::string> texts = read_texts(calibration.text);
    const int64_t max_tokens = std::min(calibration.num_tokens, pooling.max_tokens);
    data.texts.emplace();
    for (const int64_t text :
         draw_sorted(static_cast<int64_t>(texts.size()), calibration.num_samples, calibration.seed)) {
      data.texts->push_back(tokenizer.encode_truncated(texts[static_cast<size_t>(text)], max_tokens));
    }
  }
  for (const EmbeddingsRecipe& item : recipe.embeddings) {
    data.pairs.push_back(read_text_pairs(item.pairs, tokenizer, pooling.max_tokens));
    if (!item.reference && data.pairs.back().gold.empty()) {
      throw std::invalid_argument("recipe: embeddings: '" + item.pairs.string() +
                                  "' has no scores as third column and 'reference' is false: there is nothing to "
                                  "compare with");
    }
  }
  return data;
}

EncoderWorkload measure_encoder_workload(const Recipe& recipe, const RunData& data, int num_threads) {
  EncoderWorkload workload;
  workload.num_threads = num_threads;
  if (data.texts) workload.calibration_tokens = count_tokens(*data.texts);
  for (size_t i = 0; i < data.pairs.size(); ++i) {
    const int64_t num_models = recipe.embeddings[i].reference ? 2 : 1;
    workload.evaluated_texts += num_models * static_cast<int64_t>(data.pairs[i].texts.size());
    workload.evaluated_tokens += num_models * count_tokens(data.pairs[i].texts);
  }
  return workload;
}

void compress_encoder_blocks(const Recipe& recipe, const Checkpoint& checkpoint, const PlannedRun& plan,
                             const RunData& data, Artifact& artifact, Progress& progress,
                             const std::function<void(const std::vector<LayerRecord>&, double)>& on_block,
                             RunReport& report) {
  const RemainingBlocks remaining = remaining_blocks(plan, artifact);
  const int64_t last = remaining.last;
  report.num_resumed_blocks = remaining.num_committed;
  if (last == 0) return;

  const auto start = Clock::now();
  std::optional<EncoderWalk> walk;
  if (data.texts) walk.emplace(checkpoint, *data.texts, recipe.calibration->seed);
  progress.begin("compress", last, "blocks");
  for (int64_t b = 0; b < last; ++b) {
    throw_if_interrupted();
    const bool is_done = remaining.is_done[static_cast<size_t>(b)];
    if (is_done && !walk) continue;
    EncoderBlock block(checkpoint, b);
    std::vector<CompressedLayer> layers;
    if (artifact.committed(part_of_block(b)) != nullptr) {
      restore_layers(plan.blocks[static_cast<size_t>(b)], part_of_block(b), artifact, block);
    }
    for (const Stage stage : kStages) {
      const auto walk_start = Clock::now();
      LayerStatistics statistics;
      if (walk) statistics = walk->reach(block, stage, is_done ? StatisticsNeed::none : plan.need(b, stage));
      report.stage_seconds["forward"] += seconds_since(walk_start);
      const auto compress_start = Clock::now();
      if (!is_done) compress_stage(plan, b, stage, statistics, block, layers);
      report.stage_seconds["compress"] += seconds_since(compress_start);
    }
    if (walk && b + 1 < last) walk->leave(block);
    if (!is_done) {
      std::vector<LayerRecord> records;
      for (const CompressedLayer& layer : layers) records.push_back(layer.record);
      on_block(records, seconds_since(start) / static_cast<double>(b + 1) * static_cast<double>(last - b - 1));
      commit_layers(part_of_block(b), std::move(layers), {}, artifact);
    }
    progress.update(b + 1);
  }
  progress.finish();
}

std::vector<EmbeddingEvaluation> evaluate_encoder_artifact(const Recipe& recipe, const Checkpoint& source,
                                                           const RunData& data, const fs::path& directory,
                                                           int num_threads, Progress& progress) {
  std::vector<EmbeddingEvaluation> evaluations;
  if (data.pairs.empty()) return evaluations;
  const std::unique_ptr<Backend> backend = make_cpu_backend(detect_isa(), num_threads);
  const Checkpoint checkpoint = Checkpoint::open(directory);
  const Pooling pooling = read_pooling(directory, checkpoint.encoder());
  Encoder model = Encoder::load(checkpoint, *backend);
  std::optional<Encoder> reference;
  for (size_t i = 0; i < data.pairs.size(); ++i) {
    const bool compares = recipe.embeddings[i].reference;
    if (compares && !reference) reference = Encoder::load(source, *backend);
    const auto num_texts = static_cast<int64_t>(data.pairs[i].texts.size());
    progress.begin("evaluate", num_texts * (compares ? 2 : 1), "texts");
    evaluations.push_back(evaluate_embeddings(model, compares ? &*reference : nullptr, data.pairs[i], pooling,
                                              [&](int64_t done, int64_t) { progress.update(done); }));
    progress.finish();
  }
  return evaluations;
}

}  // namespace pare
