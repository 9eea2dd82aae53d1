// One block of a model in float32, as the passes see it: the weights and input formats of its stages' linears. What
// decoder and encoder blocks compute with them are the functions of compress/model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "compress/model/block_weights.h"
#include "runtime/model/stage.h"

namespace pare::compress {

class Block {
 public:
  virtual ~Block() = default;
  virtual const std::string& name() const = 0;
  virtual std::vector<runtime::Stage> stages() const = 0;
  // The linears that read the stage's input, in order.
  virtual std::vector<runtime::LinearDescription> layers(runtime::Stage stage) const = 0;

  // [O, I] float32, a view: of layer `index` of stage_layers.
  at::Tensor weight(runtime::Stage stage, size_t index) const;
  // Replaces it by weight_OI (row-major, O * I values).
  void set_weight(runtime::Stage stage, size_t index, std::span<const float> weight_OI);
  // From now on the stage's input is rounded so before its linears multiply it, each window (text) being one sequence,
  // as the runtime will do it. Throws what validate(InputFormat) throws.
  void set_input_format(runtime::Stage stage, runtime::InputFormat format);

  // All it multiplies with, float32, and how the inputs of its linears are rounded.
  const NamedTensors& tensors() const { return tensors_; }
  const InputFormats& input_formats() const { return input_formats_; }

 protected:
  Block() = default;
  Block(const Block&) = default;
  Block& operator=(const Block&) = default;

  NamedTensors tensors_;
  InputFormats input_formats_;
};

}  // namespace pare::compress
