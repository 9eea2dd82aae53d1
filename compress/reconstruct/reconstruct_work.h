// Trains a block that a recipe's passes have compressed. Codes, scales and kept weights are handed to the training, and
// their trained values replace them.
#pragma once

#include "compress/passes/compress_stage.h"
#include "compress/reconstruct/reconstruct_block.h"

namespace pare::compress {

// Trains the layers that have a step that reconstructs; all others stay as they are. `layers` are the block's plans.
// Layers, changed tensors and the block's weights are replaced, and `reconstruction` of the layers' records is set.
// `model` is the block's model, in the type that the options ask for; its input formats are set to the block's. Returns
// whether any weight has changed. Throws what reconstruct_block throws.
bool reconstruct_work(const std::vector<LayerPlan>& layers, int64_t index, const BlockSamples& samples,
                      DecoderFunctions& model, BlockWork& work);

}  // namespace pare::compress
