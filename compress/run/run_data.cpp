#include "compress/run/run_data.h"

#include <algorithm>
#include <stdexcept>

#include "compress/artifact/model_hash.h"
#include "compress/walk/text_loss.h"
#include "runtime/evaluate/token_source.h"
#include "runtime/evaluate/windows_tokenizer.h"
#include "runtime/system/progress.h"
#include "runtime/system/sha256.h"

namespace pare::compress {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSurveyContext = 512;  // tokens of a window, where the recipe does not say

// Of the calibration's windows; a context below theirs takes their first tokens.
runtime::ScoredWindows first_windows(const runtime::TokenWindows& all, const SensitivityRecipe& recipe,
                                     const std::string& source) {
  runtime::ScoredWindows data;
  data.source = source;
  data.windows.num_windows = std::min(recipe.num_windows, all.num_windows);
  data.windows.num_tokens = std::min(recipe.context.value_or(kSurveyContext), all.num_tokens);
  if (data.predictions_per_window() < 1) {
    throw std::invalid_argument("sensitivity: calibration windows of one token leave nothing to predict");
  }
  for (int64_t n = 0; n < data.windows.num_windows; ++n) {
    const std::span<const int32_t> ids = all.window(n).first(static_cast<size_t>(data.windows.num_tokens));
    data.windows.ids_NT.insert(data.windows.ids_NT.end(), ids.begin(), ids.end());
  }
  return data;
}

}  // namespace

StatisticsFile read_statistics(const fs::path& path, const runtime::Checkpoint& checkpoint) {
  StatisticsFile statistics = StatisticsFile::open(path);
  const std::string model = model_hash(checkpoint);
  if (statistics.origin().model != model) {
    throw std::runtime_error("'" + path.string() +
                             "' holds the statistics of another model (config.json and weights "
                             "have hash " +
                             statistics.origin().model + "; those of '" + checkpoint.directory().string() + "' have " +
                             model + "): make them for this one with pare calibrate");
  }
  return statistics;
}

runtime::TokenWindows read_calibration(const CalibrationRecipe& recipe, const runtime::Tokenizer* tokenizer,
                                       const runtime::ModelDescription& model) {
  runtime::TokenWindows all = runtime::read_token_windows(
      recipe.text, tokenizer, recipe.num_tokens.value_or(kCalibrationTokens), /*num_windows=*/0,
      /*add_special_tokens=*/true, model.vocabulary_size);
  if (all.num_tokens > model.context_length) {
    throw std::invalid_argument("calibration: windows of " + std::to_string(all.num_tokens) +
                                " tokens; the model's context is " + std::to_string(model.context_length));
  }
  const int64_t num_samples = recipe.num_samples.value_or(kCalibrationSamples);
  if (all.num_windows <= num_samples) return all;
  runtime::TokenWindows drawn;
  drawn.num_tokens = all.num_tokens;
  drawn.num_windows = num_samples;
  for (int64_t i = 0; const int64_t window : draw_sorted(all.num_windows, num_samples, recipe.seed)) {
    // Someone chose a .npy's windows and their order; a text's are drawn, so that they are of all of it.
    const std::span<const int32_t> ids = all.window(runtime::holds_token_windows(recipe.text) ? i : window);
    drawn.ids_NT.insert(drawn.ids_NT.end(), ids.begin(), ids.end());
    ++i;
  }
  return drawn;
}

void note_missing_samples(const CalibrationRecipe& recipe, int64_t num_found, const std::string& what,
                          std::vector<std::string>& events) {
  if (!recipe.num_samples || num_found >= *recipe.num_samples) return;
  events.push_back("calibration: '" + recipe.text.string() + "' has " + std::to_string(num_found) + " " + what +
                   ", fewer than the " + std::to_string(*recipe.num_samples) + " samples asked for: all are taken");
}

void note_other_windows(const CalibrationRecipe& recipe, const runtime::TokenWindows& found,
                        std::vector<std::string>& events) {
  note_missing_samples(recipe, found.num_windows, "windows of " + std::to_string(found.num_tokens) + " tokens", events);
  if (!recipe.num_tokens || *recipe.num_tokens == found.num_tokens) return;
  events.push_back("calibration: '" + recipe.text.string() + "' holds windows of " + std::to_string(found.num_tokens) +
                   " tokens, not the " + std::to_string(*recipe.num_tokens) + " asked for: they are taken as they are");
}

std::optional<std::string> unknown_text(const CalibrationRecipe& recipe, const runtime::TokenWindows& windows,
                                        const runtime::Checkpoint& checkpoint) {
  const TextLoss measured = measure_text_loss(checkpoint, windows);
  if (measured.is_known()) return std::nullopt;
  return "calibration: '" + recipe.text.string() + "' costs the model " + runtime::format_number(measured.loss, 2) +
         " nats a token, and no less than the " + runtime::format_number(measured.entropy, 2) +
         " that the frequencies of its tokens alone would cost: the model does not know this text. Its token ids may "
         "be those of another tokenizer, or the weights may be damaged or untrained";
}

