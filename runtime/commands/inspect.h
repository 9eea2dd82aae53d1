// Describes what lies at a path: a Hugging Face checkpoint, a safetensors or GGUF file, or token windows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/commands/layer_sparsity.h"
#include "runtime/export/engine_verdicts.h"
#include "runtime/model/activation_sparsity.h"
#include "runtime/model/checkpoint.h"

namespace pare::runtime {

// Sizes of the weights as stored. Codes, scales, zeros and group indices count; biases and norms do not.
struct WeightSizes {
  int64_t linear_parameters = 0;  // the blocks' linears
  int64_t linear_bytes = 0;
  int64_t all_parameters = 0;  // with the embedding, and the head unless it is tied to it
  int64_t all_bytes = 0;
  double linear_bits() const {
    return 8.0 * static_cast<double>(linear_bytes) / static_cast<double>(linear_parameters);
  }
  double all_bits() const { return 8.0 * static_cast<double>(all_bytes) / static_cast<double>(all_parameters); }
};
WeightSizes weight_sizes(const Checkpoint& checkpoint);

// Returns the bytes of a linear as it is stored, without its bias. `names` has all tensors of the checkpoint, sorted.
int64_t linear_bytes(const Checkpoint& checkpoint, const std::vector<std::string>& names, const std::string& linear);

// Returns what is said of linears that are read as floats although the files hold codes of them
// (TensorTable::decode_free_biases); "" if there are none. Reads the headers of the files. Throws what reading them
// throws.
std::string decoding_note(const Checkpoint& checkpoint);
// Returns what is said of keys and values that config.json would have rounded; "" if it would not.
std::string cache_note(const Checkpoint& checkpoint);

struct TensorSummary {
  std::string name;
  std::string dtype;  // "BF16"; in a GGUF "Q4_K"
  std::vector<int64_t> shape;
  int64_t num_bytes = 0;
};

struct Inspection {
  std::string kind;                           // "checkpoint", "safetensors", "gguf", "token windows"
  int64_t num_bytes = 0;                      // the weight files, or the file
  std::vector<TensorSummary> tensors;         // sorted by name
  std::optional<ModelDescription> model;      // for a checkpoint of a decoder
  std::optional<EncoderDescription> encoder;  // for a checkpoint of an encoder
  std::optional<WeightSizes> sizes;           // checkpoint
  bool is_quantized = false;                  // checkpoint
  std::string quantization_method;            // checkpoint: "compressed-tensors", "awq", "bitsandbytes"; "" when dense
  std::vector<LayerSparsity> sparsity;        // checkpoint: the layers with a claim of sparsity
  SparsityThresholds sparsity_thresholds;     // checkpoint: of activation sparsity, by layer
  std::string decoding;                       // checkpoint: decoding_note
  std::string cache;                          // checkpoint: cache_note
  std::string architecture;                   // gguf
  std::vector<EngineVerdict> engines;         // checkpoint and gguf: who loads it; filled by judge()
  int64_t num_windows = 0, num_tokens = 0;    // token windows
  std::string windows_tokenizer;  // token windows: the hash of the tokenizer that made the ids; empty: not known

  // Returns the bytes by dtype.
  std::map<std::string, int64_t> bytes_by_dtype() const;
};

// Throws std::invalid_argument if the path is none of these, and what the readers throw. Weights are read only for
// layers that are claimed to be pruned; a layer that breaks its claim is reported with its problem.
Inspection inspect(const std::filesystem::path& path);

// Returns who loads the checkpoint, or the .gguf, at the path; nothing for other files. Throws what Checkpoint::open
// throws.
std::vector<EngineVerdict> judge(const std::filesystem::path& path);

std::string to_json(const Inspection& inspection);
// `list_tensors` adds one line for each tensor.
std::string to_text(const Inspection& inspection, bool list_tensors);

}  // namespace pare::runtime
