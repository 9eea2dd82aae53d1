#include "compress/walk/block.h"

#include <algorithm>
#include <stdexcept>

namespace pare::compress {

at::Tensor Block::weight(runtime::Stage stage, size_t index) const {
  return find_tensor(tensors_, layers(stage).at(index).name + ".weight");
}

void Block::set_weight(runtime::Stage stage, size_t index, std::span<const float> weight_OI) {
  const at::Tensor target_OI = weight(stage, index);
  if (static_cast<int64_t>(weight_OI.size()) != target_OI.numel()) {
    throw std::invalid_argument("set_weight: expected " + std::to_string(target_OI.numel()) + " values, found " +
                                std::to_string(weight_OI.size()));
  }
  std::copy(weight_OI.begin(), weight_OI.end(), target_OI.data_ptr<float>());
}

void Block::set_input_format(runtime::Stage stage, runtime::InputFormat format) {
  const std::vector<runtime::LinearDescription> readers = layers(stage);
  validate(format, readers.front().num_in, name() + ", " + runtime::stage_name(stage));
  for (const runtime::LinearDescription& reader : readers) input_formats_.insert_or_assign(reader.name, format);
}

}  // namespace pare::compress
