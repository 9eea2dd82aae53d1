// One block of a model in float32, as the passes see it: stages and the weights of the linears that read them. Decoder
// and encoder blocks are computed each in its own way (decoder_block.h, encoder_block.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "runtime/format/input_format.h"
#include "runtime/model/stage.h"

namespace pare {

class Block {
 public:
  virtual ~Block() = default;
  virtual const std::string& name() const = 0;
  virtual std::vector<Stage> stages() const = 0;

  // [O, I] float32, a view: of layer `index` of stage_layers.
  virtual at::Tensor weight(Stage stage, size_t index) const = 0;
  // Replaces it by weight_OI (row-major, O * I values).
  virtual void set_weight(Stage stage, size_t index, std::span<const float> weight_OI) = 0;
  // From now on the stage's input is rounded so before its linears multiply it, each window (text) being one sequence,
  // as the runtime will do it. Throws what validate(InputFormat) throws.
  virtual void set_input_format(Stage stage, InputFormat format) = 0;
};

}  // namespace pare
