// One decoder block in float32 on LibTorch: what the calibration walks through, cut at its stages
// (compress/model/decoder_functions.h). Its functions handle one window of T tokens on the calling thread, so that
// workers split windows and the same window always gives the same bits.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compress/model/decoder_functions.h"
#include "compress/walk/block.h"
#include "runtime/model/checkpoint.h"

namespace pare::compress {

class DecoderBlock : public Block {
 public:
  // Reads block `index` (norms, weights, biases; dense or compressed) as float32; windows have num_tokens tokens.
  // Throws what Checkpoint and stage_layers throw.
  DecoderBlock(const runtime::Checkpoint& checkpoint, int64_t index, int64_t num_tokens);

  const runtime::BlockDescription& description() const { return *block_; }

  const std::string& name() const override { return block_->name; }
  std::vector<runtime::Stage> stages() const override { return runtime::block_stages(*block_); }
  std::vector<runtime::LinearDescription> layers(runtime::Stage stage) const override {
    return runtime::stage_layers(*block_, stage);
  }
  // Divides the rows of its weight, and its bias, by scales_O (one per output).
  void divide_outputs(runtime::Stage stage, size_t index, std::span<const float> scales_O);
  // The norm that makes the stage's input gets another gain_D, with the unit offset added.
  void set_norm_gain(runtime::Stage stage, std::span<const float> gain_D);
  // So does its bias.
  void set_norm_bias(runtime::Stage stage, std::span<const float> bias_D);
  // Replaces the layer's bias.
  void set_bias(runtime::Stage stage, size_t index, std::span<const float> bias_O);

  // From now on the site's rows are rounded so (BlockFunctions). Throws std::invalid_argument for a format whose rows
  // are not rounded each by itself.
  void round_site(const RoundedSite& site);
  void round_no_site() { rounded_site_.reset(); }

  // Its functions, on hidden states [T, D] with the weights and formats that it has by then.
  BlockFunctions functions() const;
  // hidden_TD goes through all of them, in place.
  void forward(at::Tensor& hidden_TD) const { functions().pass(hidden_TD); }
  // So does a stage's output.
  void add_output(runtime::Stage stage, const at::Tensor& output_TD, at::Tensor& hidden_TD) const {
    functions().add_to(stage, output_TD, hidden_TD);
  }

 private:
  const runtime::BlockDescription* block_;
  int64_t index_;
  DecoderFunctions functions_;
  std::optional<RoundedSite> rounded_site_;
};

// Whether what the stage's layer makes is added to the hidden state.
bool is_output_stage(runtime::Stage stage);
// The widest input of an output stage.
int64_t widest_input(const runtime::ModelDescription& model);
// The widest input of the other stages, which norms make.
int64_t widest_made_input(const runtime::ModelDescription& model);

}  // namespace pare::compress