void read_evaluations(const Recipe& recipe, runtime::EvaluationSource& source, RunData& data) {
  for (const EvaluationRecipe& item : recipe.evaluate) data.evaluations.push_back(item.options->read(source));
  if (!recipe.benchmark || source.model.is_encoder()) return;
  constexpr runtime::BackendOptions kAnyBackend = {.num_threads = 1};
  runtime::check_bench(source.model.description(), kAnyBackend, recipe.benchmark->options);
  const runtime::BenchOptions& options = recipe.benchmark->options;
  data.benchmark = {
      .reference = recipe.benchmark->reference,
      .num_texts = options.repetitions,
      .num_tokens = options.repetitions * options.prefill_tokens,
      .num_new_tokens = options.repetitions * options.decode_tokens,
      .workload = runtime::bench_workload(source.model.description(), kAnyBackend, options, runtime::kKvFloatBits)};
}

std::vector<runtime::EvaluationExtent> evaluation_extents(const Recipe& recipe, const RunData& data) {
  std::vector<runtime::EvaluationExtent> extents;
  for (const auto& evaluation : data.evaluations) extents.push_back(evaluation->extent());
  if (recipe.budget) extents.push_back(runtime::perplexity_extent(data.survey.value(), {}, /*reference=*/true));
  if (data.benchmark) extents.push_back(*data.benchmark);
  return extents;
}

RunData read_data(const Recipe& recipe, const RunPlan& plan, const runtime::Checkpoint& checkpoint) {
  const bool needs_windows = plan.needs_calibration && recipe.calibration->statistics.empty();
  const bool surveys = recipe.sensitivity || recipe.budget;
  const bool has_survey_text = recipe.sensitivity && !recipe.sensitivity->text.empty();
  const bool reads_windows = needs_windows || (surveys && !has_survey_text);
  RunData data;
  runtime::EvaluationSource source(checkpoint, nullptr,
                                   data.events);  // results are compared with a model of the same tokenizer
  std::vector<fs::path> texts;
  if (reads_windows) texts.push_back(recipe.calibration->text);
  if (has_survey_text) texts.push_back(recipe.sensitivity->text);
  runtime::check_windows_tokenizers(texts, checkpoint.directory(), data.events);
  read_evaluations(recipe, source, data);
  if (plan.needs_calibration && !needs_windows) {
    data.statistics = read_statistics(recipe.calibration->statistics, checkpoint);
  }
  if (reads_windows) {
    data.calibration =
        read_calibration(*recipe.calibration, source.tokenizer_for(recipe.calibration->text), checkpoint.description());
  }
  if (data.calibration && plan.asks_to_fit() && data.calibration->num_windows < 2) {
    data.events.push_back(
        "fit: an eighth of the windows is held out to choose how far layers are fitted, and there is "
        "only one window: no layer is fitted (S = 0)");
  }
  if (data.calibration && plan.reconstructs() && data.calibration->num_windows < 2) {
    throw std::invalid_argument("reconstruct: '" + recipe.calibration->text.string() + "' gives one window of " +
                                std::to_string(data.calibration->num_tokens) +
                                " tokens; expected at least 2, one to train on and one to choose by: give more text or "
                                "shorter windows");
  }
  if (data.calibration) note_other_windows(*recipe.calibration, *data.calibration, data.events);
  if (has_survey_text) {
    const SensitivityRecipe& item = *recipe.sensitivity;
    const int64_t context = item.context.value_or(runtime::holds_token_windows(item.text) ? 0 : kSurveyContext);
    data.survey = runtime::make_scored_windows(item.text, source.tokenizer_for(item.text), checkpoint.description(),
                                               {runtime::Protocol::gptq, context, item.num_windows});
  } else if (surveys) {
    data.survey = first_windows(*data.calibration, recipe.sensitivity.value_or(SensitivityRecipe{}),
                                recipe.calibration->text.filename().string());
  }
  if (!needs_windows) data.calibration.reset();
  return data;
}

void check_weights(const runtime::Checkpoint& checkpoint) {
  checkpoint.check_values();
}

std::string windows_hash(const runtime::TokenWindows& windows) {
  runtime::Sha256 hash;
  const std::string shape = std::to_string(windows.num_windows) + "x" + std::to_string(windows.num_tokens) + " ";
  hash.update(std::as_bytes(std::span(shape)));
  hash.update(std::as_bytes(std::span(windows.ids_NT)));
  return hash.hex();
}

std::string texts_hash(const CalibrationTexts& texts) {
  runtime::Sha256 hash;
  for (const std::vector<int32_t>& ids : texts) {
    const std::string size = std::to_string(ids.size()) + " ";
    hash.update(std::as_bytes(std::span(size)));
    hash.update(std::as_bytes(std::span(ids)));
  }
  return hash.hex();
}

int64_t count_tokens(const CalibrationTexts& texts) {
  int64_t num_tokens = 0;
  for (const std::vector<int32_t>& ids : texts) num_tokens += static_cast<int64_t>(ids.size());
  return num_tokens;
}

}  // namespace pare::compress
