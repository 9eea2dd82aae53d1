#include "compress/artifact/hugging_face.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <utility>

#include "runtime/commands/small_files.h"
#include "runtime/containers/compressed_tensors.h"
#include "runtime/containers/container_table.h"
#include "runtime/containers/stored_linear.h"
#include "runtime/model/activation_sparsity.h"
#include "runtime/model/expert_stacks.h"
#include "runtime/model/own_config.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/json_text.h"
#include "runtime/system/mapped_file.h"
#include "runtime/system/sha256.h"

namespace pare::compress {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

// Weights up to this size are one file. Beyond it they are cut into more shards, as other writers do.
constexpr int64_t kMaxShardBytes = int64_t{4} << 30;

int64_t tensor_bytes(const runtime::StreamedTensor& tensor) {
  int64_t num_elements = 1;
  for (const int64_t size : tensor.shape) num_elements *= size;
  return num_elements * static_cast<int64_t>(runtime::dtype_size_bytes(tensor.dtype));
}

// Returns whether only pare reads these modules. One reason is their container, whatever it holds. The other is a
// quantized embedding: transformers puts random numbers in its place where it loads the model without its head.
bool are_own(const std::vector<runtime::StoredModule>& modules) {
  const runtime::ContainerFormat& container = runtime::container_format(modules.front().scheme.container);
  const runtime::Engine others[] = {runtime::Engine::transformers, runtime::Engine::vllm, runtime::Engine::llama_cpp};
  return std::any_of(modules.begin(), modules.end(),
                     [](const runtime::StoredModule& module) { return !module.is_linear; }) ||
         std::none_of(std::begin(others), std::end(others), [&](runtime::Engine engine) {
           return container.unread_by(engine, runtime::PackScheme{}).empty();
         });
}

// Returns whether an expert of the block is among the modules.
bool has_stored_experts(const runtime::BlockDescription& block, const std::vector<runtime::StoredModule>& modules) {
  const std::string prefix = runtime::experts_module(block);
  return std::ranges::any_of(modules, [&](const runtime::StoredModule& m) { return m.name.starts_with(prefix); });
}

// Returns whether other programs have a place for the modules' codes in a model of this family.
bool have_place(const runtime::Checkpoint& source, const std::vector<runtime::StoredModule>& modules) {
  if (source.is_encoder()) return true;
  const runtime::ModelDescription& model = source.description();
  if (!model.stacks_experts) return !model.stores_transposed;
  return std::ranges::none_of(
      model.blocks, [&](const runtime::BlockDescription& block) { return has_stored_experts(block, modules); });
}

// Returns the regular expression of a name.
std::string escaped(const std::string& name) {
  std::string expression;
  for (const char c : name) {
    const bool is_plain = c == '_' || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    expression += is_plain ? std::string{c} : std::string{'\\', c};
  }
  return expression;
}

// Returns what was stored as `record` says, from the weights that a reader of `directory` got.
runtime::StoredLinear stored_again(runtime::LinearWeights weights, const LayerRecord& record,
                                   const fs::path& directory) {
  runtime::StoredLinear stored;
  stored.input = std::move(weights.input);
  stored.outlier_weight_OJ = std::move(weights.outlier_weight_OJ);
  auto* const quantized = std::get_if<runtime::QuantizedWeight>(&weights.weight);
  if ((quantized == nullptr) != record.scheme.is_dense()) {
    throw std::runtime_error("verification of '" + directory.string() + "': " + record.name + " reads back as " +
                             (quantized == nullptr ? "not " : "") + "quantized");
  }
  if (quantized != nullptr) {
    stored.weight = std::move(*quantized);
    return stored;
  }
  const auto& dense = std::get<runtime::DenseWeight>(weights.weight);
  stored.weight.num_out = record.num_out;
  stored.weight.num_in = record.num_in;
  stored.weight.pattern = dense.pattern;
  if (record.scheme.has_own_tensor()) return stored;  // compared with the other tensors
  stored.dense_OI.assign(dense.data.begin(), dense.data.end());
  stored.dense_dtype = dense.dtype;
  return stored;
}

}  // namespace

void copy_small_files(const runtime::Checkpoint& source, const std::map<std::string, std::string>& inputs,
                      const fs::path& directory) {
  std::set<std::string> others = {"config.json"};
  for (const fs::path& path : source.weight_files()) others.insert(path.filename().string());
  for (const auto& [name, hash] : inputs) {
    if (others.contains(name)) continue;
    const fs::path copy = directory / name;
    fs::create_directories(copy.parent_path());
    runtime::copy_small_file(source.directory(), name, copy);
    if (runtime::sha256_file(copy) == hash) continue;
    throw std::runtime_error("changed while it was read: '" + (source.directory() / name).string() +
                             "' is not what it was when the run began");
  }
}

