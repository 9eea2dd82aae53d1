// config.json of checkpoints that only pare reads. Other programs find a model's code by "model_type" and
// "architectures". If they know these but not the container, they go on with random weights. So these names are
// changed:
//
//   "model_type": "llama"                     "pare_llama"
//   "architectures": ["LlamaForCausalLM"]     ["PareLlamaForCausalLM"]
//   quantization_config "quant_method"        "pare_method"
//
// The last change is for callers that choose the code themselves (LlamaForCausalLM.from_pretrained). transformers
// raises an error if a quantization_config has no method, and only warns of one that it does not know.
#pragma once

#include <string>

namespace pare::runtime {

// Returns such a config.json, made from the model's own with its quantization_config. A text that is one already is
// returned as it is. `where` names it in messages. Throws BadJson for a text that is not JSON.
std::string config_for_pare_alone(const std::string& config_json, const std::string& where);

// Does the inverse: restores the names for this program's readers. Any other text is returned as it is.
std::string config_of_model(const std::string& config_json, const std::string& where);

}  // namespace pare::runtime
