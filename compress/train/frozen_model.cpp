#include "compress/train/frozen_model.h"

namespace pare::compress {

at::Tensor FrozenModel::normalized(const at::Tensor& ids_BT, std::vector<KeyValues>* earlier,
                                   std::vector<at::Tensor>* behind_blocks, const DocumentStarts& starts) const {
  if (earlier != nullptr) earlier->resize(blocks.size());
  if (behind_blocks != nullptr) behind_blocks->clear();
  at::Tensor hidden_BTD = functions->embed(ids_BT, embedding_VD);
  for (size_t b = 0; b < blocks.size(); ++b) {
    hidden_BTD = functions->block(static_cast<int64_t>(b), blocks[b], hidden_BTD,
                                  earlier == nullptr ? nullptr : &(*earlier)[b], starts);
    if (behind_blocks != nullptr) behind_blocks->push_back(hidden_BTD);
  }
  return functions->final_norm(gain_D, hidden_BTD);
}

FrozenModel read_frozen(const runtime::Checkpoint& checkpoint, const DecoderFunctions& functions, HeldWeights held) {
  const runtime::ModelDescription& model = checkpoint.description();
  const at::ScalarType compute = functions.compute_type();
  const at::Device device = functions.device();
  FrozenModel frozen{&functions, read_table(checkpoint, checkpoint.embedding(), compute).to(device), {}, {}, {}};
  frozen.head_VD =
      model.tied_head ? frozen.embedding_VD : read_table(checkpoint, checkpoint.head(), compute).to(device);
  frozen.gain_D = read_gain(checkpoint, model.final_norm).to(device);
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    frozen.blocks.push_back(read_block(checkpoint, static_cast<int64_t>(b), compute, held, device));
    for (auto& [name, tensor] : frozen.blocks.back()) tensor = tensor.to(device);
  }
  return frozen;
}

}  // namespace pare::compress
