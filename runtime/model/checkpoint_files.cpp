#include "runtime/model/checkpoint_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/containers/container_table.h"
#include "runtime/model/mistaken_path.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr size_t kMaxConfigBytes = size_t{16} << 20;
constexpr size_t kMaxIndexBytes = size_t{256} << 20;

Json parse_object(const std::string& text, const fs::path& path) {
  Json parsed = parse_json(text, path.string());
  if (!parsed.is_object()) throw std::runtime_error(path.string() + ": expected a JSON object");
  return parsed;
}

WeightFiles read_index(const fs::path& directory) {
  WeightFiles files;
  files.file_of_tensor = read_weight_index(directory).file_of_tensor;
  for (const auto& [tensor, file] : files.file_of_tensor) files.paths.push_back(directory / file);
  std::sort(files.paths.begin(), files.paths.end());
  files.paths.erase(std::unique(files.paths.begin(), files.paths.end()), files.paths.end());
  for (const fs::path& file : files.paths) {
    if (!fs::is_regular_file(file)) {
      throw std::runtime_error("'" + file.string() + "' is missing; " + kIndexName +
                               " names it: fetch the whole checkpoint");
    }
  }
  return files;
}

std::string known_methods() {
  std::string names;
  for (const ContainerFormat* container : container_formats()) {
    const std::string method = "'" + std::string(container->method()) + "'";
    const std::string name =
        container->name() == container->method() ? "" : " (" + std::string(container->name()) + ")";
    names += (names.empty() ? "" : ", ") + method + name;
  }
  return names;
}

}  // namespace

std::string read_config(const fs::path& directory) {
  refuse_mistaken_model(directory);
  if (!fs::is_directory(directory)) {
    const bool is_gguf = directory.extension() == ".gguf";
    throw std::runtime_error("'" + directory.string() + "' is not a directory: expected a Hugging Face checkpoint (" +
                             kConfigName + " and safetensors files)" +
                             (is_gguf ? "; turn a .gguf into one with 'pare import'" : ""));
  }
  if (!is_there(directory / kConfigName)) {
    throw std::runtime_error("no " + std::string(kConfigName) + " in '" + directory.string() +
                             "': expected a Hugging Face checkpoint");
  }
  return read_text_file(directory / kConfigName, kMaxConfigBytes);
}

WeightIndex read_weight_index(const fs::path& directory) {
  const fs::path path = directory / kIndexName;
  const Json json = parse_object(read_text_file(path, kMaxIndexBytes), path);
  const auto weight_map = json.find("weight_map");
  if (weight_map == json.end() || !weight_map->is_object() || weight_map->empty()) {
    throw std::runtime_error(path.string() + ": expected an object 'weight_map' with at least one tensor");
  }
  WeightIndex index;
  for (const auto& [tensor, value] : weight_map->items()) {
    const std::string file = value.is_string() ? value.get<std::string>() : "";
    // Accepts only a plain name: an index must not make the program open files elsewhere.
    if (!file.ends_with(".safetensors") || file.find_first_of("/\\") != std::string::npos) {
      throw std::runtime_error(path.string() + ": tensor '" + tensor +
                               "': expected the name of a .safetensors file in the same directory, found " +
                               (value.is_string() ? "'" + file.substr(0, 200) + "'" : "a value that is not a string"));
    }
    index.file_of_tensor.emplace(tensor, file);
  }
  const auto metadata = json.find("metadata");
  if (metadata == json.end() || !metadata->is_object()) return index;
  const auto size = metadata->find("total_size");
  if (size == metadata->end()) return index;
  if (size->is_number()) {
    index.total_size = size->get<double>();
  } else {
    index.odd_total_size = json_text(*size);
  }
  return index;
}

WeightFiles find_weight_files(const fs::path& directory) {
  if (is_there(directory / kSingleFileName)) return {{directory / kSingleFileName}, {}};
  if (is_there(directory / kIndexName)) return read_index(directory);
  throw std::runtime_error("no weights in '" + directory.string() + "': expected " + kSingleFileName + " or " +
                           kIndexName + ": fetch the whole checkpoint");
}

std::vector<fs::path> other_weight_files(const fs::path& directory, const std::vector<fs::path>& paths) {
  constexpr size_t kMost = 100;
  std::vector<fs::path> others;
  std::error_code error;
  for (fs::directory_iterator file(directory, error), end; !error && file != end; file.increment(error)) {
    const fs::path& path = file->path();
    const bool is_read = std::ranges::any_of(paths, [&](const fs::path& p) { return p.filename() == path.filename(); });
    if (path.extension() == ".safetensors" && !is_read && fs::is_regular_file(path)) others.push_back(path);
  }
  std::sort(others.begin(), others.end());
  if (others.size() > kMost) others.resize(kMost);
  return others;
}

std::optional<Quantization> read_quantization_config(const std::string& config_json, const fs::path& path) {
  const Json config = parse_object(config_json, path);
  if (const auto old = config.find("compression_config"); old != config.end() && !old->is_null()) {
    throw std::runtime_error(path.string() +
                             ": key 'compression_config' is that of an early compressed-tensors release; expected "
                             "'quantization_config': save the checkpoint again with a newer release");
  }
  const auto quantization = config.find("quantization_config");
  if (quantization == config.end() || quantization->is_null()) return std::nullopt;
  const std::string where = path.string() + ": quantization_config";
  if (!quantization->is_object()) throw std::runtime_error(where + ": expected an object");
  const auto method = quantization->find("quant_method");
  const std::string name = method != quantization->end() && method->is_string() ? method->get<std::string>() : "";
  // In the order of the file, which GPTQ's rules are read in.
  const std::string text = json_text(parse_ordered_json(config_json, path.string()).at("quantization_config"));
  if (const ContainerFormat* container = find_container(name, text)) {
    return Quantization{container, container->read_config(text, where)};
  }
  throw std::runtime_error(where + ": the checkpoint is already quantized by '" +
                           (name.empty() ? "an unnamed method" : name.substr(0, 100)) +
                           "', which pare does not read; expected " + known_methods() +
                           " or an unquantized checkpoint: start from the original one");
}

std::optional<ScaleBlock> block_of_stacks(const std::optional<Quantization>& quantization) {
  return quantization ? quantization->config->block_of_stacks() : std::nullopt;
}

std::string with_early_quantization(const std::string& config_json, const fs::path& directory, fs::path& found) {
  for (const char* const name : {"quantize_config.json", "quant_config.json"}) {
    const fs::path path = directory / name;
    if (!is_there(path)) continue;
    nlohmann::ordered_json early = parse_ordered_json(read_text_file(path, kMaxConfigBytes), path.string());
    if (!early.is_object()) throw std::runtime_error(path.string() + ": expected a JSON object");
    if (!early.contains("quant_method")) early["quant_method"] = early.contains("version") ? "awq" : "gptq";
    nlohmann::ordered_json config = parse_ordered_json(config_json, (directory / kConfigName).string());
    config["quantization_config"] = std::move(early);
    found = path;
    return json_text(config, 2);
  }
  return config_json;
}

}  // namespace pare::runtime
