// What of a checkpoint's folder can be read, however damaged it is. Checkpoint::open reads the same files through the
// same readers, and stops at the first fault.
#pragma once

#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/doctor/finding.h"
#include "runtime/files/safetensors.h"
#include "runtime/model/checkpoint_files.h"
#include "runtime/model/encoder_description.h"
#include "runtime/model/model_description.h"
#include "runtime/model/tensor_table.h"
#include "runtime/system/input_files.h"

namespace pare::runtime {

struct StoredTensor {
  const TensorView* view = nullptr;
  size_t file = 0;  // in Patient::files
};

struct Patient {
  std::filesystem::path directory;
  std::string config_json;         // with the model's own names; "" if it cannot be read
  std::string early_quantization;  // the file that holds the quantization_config in place of config.json; "": none does
  std::optional<ModelDescription> model;      // of a decoder
  std::optional<EncoderDescription> encoder;  // or of an encoder; neither: config.json is refused
  std::optional<Quantization> quantization;
  bool says_quantized = false;  // config.json has a quantization_config, read or refused
  std::vector<std::filesystem::path> paths;
  std::deque<SafetensorsFile> files;                  // in the order of paths; those that cannot be read are in neither
  std::map<std::string, StoredTensor> tensors;        // by the names in the files
  std::map<std::string, std::string> file_of_tensor;  // the index's; empty for a single file
  double total_size = -1.0;                           // the index's; -1: it says none
  std::string odd_total_size;                         // what the index says in place of a number
  TensorTable table;                                  // by the names of the description
  bool has_table = false;                             // false: there is no description, or the names are mixed up
  InputFiles inputs;                                  // all that was read

  const TensorView* stored(const std::string& name) const;
  FindTensor find_stored() const;
  FindTensor find_described() const;
  // Returns the name in the files of a tensor or module of the description.
  std::string stored_name(const std::string& described) const;
  std::string described_name(const std::string& stored) const;
  // Releases the resident pages of a tensor, by its name in the files. Does nothing for one that is not there.
  void drop(const std::string& name) const;
};

// Opens what can be opened, and appends what cannot to `findings`. Throws std::runtime_error for a path that is no
// folder, or one that was given by mistake (mistaken_path.h).
std::unique_ptr<Patient> admit(const std::filesystem::path& directory, std::vector<Finding>& findings);

// Runs an action and returns the message of its failure; "": it went well. Lets Interrupted and lack of memory pass.
std::string failure_of(const std::function<void()>& action);

}  // namespace pare::runtime
