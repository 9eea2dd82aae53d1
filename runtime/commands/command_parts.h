// What several commands are made of: options with the same meaning, the backend that they name, the progress of a stage.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/commands/command_line.h"
#include "runtime/device/make_backend.h"
#include "runtime/engine/backend.h"
#include "runtime/engine/encoder.h"
#include "runtime/engine/memory_need.h"
#include "runtime/engine/transformer.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/json_text.h"

namespace pare {

// MODEL of the commands that run one.
extern const PositionalSpec kModel;

std::vector<OptionSpec> joined(std::vector<OptionSpec> first, const std::vector<OptionSpec>& second);

// A whole number from `minimum` on; a number from 0 on; a share of something, in (0, 1]; a text that must be given.
// Defaults are as they would be typed, empty for none.
OptionSpec count(const std::string& name, const std::string& default_value, const std::string& help, double minimum);
OptionSpec number(const std::string& name, const std::string& default_value, const std::string& help);
OptionSpec share(const std::string& name, const std::string& default_value, const std::string& help);
OptionSpec required_text(const std::string& name, const std::string& value_name, const std::string& help);

// What --threads is when it is not given, for its help.
inline constexpr const char* kDefaultThreads =
    "OMP_NUM_THREADS, or one for each CPU that the process may use, a control group's quota included";
// --threads and --isa, for every command that computes.
std::vector<OptionSpec> compute_options();

OptionSpec device_option();

// --kv-bits and --attention-bits, and what they ask for.
OptionSpec kv_bits_option();
OptionSpec attention_bits_option();
void use_bits(const Arguments& arguments, Transformer& model);
int kv_bits(const Arguments& arguments);  // of the cache, which 8-bit products need in 8

// Text from a model may end inside a character; JSON may not.
std::string dump(const nlohmann::ordered_json& json);

// The progress bar of one stage, as the callback that the long functions take; a place to stop when asked to. The
// stage's clock starts with the first call, which such functions make before they do anything: 0 of so many.
std::function<void(double, int64_t)> stage(Console& console, const std::string& name, const std::string& unit);

// Before a model is loaded: its files are what was written, where anything says what that was. Throws as
// require_whole_files does; `instead` is its.
void check_files_of(const std::filesystem::path& directory, const std::string& instead, Console& console);

// The backend that the options name, and models loaded on it.
class ModelLoader {
 public:
  // Throws what make_backend throws.
  explicit ModelLoader(const Arguments& arguments);

  const BackendOptions& options() const { return options_; }
  // Before models are loaded that are held together: whether they fit the device, or what this process may have of the
  // machine (runtime/engine/memory_need.h).
  void check_memory(std::span<const Checkpoint* const> checkpoints, const DeviceWorkload& workload) const;
  void check_encoder_memory(std::span<const Checkpoint* const> checkpoints, int64_t num_rows) const;
  Transformer load(const Checkpoint& checkpoint, Console& console) const;
  Encoder load_encoder(const Checkpoint& checkpoint, Console& console) const;

 private:
  void require(std::span<const MemoryNeed> needs) const;
  BackendOptions options_;
  std::unique_ptr<Backend> backend_;
};

}  // namespace pare
