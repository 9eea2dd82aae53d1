// The recipe's data, and what is checked of model and disk before any work.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "compress/plan/plan.h"
#include "compress/predict/predict.h"
#include "compress/recipe/recipe.h"
#include "compress/walk/encoder_walk.h"
#include "compress/walk/statistics_file.h"
#include "runtime/evaluate/evaluation.h"
#include "runtime/evaluate/perplexity.h"
#include "runtime/files/npy.h"
#include "runtime/tokenizer/tokenizer.h"

namespace pare::compress {

// What the manifests of a run's phases before this one say that the last one's is to say as well.
struct EarlierPhases {
  std::vector<std::string> events;
  std::vector<std::string> trainings;  // one JSON object each, in their order
};

// Opens a file of statistics. Throws std::runtime_error if it is of another model than the checkpoint, and what
// StatisticsFile::open throws.
StatisticsFile read_statistics(const std::filesystem::path& path, const runtime::Checkpoint& checkpoint);

// At most one of the first three, as the recipe says.
struct RunData {
  std::optional<runtime::TokenWindows> calibration;                      // in tokens
  std::optional<StatisticsFile> statistics;                              // of this model
  std::optional<CalibrationTexts> texts;                                 // of an encoder
  std::optional<runtime::ScoredWindows> survey;                          // what sensitivities are measured on
  std::vector<std::shared_ptr<const runtime::Measurement>> evaluations;  // of each of the recipe's
  std::optional<runtime::EvaluationExtent> benchmark;                    // what it takes
  std::optional<int64_t> evaluated_bytes;                                // as in Workload
  std::vector<std::string> events;  // what the recipe asks of the data and they do not have, in words
  EarlierPhases earlier;            // of the run
};

// Notes as an event that the data have fewer windows or texts (`what`) than the recipe asks for.
void note_missing_samples(const CalibrationRecipe& recipe, int64_t num_found, const std::string& what,
                          std::vector<std::string>& events);
// Likewise of windows: fewer of them, or of another length than asked for.
void note_other_windows(const CalibrationRecipe& recipe, const runtime::TokenWindows& found,
                        std::vector<std::string>& events);

// Windows of a .npy are taken in order, those of a text drawn at random and kept in order. tokenizer may be null for a
// .npy. Throws std::invalid_argument: windows longer than the model's context; what read_token_windows throws.
runtime::TokenWindows read_calibration(const CalibrationRecipe& recipe, const runtime::Tokenizer* tokenizer,
                                       const runtime::ModelDescription& model);

// What to say where the model does not know the calibration's text (measure_text_loss). Costs a pass over its weights.
std::optional<std::string> unknown_text(const CalibrationRecipe& recipe, const runtime::TokenWindows& windows,
                                        const runtime::Checkpoint& checkpoint);

// What the plan needs of the recipe's calibration, and the evaluations' windows. Throws as above, and
// std::runtime_error: statistics of another model (which), damaged ones.
RunData read_data(const Recipe& recipe, const RunPlan& plan, const runtime::Checkpoint& checkpoint);

// The part of it that evaluations are measured on. Throws std::invalid_argument for a benchmark beyond the model's
// context as well.
void read_evaluations(const Recipe& recipe, runtime::EvaluationSource& source, RunData& data);
// What the evaluations take, and of a budget the measurement of the loss that its survey predicted.
std::vector<runtime::EvaluationExtent> evaluation_extents(const Recipe& recipe, const RunData& data);

// Decodes every weight once, so that a NaN is found now and not after hours.
void check_weights(const runtime::Checkpoint& checkpoint);

// SHA-256 of shape and token ids.
std::string windows_hash(const runtime::TokenWindows& windows);
// Likewise of texts.
std::string texts_hash(const CalibrationTexts& texts);
int64_t count_tokens(const CalibrationTexts& texts);

}  // namespace pare::compress
