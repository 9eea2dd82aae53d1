// config.json of checkpoints that pare alone reads. Other programs find a model's code by "model_type" and
// "architectures" and go on, with weights made up at random, where they know these but not the container. So the names
// that they go by are taken away:
//
//   "model_type": "llama"                     "pare_llama"
//   "architectures": ["LlamaForCausalLM"]     ["PareLlamaForCausalLM"]
//   quantization_config "quant_method"        "pare_method"
//
// The last one is for those that choose the code themselves (LlamaForCausalLM.from_pretrained): transformers raises
// where a quantization_config has no method, and only warns of one that it does not know.
#pragma once

#include <string>

namespace pare {

// The text of such a config.json, of that of the model with its quantization_config; its own again where it is one
// already. `where` names it in messages. Throws BadJson for a text that is no JSON.
std::string config_for_pare_alone(const std::string& config_json, const std::string& where);

// The inverse: the names as they are for this program's readers. Any other text is returned as it is.
std::string config_of_model(const std::string& config_json, const std::string& where);

}  // namespace pare
