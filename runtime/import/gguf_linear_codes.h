// Linears of a GGUF file whose blocks hold codes of integers and scales, as codes: what export writes of codes comes
// back unchanged.
//
// A block of Q4_0, Q5_0 or Q8_0 has a scale d and codes q, and W = d (q - 8), d (q - 16) or d q: symmetric codes of 4
// bits for Q4_0, and of 8 for others. One of Q4_1 or Q5_1 has W = d q + m: codes of 4 or 8 bits with a zero z, if m is
// -z d for a whole z of as many bits. Scales may be negative. Blocks that share a scale and a zero in every row of the
// linear are one group.
//
// The tensors are those of compressed-tensors' int-quantized, a byte for each code: its header alone says all that is
// checked before weights are read.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/files/gguf.h"
#include "runtime/files/safetensors.h"
#include "runtime/model/families.h"
#include "runtime/model/model_description.h"

namespace pare::runtime {

// Replaces the weights of the linears of blocks that have such blocks, and returns config.json with their
// quantization_config; unchanged, if there are none. Reads every block of them.
std::string keep_linear_codes(const std::shared_ptr<const GgufFile>& file, const DecoderFamily& family,
                              const ModelDescription& model, const std::string& config_json,
                              std::vector<StreamedTensor>& tensors);

}  // namespace pare::runtime
