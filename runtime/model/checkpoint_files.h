// The parts of a checkpoint's directory beside the tensors: the files that hold them, and config.json.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/format/container_format.h"

namespace pare::runtime {

inline constexpr const char* kConfigName = "config.json";
inline constexpr const char* kSingleFileName = "model.safetensors";
inline constexpr const char* kIndexName = "model.safetensors.index.json";

// Returns the text of config.json. Throws std::runtime_error if there is no directory or no such file in it, and what
// reading throws.
std::string read_config(const std::filesystem::path& directory);

struct WeightFiles {
  std::vector<std::filesystem::path> paths;
  std::map<std::string, std::string> file_of_tensor;  // the index; empty for a single file
};
// Holds what model.safetensors.index.json says.
struct WeightIndex {
  std::map<std::string, std::string> file_of_tensor;  // plain names of .safetensors files
  std::optional<double> total_size;                   // bytes of all tensors; none if it is missing or no number
  std::string odd_total_size = {};                    // what stands there in place of a number, as JSON
};
// Throws std::runtime_error for a file that is not an index or leads out of the directory. The files that it names may
// be missing.
WeightIndex read_weight_index(const std::filesystem::path& directory);
// One file wins over an index, as in transformers. Throws std::runtime_error for a directory without weights, for a
// file that is not an index or leads out of the directory, and for missing files that it names.
WeightFiles find_weight_files(const std::filesystem::path& directory);
// Returns the directory's safetensors files that are not among `paths`, sorted. For messages: no more than 100.
std::vector<std::filesystem::path> other_weight_files(const std::filesystem::path& directory,
                                                      const std::vector<std::filesystem::path>& paths);

// The quantization_config of a quantized checkpoint.
struct Quantization {
  const ContainerFormat* container = nullptr;
  std::unique_ptr<ContainerConfig> config;
};
// Returns ContainerConfig::block_of_stacks; nullopt for a checkpoint that is not quantized.
std::optional<ScaleBlock> block_of_stacks(const std::optional<Quantization>& quantization);
// Returns nullopt if the checkpoint is not quantized. `path` is the file's, for messages. Throws std::runtime_error for
// a text that is not a JSON object and for a container that pare does not read, and what ContainerFormat::read_config
// throws.
std::optional<Quantization> read_quantization_config(const std::string& config_json, const std::filesystem::path& path);

// Returns config.json's text with the quantization_config that early releases of AutoGPTQ and AutoAWQ wrote into a file
// of its own (quantize_config.json, quant_config.json); the text itself if there is no such file. `found` becomes its
// path. Throws std::runtime_error for a file that is no JSON object.
std::string with_early_quantization(const std::string& config_json, const std::filesystem::path& directory,
                                    std::filesystem::path& found);

}  // namespace pare::runtime
