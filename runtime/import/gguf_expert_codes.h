// Experts of a GGUF file in MXFP4 keep their codes, in the stacks of Hugging Face (runtime/model/expert_stacks.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/files/gguf.h"
#include "runtime/files/safetensors.h"
#include "runtime/model/model_description.h"

namespace pare::runtime {

// Returns whether all experts of a model that stacks them are in MXFP4 in the file.
bool has_expert_codes(const GgufFile& file, const ModelDescription& model);

// Replaces the float tensors of all experts, which check_tensors() has seen, by stacks of codes and of biases.
void stack_expert_codes(const std::shared_ptr<const GgufFile>& file, const ModelDescription& model,
                        std::vector<StreamedTensor>& tensors);

// Returns a config.json that says so, as that of the published models does.
std::string with_expert_codes(const std::string& config_json, const ModelDescription& model);

}  // namespace pare::runtime
