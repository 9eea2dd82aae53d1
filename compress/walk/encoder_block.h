// One encoder block in float32 on LibTorch: what the calibration walks through, cut at its four stages
// (compress/model/encoder_functions.h). Its functions handle one text of T tokens on the calling thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compress/model/encoder_functions.h"
#include "compress/walk/block.h"
#include "runtime/model/checkpoint.h"
#include "runtime/model/encoder_description.h"

namespace pare::compress {

class EncoderBlock : public Block {
 public:
  // Reads block `index` (norms, weights, biases; dense or compressed) as float32. Throws what Checkpoint throws.
  EncoderBlock(const runtime::Checkpoint& checkpoint, int64_t index);

  const runtime::EncoderBlockDescription& description() const { return *block_; }

  const std::string& name() const override { return block_->name; }
  std::vector<runtime::Stage> stages() const override { return {runtime::kStages.begin(), runtime::kStages.end()}; }
  std::vector<runtime::LinearDescription> layers(runtime::Stage stage) const override {
    return runtime::stage_layers(*block_, stage);
  }

  // Its functions, with the weights and formats that it has by then.
  EncoderFunctions functions() const { return {*model_, *block_, tensors_, input_formats_, distances_HN_}; }

 private:
  const runtime::EncoderDescription* model_;
  const runtime::EncoderBlockDescription* block_;
  at::Tensor distances_HN_;  // undefined: the model has none
};

// hidden_TD = norm(word[id] + token_type[0] + position[t]) of one text, [T, D] float32. The checkpoint must outlive it.
class EncoderEmbedding {
 public:
  explicit EncoderEmbedding(const runtime::Checkpoint& checkpoint);
  void embed(std::span<const int32_t> ids_T, at::Tensor& hidden_TD) const;

 private:
  const runtime::EncoderDescription* model_;
  runtime::LinearWeights words_;
  std::optional<runtime::LinearWeights> token_types_, positions_;
  runtime::LayerNorm norm_;
};

}  // namespace pare::compress
