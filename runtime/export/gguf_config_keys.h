// config.json in the words of a GGUF file's metadata: the inverse of runtime/import/gguf_config.h.
#pragma once

#include <string>
#include <vector>

#include "runtime/families/families.h"
#include "runtime/files/gguf_writer.h"
#include "runtime/model/model_description.h"

namespace pare::runtime {

// Sets general.architecture and all keys of the architecture. `config_json` is the text of the config.json that
// `model` was made of, and `where` names it. What a GGUF file cannot say is left out: reading the keys back tells
// (gguf_read_back.h). Throws std::invalid_argument for a scaling of RoPE that no GGUF file has.
void set_config_keys(const std::string& config_json, const std::string& where, const DecoderFamily& family,
                     const ModelDescription& model, GgufMetadata& metadata);

// Returns the tensors that say what config.json says: divisors and factors of RoPE's frequencies, in float32. None for
// most models. Throws as above.
std::vector<StreamedGgufTensor> setting_tensors(const std::string& config_json, const std::string& where,
                                                const DecoderFamily& family, const ModelDescription& model);

}  // namespace pare::runtime
