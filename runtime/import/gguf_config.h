// The metadata of a GGUF file in the words of Hugging Face's config.json.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/families/families.h"
#include "runtime/files/gguf.h"
#include "runtime/format/dtype.h"

namespace pare::runtime {

struct GgufSizes {
  int64_t num_blocks = 0;
  int64_t num_next_tokens = 0;  // blocks behind those, each of which predicts a later token
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t hidden_size = 0;
  int64_t head_size = 0;
  int64_t vocabulary_size = 0;
  int64_t num_experts = 0;  // of a mixture, else 0
};

// Returns the family of the file's general.architecture. Where families share one, experts and a window decide. Throws
// std::invalid_argument naming the architectures that are known.
const DecoderFamily& find_gguf_family(const GgufFile& file);

// Throws std::runtime_error naming the key, what was expected and what was found.
GgufSizes read_gguf_sizes(const GgufFile& file, const DecoderFamily& family);

// Returns the text of config.json, for weights that are written in `dtype`. Throws std::runtime_error as above, and
// std::invalid_argument for what no config.json of the family says.
std::string make_gguf_config(const GgufFile& file, const DecoderFamily& family, const GgufSizes& sizes, DType dtype);

// Returns bos_token_id and eos_token_id as generation_config.json holds them. All tokens that end a text stand in the
// latter: the file's eos, eot and eom.
std::string make_gguf_generation_config(const GgufFile& file);

// Returns whether a tensor of the file says what config.json says, and is no weight.
bool is_gguf_setting(const std::string& tensor_name);

}  // namespace pare::runtime