std::string artifact_config(const runtime::Checkpoint& source, std::vector<runtime::StoredModule> modules,
                            std::vector<std::string> unquantized, const runtime::SparsityThresholds& thresholds) {
  // transformers 5 calls the head of every decoder lm_head, whatever its files call it (embed_out of gpt_neox).
  constexpr const char* kHead = "lm_head";
  if (const std::string head = source.is_encoder() ? kHead : source.description().head.name; head != kHead) {
    if (std::ranges::find(unquantized, head) != unquantized.end()) unquantized.emplace_back(kHead);
    const auto module = std::ranges::find(modules, head, &runtime::StoredModule::name);
    if (module != modules.end()) modules.push_back({kHead, module->scheme, module->is_linear});
  }
  for (const std::string& part : source.other_parts()) unquantized.push_back("re:^(model\\.)?" + escaped(part) + "\\b");
  Json config = runtime::parse_ordered_json(source.config_json(), (source.directory() / "config.json").string());
  config.erase("quantization_config");
  config.erase("quantization");  // mlx-lm's copy of the same, which would speak of the source
  if (!modules.empty()) {
    config["quantization_config"] =
        runtime::parse_ordered_json(runtime::container_config_json(modules, unquantized), "quantization_config");
  }
  std::string text = runtime::json_text(config, 2) + "\n";
  if (!thresholds.empty()) text = runtime::with_sparsity_thresholds(text, thresholds, "config.json");
  return !modules.empty() && (are_own(modules) || !have_place(source, modules))
             ? runtime::config_for_pare_alone(text, "config.json")
             : text;
}

bool is_left_out(const runtime::Checkpoint& source, const std::string& tensor) {
  if (source.quantization_method() == runtime::kCompressedTensors && runtime::is_of_rounded_cache(tensor)) return true;
  if (source.is_encoder()) return false;
  const runtime::ModelDescription& model = source.description();
  return model.tied_head && tensor == model.head.name + ".weight";
}

runtime::StreamedTensor source_tensor(const runtime::Checkpoint& source, const std::string& name,
                                      const std::string& written) {
  const runtime::TensorLayout layout = source.layout(name);
  return {written, layout.dtype, layout.shape,
          [&source, name](const runtime::ByteSink& sink) { sink(source.tensor(name).data); }};
}

void give_stored_form(const runtime::Checkpoint& source, std::vector<runtime::StreamedTensor>& tensors,
                      const std::vector<runtime::StoredModule>& modules) {
  for (runtime::StreamedTensor& tensor : tensors) {
    if (source.is_written_transposed(tensor.name, tensor.dtype)) {
      tensor.produce = [produce = std::move(tensor.produce), dtype = tensor.dtype,
                        shape = tensor.shape](const runtime::ByteSink& sink) {
        std::vector<std::byte> bytes;
        produce([&](std::span<const std::byte> part) { bytes.insert(bytes.end(), part.begin(), part.end()); });
        sink(runtime::transposed({dtype, shape, bytes}));
      };
      std::swap(tensor.shape[0], tensor.shape[1]);
    }
    tensor.name = source.written_name(tensor.name);
  }
  if (source.is_encoder() || !source.description().stacks_experts) return;
  for (const runtime::BlockDescription& block : source.description().blocks) {
    if (!has_stored_experts(block, modules)) runtime::stack_experts(block, tensors);
  }
}

