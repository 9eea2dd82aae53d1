// What `pare run` does otherwise for an encoder than for a decoder: the plan, the data, the walk and the evaluation.
// The line itself, the artifact and the reports are the pipeline's.
#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "compress/artifact/artifact.h"
#include "compress/artifact/manifest.h"
#include "compress/plan/plan.h"
#include "compress/plan/preflight.h"
#include "compress/plan/run_data.h"
#include "compress/recipe/recipe.h"
#include "runtime/evaluate/evaluate_embeddings.h"
#include "runtime/system/progress.h"

namespace pare {

// Throws std::invalid_argument for what has no meaning for an encoder, or no exact one: scaling passes (a norm's output
// feeds the residual sum as well as the next linears), head, budget, perplexity, ...; and what plan_run throws.
PlannedRun plan_encoder(const Recipe& recipe, const Checkpoint& checkpoint);

// Who loads the artifact that the plan makes: this runtime and transformers.
std::vector<EngineVerdict> judge_encoder_engines(const PlannedRun& plan);

// Calibration texts, as many as the recipe says, drawn at random and kept in order, each cut to the recipe's or the
// model's number of tokens; and the pairs of the evaluations.
RunData read_encoder_data(const Recipe& recipe, const PlannedRun& plan, const Checkpoint& checkpoint);

EncoderWorkload measure_encoder_workload(const Recipe& recipe, const RunData& data, int num_threads);

// The walk over the blocks: statistics, compression, on with the compressed weights. Blocks that an earlier run has
// committed are restored. `on_block` gets a block's records before it is committed, and the seconds that are left; it
// may throw. Throws Interrupted, UnusableInput and what the passes throw.
void compress_encoder_blocks(const Recipe& recipe, const Checkpoint& checkpoint, const PlannedRun& plan,
                             const RunData& data, Artifact& artifact, Progress& progress,
                             const std::function<void(const std::vector<LayerRecord>&, double)>& on_block,
                             RunReport& report);

// The recipe's evaluations of the encoder in `directory`, against `source`.
std::vector<EmbeddingEvaluation> evaluate_encoder_artifact(const Recipe& recipe, const Checkpoint& source,
                                                           const RunData& data, const std::filesystem::path& directory,
                                                           int num_threads, Progress& progress);

}  // namespace pare
