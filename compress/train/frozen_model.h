// A model whose weights do not change: a teacher, or the student as it is now.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "compress/model/decoder_functions.h"

namespace pare::compress {

// In its compute type.
struct FrozenModel {
  const DecoderFunctions* functions = nullptr;
  at::Tensor embedding_VD, head_VD, gain_D;
  std::vector<NamedTensors> blocks;

  // Normalized hidden states [B, T, D] of ids_BT; earlier: empty, or what each block has seen before, which is added
  // to; behind_blocks: not null, set to the hidden states [B, T, D] behind each block; starts: as of
  // DecoderFunctions::block. To be called without gradients.
  at::Tensor normalized(const at::Tensor& ids_BT, std::vector<KeyValues>* earlier = nullptr,
                        std::vector<at::Tensor>* behind_blocks = nullptr, const DocumentStarts& starts = {}) const;
  at::Tensor head_products(const at::Tensor& normalized_RD) const {
    return functions->head_products(head_VD, normalized_RD);
  }
  // float32 [R, V].
  at::Tensor logits(const at::Tensor& normalized_RD) const { return functions->logits(head_VD, normalized_RD); }
};
// On the device of `functions`, which must outlive it.
FrozenModel read_frozen(const runtime::Checkpoint& checkpoint, const DecoderFunctions& functions, HeldWeights held);

}  // namespace pare::compress
