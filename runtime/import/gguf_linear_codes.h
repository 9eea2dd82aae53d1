// Linears of a GGUF file whose blocks hold codes of integers and scales, as codes: what export writes of codes comes
// back unchanged.
//
// runtime/blocks/block_integers.h says which blocks are such codes.
//
// The tensors are those of compressed-tensors' int-quantized, a byte for each code: its header alone says all that is
// checked before weights are read.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/families/families.h"
#include "runtime/files/gguf.h"
#include "runtime/files/safetensors.h"
#include "runtime/model/model_description.h"

namespace pare::runtime {

// Replaces the weights of the linears of blocks that have such blocks, and returns config.json with their
// quantization_config; unchanged, if there are none. Reads every block of them.
std::string keep_linear_codes(const std::shared_ptr<const GgufFile>& file, const DecoderFamily& family,
                              const ModelDescription& model, const std::string& config_json,
                              std::vector<StreamedTensor>& tensors);

}  // namespace pare::runtime
