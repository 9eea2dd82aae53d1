// A Hugging Face directory: config.json, tokenizer files, and one or many safetensors files (with an index when many).
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
#include "runtime/model/encoder_description.h"
#include "runtime/model/layer_norm.h"
#include "runtime/model/model_description.h"

namespace pare {

// Opening validates everything before anything is handed out: the index against the files, every tensor that the model
// description asks for (present, dtype, shape), the quantization_config. Reading a weight checks its values (finite;
// scales, zeros and groups in range). Tensors that the model does not need are tolerated. Throws std::invalid_argument
// for a config.json that describes no model pare knows and std::runtime_error for files that do not hold what it
// describes: file, tensor, expected, found, what to do.
class Checkpoint {
 public:
  static Checkpoint open(const std::filesystem::path& directory);
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const std::filesystem::path& directory() const;
  // A checkpoint holds a decoder or an encoder; asking for the other one's description throws std::invalid_argument.
  bool is_encoder() const;
  const ModelDescription& description() const;
  const EncoderDescription& encoder() const;
  const std::string& config_json() const;  // the file's text
  // Whether config.json has a quantization_config: of one of container_formats().
  bool is_quantized() const;
  // The name by which config.json calls its container (ContainerFormat::method()); "" when dense.
  std::string quantization_method() const;
  // How the weight of this linear (or of the embedding) is stored; nullopt: dense.
  std::optional<PackScheme> stored_scheme(const LinearDescription& linear) const;

  bool has_tensor(const std::string& name) const;
  const TensorView& tensor(const std::string& name) const;  // throws std::runtime_error when missing
  std::vector<std::string> tensor_names() const;            // sorted
  std::vector<std::filesystem::path> weight_files() const;  // the safetensors files

  // SHA-256 by file name of what was read: config.json's text and the weight files as they are mapped.
  std::map<std::string, std::string> file_hashes() const;
  // Throws std::runtime_error when config.json, the index or a weight file is no longer the file that was opened or was
  // written to since (runtime/system/input_files.h). Cheap: to be asked after each piece of work.
  void check_unchanged() const;

  // The linear's weight, bias and input format, dense (a view of the mapped file; plain input) or quantized (codes
  // unpacked; input as the container says, with a stored scale and zero), validated: finite, right shapes. The
  // embedding and the head are read by the same call, through the descriptions below.
  LinearWeights linear(const LinearDescription& linear) const;
  LinearDescription embedding() const;                              // the table as a linear: num_out = V, num_in = D
  LinearDescription head() const;                                   // the embedding when tied
  std::vector<float> norm_gain(const NormDescription& norm) const;  // with the unit offset added
  LayerNorm layer_norm(const LayerNormDescription& norm) const;

  // Reads every tensor that the model uses, as the calls above do: what is damaged is found before hours of work rather
  // than in the middle of them or, where nothing reads it again, never. One pass over the files, on all cores; pages
  // are released as it goes. Throws what those calls throw, and Interrupted between tensors.
  void check_values() const;

  // Releases the resident pages of the linear's tensors (they can be read again).
  void drop_pages(const LinearDescription& linear) const;

 private:
  Checkpoint();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pare
