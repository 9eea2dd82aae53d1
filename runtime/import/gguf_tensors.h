// The tensors of a GGUF file under Hugging Face's names.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "runtime/families/families.h"
#include "runtime/files/gguf.h"
#include "runtime/files/safetensors.h"
#include "runtime/import/gguf_places.h"
#include "runtime/model/model_description.h"

namespace pare::runtime {

// Returns those of them that the file has: what it lacks, check_tensors() tells. `written_dtype` says the type of each.
// Throws std::invalid_argument for a tensor of the file that has no place in the model, and std::runtime_error for
// stacks of another shape.
std::vector<StreamedTensor> gguf_tensors(const std::shared_ptr<const GgufFile>& file, const DecoderFamily& family,
                                         const ModelDescription& model,
                                         const std::function<DType(const GgufTensor&)>& written_dtype);

}  // namespace pare::runtime
