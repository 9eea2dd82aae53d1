// What `pare run` does in its own way for decoders and for encoders: plan, data, prediction and walk. The line itself,
// the artifact, its evaluations and the reports are the pipeline's, which knows no difference.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "compress/plan/plan.h"
#include "compress/plan/plan_verdicts.h"
#include "compress/predict/predict.h"
#include "compress/run/manifest.h"
#include "compress/run/run_data.h"
#include "compress/walk/model_walk.h"

namespace pare::compress {

class ModelKind {
 public:
  // Of the checkpoint, which must outlive it.
  static std::unique_ptr<ModelKind> of(const runtime::Checkpoint& checkpoint);
  virtual ~ModelKind() = default;

  // Throws what plan_decoder and plan_encoder throw.
  virtual RunPlan plan(const Recipe& recipe) const = 0;
  virtual std::vector<EngineVerdict> judge(const RunPlan& plan) const = 0;
  // The recipe's data. Throws std::invalid_argument and std::runtime_error for files that are none.
  virtual RunData read_data(const Recipe& recipe, const RunPlan& plan) const = 0;
  virtual Prediction predict(const Recipe& recipe, const RunPlan& plan, const RunData& data,
                             const RunLimits& limits) const = 0;
  // `embedding` is the table that the compressed model will embed with. with_original: the uncompressed model's states
  // go along. keeps_block_inputs: so do those in front of each block.
  virtual std::unique_ptr<ModelWalk> walk(const Recipe& recipe, const RunData& data,
                                          const runtime::LinearWeights& embedding, Spill spill,
                                          const std::filesystem::path& spill_directory, int num_workers,
                                          bool with_original, bool keeps_block_inputs) const = 0;
};

std::unique_ptr<ModelKind> make_decoder_kind(const runtime::Checkpoint& checkpoint);
std::unique_ptr<ModelKind> make_encoder_kind(const runtime::Checkpoint& checkpoint);

}  // namespace pare::compress
