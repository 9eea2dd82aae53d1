// A Hugging Face directory: config.json, tokenizer files, and one or several safetensors files (several with an index).
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/files/safetensors.h"
#include "runtime/format/linear_weights.h"
#include "runtime/format/stored_scheme.h"
#include "runtime/model/activation_sparsity.h"
#include "runtime/model/encoder_description.h"
#include "runtime/model/generation_config.h"
#include "runtime/model/layer_norm.h"
#include "runtime/model/model_description.h"

namespace pare::runtime {

// Opening validates everything first: that the index's files are there, every tensor that the model description asks
// for (present, dtype, shape), the quantization_config. Reading a weight checks its values (finite; scales, zeros and
// groups in range). Tensors that the model does not need are tolerated. Throws std::invalid_argument for a config.json
// that describes no model that pare knows. Throws std::runtime_error for files that do not hold what it describes:
// file, tensor, expected, found, what to do.
class Checkpoint {
 public:
  static Checkpoint open(const std::filesystem::path& directory);
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const std::filesystem::path& directory() const;
  // A checkpoint holds a decoder or an encoder. Asking for the other one's description throws std::invalid_argument.
  bool is_encoder() const;
  const ModelDescription& description() const;
  // Returns a decoder's; an encoder's has nothing. Throws std::invalid_argument for a complaint.
  const GenerationConfig& generation() const;
  const EncoderDescription& encoder() const;
  const std::string& config_json() const;  // the file's text, with the model's own names (own_config.h)
  // True if config.json has a quantization_config, of one of container_formats().
  bool is_quantized() const;
  // The name of its container in config.json (ContainerFormat::method()); "" if dense.
  std::string quantization_method() const;
  // Returns how the weight of this linear (or of the embedding) is stored; nullopt: dense.
  std::optional<PackScheme> stored_scheme(const LinearDescription& linear) const;

  bool has_tensor(const std::string& name) const;
  // A tensor of a stack of experts and a transposed weight are made as they are read, in memory of their own. All
  // others are views of the mapped files. Both functions throw std::runtime_error if it is missing.
  TensorView tensor(const std::string& name) const;
  TensorLayout layout(const std::string& name) const;  // without making it
  std::vector<std::string> tensor_names() const;       // sorted
  // Returns the name under which a result made from this checkpoint stores a tensor. Tensors have the description's
  // names, whatever those of the files are (stored_names.h), and results have them too. The text part of a whole model
  // keeps its names, since programs know the whole by them.
  std::string written_name(const std::string& tensor) const;
  // Returns whether a result stores this tensor, in floats, as [I, O] (ModelDescription::stores_transposed). Here it is
  // [O, I], whatever the files hold.
  bool is_written_transposed(const std::string& tensor, DType dtype) const;
  // Returns the modules of a whole model beside its text part, without a "model." before them: "vision_tower". Empty
  // for other models.
  std::vector<std::string> other_parts() const;
  std::vector<std::filesystem::path> weight_files() const;  // the safetensors files

  // Returns the SHA-256 by file name of what was read: config.json's text, and the weight files as they are mapped.
  std::map<std::string, std::string> file_hashes() const;
  // Throws std::runtime_error if config.json, the index or a weight file is no longer the file that was opened, or was
  // written to since (runtime/system/input_files.h). It is cheap: call it after each piece of work.
  void check_unchanged() const;

  // Returns the linear's weight, bias and input format, validated: finite, right shapes. A dense weight is as
  // tensor() gives it, with plain input. A quantized one has its codes unpacked, and its input as the container says,
  // with a stored scale and zero. The same call reads the embedding and the head, through the descriptions below.
  // Blocks of GGUF are decoded to float32, which backends multiply.
  LinearWeights linear(const LinearDescription& linear) const;
  // Returns the same, with blocks of GGUF as the file has them.
  LinearWeights stored_linear(const LinearDescription& linear) const;
  // The part of the input's format that config.json gives any linear (activation_sparsity.h); 0: none.
  float sparsity_threshold(const LinearDescription& linear) const;
  const SparsityThresholds& sparsity_thresholds() const;            // those that are not 0, by name
  LinearDescription embedding() const;                              // the table as a linear: num_out = V, num_in = D
  LinearDescription head() const;                                   // the embedding if tied
  std::vector<float> norm_gain(const NormDescription& norm) const;  // the unit offset is added
  std::vector<float> norm_bias(const NormDescription& norm) const;  // empty if it has none
  LayerNorm layer_norm(const LayerNormDescription& norm) const;
  std::vector<float> distance_scores() const;  // of an encoder, [H, 2 reach + 1]; empty if it has none
  std::vector<float> values_of(const VectorDescription& vector) const;

  // Reads every tensor that the model uses, as the calls above do. So damage is found before hours of work, and not in
  // the middle of them, or never if nothing reads the tensor again. Makes one pass over the files, on all cores, and
  // releases pages as it goes. Throws what those calls throw, and Interrupted between tensors.
  void check_values() const;

  // Releases the resident pages of the linear's tensors, which can be read again.
  void drop_pages(const LinearDescription& linear) const;

 private:
  Checkpoint();
  struct State;
  std::unique_ptr<State> state_;
};

// Returns every linear that a checkpoint may hold compressed: those of the blocks, and of a decoder the embedding and
// an untied head.
std::vector<LinearDescription> stored_linears(const Checkpoint& checkpoint);

// Returns the modules with FP8 weights [O, I] that the files hold and the model's description does not read, without
// biases, sorted by name: blocks behind the last one that predict further tokens (DeepSeek-V3), a pooler. linear()
// decodes them by the checkpoint's quantization_config.
std::vector<LinearDescription> other_fp8_linears(const Checkpoint& checkpoint);

}  // namespace pare::runtime
