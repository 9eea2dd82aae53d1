// From a block that a recipe's passes have come through to its trained form: codes, scales and kept weights are handed
// to the training, and what it makes of them takes their place.
#pragma once

#include "compress/passes/compress_stage.h"
#include "compress/reconstruct/reconstruct_block.h"

namespace pare {

// `layers` are the block's plans; those with a step that reconstructs are trained, all else stays as it is. Layers,
// changed tensors and the block's weights are replaced, and `reconstruction` of the layers' records is set. `model` is
// the block's, in the type that the options ask for; its input formats are set to the block's. Returns whether any
// weight has changed. Throws what reconstruct_block throws.
bool reconstruct_work(const std::vector<LayerPlan>& layers, int64_t index, const BlockSamples& samples,
                      FunctionalModel& model, BlockWork& work);

}  // namespace pare
