// Parts that several commands share: options with the same meaning, the backend that they name, the progress of a
// stage.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/commands/command_line.h"
#include "runtime/device/make_backend.h"
#include "runtime/engine/activation_mode.h"
#include "runtime/engine/backend.h"
#include "runtime/engine/chosen_sampling.h"
#include "runtime/engine/memory_need.h"
#include "runtime/engine/transformer.h"
#include "runtime/import/model_directory.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/input_files.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {

// MODEL of the commands that run one.
extern const PositionalSpec kModel;

std::vector<OptionSpec> joined(std::vector<OptionSpec> first, const std::vector<OptionSpec>& second);

// Specifications of common options: a whole number from `minimum` on, a number from 0 on, a share in (0, 1], words that
// name no file, and a text that must be given. Defaults are written as they would be typed; empty for none.
OptionSpec count(const std::string& name, const std::string& default_value, const std::string& help, double minimum);
OptionSpec number(const std::string& name, const std::string& default_value, const std::string& help);
OptionSpec share(const std::string& name, const std::string& default_value, const std::string& help);
OptionSpec words(const std::string& name, const std::string& value_name, const std::string& help);
OptionSpec required_text(const std::string& name, const std::string& value_name, const std::string& help);

// Returns the options that say how tokens are drawn, and what a command line gives of them. `otherwise` is what counts
// where neither the command line nor generation_config.json says anything. has_top_k: --top-k is one of them.
std::vector<OptionSpec> sampling_options(const SamplingOptions& otherwise, bool has_top_k);
GivenSampling given_sampling(const Arguments& arguments, bool has_top_k);

// The default of --threads, for its help.
inline constexpr const char* kDefaultThreads =
    "OMP_NUM_THREADS, or else one for each CPU that the process may use within the quota of its control group";
// Returns --threads and --isa, for every command that computes.
std::vector<OptionSpec> compute_options();

// Returns --device, and the device that a command line names.
OptionSpec device_option(const std::string& help =
                             "device that computes; cuda is the first GPU, only in programs built with -DPARE_CUDA=ON");
ComputeDevice device_of(const Arguments& arguments);

// The bits of keys and values without --kv-bits: float32, or bf16 for models whose config.json has a 16-bit dtype.
enum class KvBitsDefault { floats, of_dtype };
// --kv-bits and --attention-bits, and a function that applies them to a model.
OptionSpec kv_bits_option(KvBitsDefault otherwise);
OptionSpec attention_bits_option();
// Without --kv-bits, the bits are those of KvBitsDefault::of_dtype.
void use_bits(const Arguments& arguments, Transformer& model);
// Returns the bits of the cache; 8-bit products need 8.
int kv_bits(const Arguments& arguments, const ModelDescription& model);

// --activations, and the mode that a command line names. Throws WrongUsage for a mode that the device has not.
OptionSpec activations_option();
ActivationMode activations_of(const Arguments& arguments);
// The sentence that stands beside figures that were measured with rounded inputs.
std::string event_of(ActivationMode mode);

// Returns JSON even if a text from a model ends inside a character.
std::string dump(const nlohmann::ordered_json& json);

// Returns the progress bar of one stage, as the callback that long functions take. The callback is also a place to stop
// on request. The stage's clock starts with the first call (0 units done), which such functions make before any work.
std::function<void(double, int64_t)> stage(Console& console, const std::string& name, const std::string& unit);

// Throws std::invalid_argument for an output in the model's own folder, which would not be whole then.
void refuse_output_inside(const std::filesystem::path& output, const std::filesystem::path& model);

// A model that the command line names. What takes long comes when the caller says that options and data are in order:
//   - If the model is checked and has a manifest, its files must be what was written. Those that describe it are hashed
//     before it is opened, and the weights later.
//   - Of a .gguf the header is imported first, and the weights later.
class NamedModel {
 public:
  // Prints decoding_note and cache_note, where there are any. Throws what ModelDirectory and open_described throw;
  // `instead` is passed to the latter. codes: as of ImportOptions, for a .gguf.
  NamedModel(const std::string& path, bool is_checked, const std::string& instead, Console& console,
             GgufCodes codes = GgufCodes::rounded);

  const std::filesystem::path& directory() const { return directory_->path(); }
  // The weights of this checkpoint are not to be read.
  const Checkpoint& described() const { return checkpoint_; }
  // Returns the same checkpoint when its weights may be read, which may take minutes. Data must not hold what
  // described() gave by reference. Throws what require_whole_files, ModelDirectory and check_unchanged throw.
  const Checkpoint& whole();

 private:
  std::function<void(int64_t, int64_t)> progress() const;
  std::filesystem::path path_;
  InputFiles source_;  // a .gguf is read twice
  std::optional<ModelDirectory> directory_;
  bool is_checked_;
  GgufCodes codes_;
  std::string instead_;
  Console& console_;
  Checkpoint checkpoint_;
};

// The backend that the options name; loads models on it.
class ModelLoader {
 public:
  // Says on the console if fewer threads are used than the command line asks for. Throws what make_backend throws.
  ModelLoader(const Arguments& arguments, Console& console);

  const BackendOptions& options() const { return options_; }
  Backend& backend() const { return *backend_; }
  // Checks before models are loaded together that they fit the device, or the memory that this process may use
  // (runtime/engine/memory_need.h).
  void require(std::span<const MemoryNeed> needs) const;
  // Does so for one model, and checks that --activations means something for it.
  void check_workload(const Checkpoint& checkpoint, const DeviceWorkload& workload) const;
  // In the mode of --activations, where the command has that option.
  Transformer load(const Checkpoint& checkpoint, Console& console) const;
  ActivationMode activations() const { return activations_; }

 private:
  BackendOptions options_;
  ActivationMode activations_ = ActivationMode::exact;
  std::unique_ptr<Backend> backend_;
};

}  // namespace pare::runtime