void write_weight_files(std::vector<runtime::StreamedTensor> tensors, const fs::path& directory) {
  std::vector<std::vector<runtime::StreamedTensor>> shards(1);
  int64_t shard_bytes = 0;
  int64_t total_bytes = 0;
  for (runtime::StreamedTensor& tensor : tensors) {
    const int64_t size = tensor_bytes(tensor);
    if (shard_bytes > 0 && shard_bytes + size > kMaxShardBytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shard_bytes += size;
    total_bytes += size;
    shards.back().push_back(std::move(tensor));
  }
  if (shards.size() == 1) {
    runtime::write_safetensors(directory / "model.safetensors", std::move(shards.front()));
    runtime::sync_directory(directory);
    return;
  }
  std::map<std::string, std::string> weight_map;
  for (size_t i = 0; i < shards.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
    for (const runtime::StreamedTensor& tensor : shards[i]) weight_map[tensor.name] = name;
    runtime::write_safetensors(directory / name, std::move(shards[i]));
  }
  const Json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
  runtime::write_file_atomically(directory / "model.safetensors.index.json", runtime::json_text(index, 2) + "\n");
}

void assemble_hugging_face(const Parts& parts, const runtime::Checkpoint& source,
                           const std::vector<std::string>& unquantized,
                           const std::map<std::string, std::string>& inputs, const fs::path& directory) {
  fs::remove_all(directory);
  fs::create_directories(directory);

  std::vector<runtime::StoredModule> modules;
  std::set<std::string> replaced;
  runtime::SparsityThresholds thresholds;
  for (const LayerRecord& record : parts.records()) {
    if (record.sparsity_threshold > 0.0) {
      thresholds.emplace(record.name, static_cast<float>(record.sparsity_threshold));
    }
    if (record.is_plain()) continue;
    modules.push_back({record.name, record.scheme, record.is_linear});
    if (!record.scheme.has_own_tensor()) replaced.insert(record.name + ".weight");
  }
  runtime::write_file_atomically(directory / "config.json", artifact_config(source, modules, unquantized, thresholds));
  copy_small_files(source, inputs, directory);

  std::vector<runtime::SafetensorsFile> files;
  for (const int64_t part : parts.committed_parts()) {
    files.push_back(parts.open_tensors(part));
    for (const auto& [name, view] : files.back().tensors()) replaced.insert(name);
  }
  // Tensors that the passes left alone come straight from the source. Parts follow in order.
  std::vector<runtime::StreamedTensor> tensors;
  for (const std::string& name : source.tensor_names()) {
    if (replaced.contains(name) || is_left_out(source, name)) continue;
    tensors.push_back(source_tensor(source, name, name));
  }
  for (const runtime::SafetensorsFile& file : files) {
    for (const auto& [name, view] : file.tensors()) {
      tensors.push_back(
          {name, view.dtype, view.shape, [data = view.data](const runtime::ByteSink& sink) { sink(data); }});
    }
  }
  give_stored_form(source, tensors, modules);
  write_weight_files(std::move(tensors), directory);
}

void verify_hugging_face(const Parts& parts, const runtime::Checkpoint& source, const fs::path& directory) {
  const runtime::Checkpoint written = runtime::Checkpoint::open(directory);
  std::set<std::string> replaced;
  for (const LayerRecord& record : parts.records()) {
    const runtime::LinearDescription linear{record.name, record.num_out, record.num_in, false};
    if (written.sparsity_threshold(linear) != static_cast<float>(record.sparsity_threshold)) {
      throw std::runtime_error("verification of '" + directory.string() + "': the sparsity threshold of " +
                               record.name + " reads back differently from what was computed");
    }
    if (record.is_plain()) continue;  // compared with the other tensors below
    const runtime::StoredLinear stored = stored_again(written.stored_linear(linear), record, directory);
    if (content_hash(stored) != record.sha256) {
      throw std::runtime_error("verification of '" + directory.string() + "': codes, scales or input of " +
                               record.name + " read back differently from what was computed");
    }
    written.drop_pages(linear);
    if (!record.scheme.has_own_tensor()) replaced.insert(record.name + ".weight");
  }
  const auto check_equal = [&](const std::string& name, runtime::DType dtype, std::span<const int64_t> shape,
                               std::span<const std::byte> data, const char* whose) {
    const runtime::TensorView after = written.tensor(name);
    if (dtype == after.dtype && std::ranges::equal(shape, after.shape) && std::ranges::equal(data, after.data)) return;
    throw std::runtime_error("verification of '" + directory.string() + "': tensor '" + name + "' differs from " +
                             whose);
  };
  for (const int64_t part : parts.committed_parts()) {
    for (const runtime::OwnedTensor& tensor : parts.read_changed(part, source)) {
      check_equal(tensor.name, tensor.dtype, tensor.shape, tensor.data, "what the passes of its block made of it");
      replaced.insert(tensor.name);
    }
  }
  for (const std::string& name : source.tensor_names()) {
    if (replaced.contains(name) || is_left_out(source, name)) continue;
    const runtime::TensorView before = source.tensor(name);
    check_equal(name, before.dtype, before.shape, before.data, "that of the source");
  }
}

}  // namespace pare::compress
