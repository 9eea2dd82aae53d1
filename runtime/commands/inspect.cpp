#include "runtime/commands/inspect.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

#include "runtime/containers/compressed_tensors.h"
#include "runtime/containers/mlx.h"
#include "runtime/evaluate/windows_tokenizer.h"
#include "runtime/files/gguf.h"
#include "runtime/files/npy.h"
#include "runtime/files/safetensors.h"
#include "runtime/format/tensor_view.h"
#include "runtime/import/model_directory.h"
#include "runtime/model/mistaken_path.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/json_text.h"
#include "runtime/system/progress.h"
#include "runtime/system/visible_text.h"

namespace pare::runtime {
namespace {

TensorSummary summarize(const std::string& name, const TensorLayout& tensor) {
  return {name, std::string(dtype_name(tensor.dtype)), tensor.shape, tensor.num_bytes()};
}

std::vector<LayerSparsity> inspect_sparsity(const Checkpoint& checkpoint) {
  std::vector<LayerSparsity> layers;
  const std::map<std::string, SparsityClaim> claims = sparsity_claims(checkpoint);
  if (claims.empty()) return layers;
  const std::vector<std::string> names = checkpoint.tensor_names();
  for (const LinearDescription& linear : stored_linears(checkpoint)) {
    const auto claim = claims.find(linear.name);
    if (claim == claims.end()) continue;
    throw_if_interrupted();
    LayerSparsity& layer = layers.emplace_back(layer_sparsity(checkpoint.linear(linear), claim->second));
    layer.bits_per_weight = 8.0 * static_cast<double>(linear_bytes(checkpoint, names, linear.name)) /
                            static_cast<double>(layer.num_weights);
    checkpoint.drop_pages(linear);
  }
  return layers;
}

}  // namespace

std::string cache_note(const Checkpoint& checkpoint) {
  if (checkpoint.quantization_method() != kCompressedTensors) return "";
  return unrounded_cache_note(checkpoint.config_json());
}

std::string decoding_note(const Checkpoint& checkpoint) {
  if (checkpoint.quantization_method() != kMlx) return "";
  const auto is_bias = [](const std::string& name) { return name.ends_with(kMlxBiasesSuffix); };
  const std::vector<std::string> names = checkpoint.tensor_names();
  int64_t num_decoded = -std::ranges::count_if(names, is_bias);
  for (const std::filesystem::path& path : checkpoint.weight_files()) {
    const SafetensorsFile file = SafetensorsFile::open(path);
    num_decoded += std::ranges::count_if(file.tensors(), [&](const auto& tensor) { return is_bias(tensor.first); });
  }
  if (num_decoded <= 0) return "";
  return std::to_string(num_decoded) + (num_decoded == 1 ? " weight is" : " weights are") +
         " read as float32: biases are no multiples of scales, as mlx-lm rounds, and no code with a zero is that";
}

namespace {

Inspection inspect_checkpoint(const std::filesystem::path& path) {
  const Checkpoint checkpoint = Checkpoint::open(path);
  Inspection result;
  result.kind = "checkpoint";
  if (checkpoint.is_encoder()) {
    result.encoder = checkpoint.encoder();
  } else {
    result.model = checkpoint.description();
  }
  result.sizes = weight_sizes(checkpoint);
  result.is_quantized = checkpoint.is_quantized();
  result.quantization_method = checkpoint.quantization_method();
  result.decoding = decoding_note(checkpoint);
  result.cache = cache_note(checkpoint);
  for (const std::filesystem::path& file : checkpoint.weight_files()) {
    result.num_bytes += static_cast<int64_t>(std::filesystem::file_size(file));
  }
  result.sparsity = inspect_sparsity(checkpoint);
  result.sparsity_thresholds = checkpoint.sparsity_thresholds();
  for (const std::string& name : checkpoint.tensor_names())
    result.tensors.push_back(summarize(name, checkpoint.layout(name)));
  return result;
}

Inspection inspect_safetensors(const std::filesystem::path& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  Inspection result;
  result.kind = "safetensors";
  for (const auto& [name, tensor] : file.tensors())
    result.tensors.push_back(summarize(name, {tensor.dtype, tensor.shape}));
  return result;
}

Inspection inspect_gguf(const std::filesystem::path& path) {
  const GgufFile file = GgufFile::open(path);
  Inspection result;
  result.kind = "gguf";
  result.architecture = file.text("general.architecture");
  for (const auto& [name, tensor] : file.tensors()) {
    const GgufBlock block = gguf_block(static_cast<uint32_t>(tensor.type));
    result.tensors.push_back({name, std::string(block.name), tensor.shape, static_cast<int64_t>(tensor.data.size())});
  }
  return result;
}

Inspection inspect_windows(const std::filesystem::path& path) {
  const TokenWindows windows = read_npy(path);
  Inspection result;
  result.kind = "token windows";
  result.num_windows = windows.num_windows;
  result.windows_tokenizer = windows_tokenizer(path).value_or("");
  result.num_tokens = windows.num_tokens;
  return result;
}

std::string percent(int64_t part, int64_t whole) {
  return format_number(100.0 * static_cast<double>(part) / static_cast<double>(whole), 2) + " %";
}

void append_line(std::ostringstream& text, std::string label, const std::string& value) {
  label.resize(std::max<size_t>(label.size() + 1, 18), ' ');
  text << visible_line(label) << visible_line(value) << '\n';
}

// Returns the first mixture among the blocks, whose figures hold for all mixtures; nullptr: none.
const BlockDescription* find_mixture(const ModelDescription& model) {
  const auto found =
      std::find_if(model.blocks.begin(), model.blocks.end(), [](const auto& block) { return block.is_mixture(); });
  return found == model.blocks.end() ? nullptr : &*found;
}

nlohmann::ordered_json model_json(const ModelDescription& model) {
  nlohmann::ordered_json json;
  json["family"] = model.family;
  json["blocks"] = model.blocks.size();
  json["hidden_size"] = model.hidden_size;
  json["feed_forward_size"] = model.feed_forward_size;
  if (const BlockDescription* mixture = find_mixture(model)) {
    json["mixtures"] =
        std::count_if(model.blocks.begin(), model.blocks.end(), [](const auto& block) { return block.is_mixture(); });
    json["experts"] = mixture->num_routed();
    json["experts_per_token"] = mixture->routing.routed_per_token();
    json["expert_feed_forward_size"] = mixture->experts.front().down.num_in;
    if (mixture->routing.has_shared) json["shared_feed_forward_size"] = mixture->experts.back().down.num_in;
  }
  json["heads"] = model.num_heads;
  json["kv_heads"] = model.num_kv_heads;
  json["head_size"] = model.head_size;
  if (const BlockDescription& block = model.blocks.front(); block.latent) {
    json["value_size"] = model.value_size;
    json["key_value_latent_size"] = block.latent->latent_size();
    if (block.latent->q_a) json["query_latent_size"] = block.q.num_in;
  }
  json["vocabulary_size"] = model.vocabulary_size;
  json["context_length"] = model.context_length;
  json["tied_head"] = model.tied_head;
  return json;
}

nlohmann::ordered_json encoder_json(const EncoderDescription& model) {
  nlohmann::ordered_json json;
  json["family"] = model.family;
  json["blocks"] = model.blocks.size();
  json["hidden_size"] = model.hidden_size;
  json["feed_forward_size"] = model.feed_forward_size;
  json["heads"] = model.num_heads;
  json["head_size"] = model.head_size;
  json["vocabulary_size"] = model.vocabulary_size;
  json["context_length"] = model.context_length;
  return json;
}

void append_model(std::ostringstream& text, const ModelDescription& model) {
  append_line(text, "blocks",
              std::to_string(model.blocks.size()) + ", width " + std::to_string(model.hidden_size) + ", feed-forward " +
                  std::to_string(model.feed_forward_size));
  if (const BlockDescription* mixture = find_mixture(model)) {
    const auto num_mixtures =
        std::count_if(model.blocks.begin(), model.blocks.end(), [](const auto& block) { return block.is_mixture(); });
    append_line(text, "experts",
                std::to_string(mixture->num_routed()) + " of feed-forward " +
                    std::to_string(mixture->experts.front().down.num_in) + ", " +
                    std::to_string(mixture->routing.routed_per_token()) + " for each token, in " +
                    std::to_string(num_mixtures) + " of the blocks");
    if (mixture->routing.has_shared) {
      append_line(text, "shared expert",
                  "of feed-forward " + std::to_string(mixture->experts.back().down.num_in) + ", for every token");
    }
  }
  append_line(text, "heads",
              std::to_string(model.num_heads) + " of " + std::to_string(model.head_size) + ", " +
                  std::to_string(model.num_kv_heads) + " for keys and values");
  if (const BlockDescription& block = model.blocks.front(); block.latent) {
    append_line(text, "latents",
                "of " + std::to_string(block.latent->latent_size()) + " for keys and values" +
                    (block.latent->q_a ? ", of " + std::to_string(block.q.num_in) + " for queries" : "") +
                    ", values of " + std::to_string(model.value_size));
  }
  append_line(text, "vocabulary", std::to_string(model.vocabulary_size) + (model.tied_head ? ", head tied" : ""));
  append_line(text, "context", std::to_string(model.context_length));
}

void append_model(std::ostringstream& text, const EncoderDescription& model) {
  append_line(text, "blocks",
              std::to_string(model.blocks.size()) + " of an encoder, width " + std::to_string(model.hidden_size) +
                  ", feed-forward " + std::to_string(model.feed_forward_size));
  append_line(text, "heads", std::to_string(model.num_heads) + " of " + std::to_string(model.head_size));
  append_line(text, "vocabulary", std::to_string(model.vocabulary_size));
  append_line(text, "context", std::to_string(model.context_length));
}

void append_sparsity(std::ostringstream& text, const std::vector<LayerSparsity>& layers) {
  int64_t num_weights = 0, num_zeros = 0, num_violations = 0;
  size_t width = 0;
  for (const LayerSparsity& layer : layers) {
    num_weights += layer.num_weights;
    num_zeros += layer.num_zeros;
    num_violations += layer.num_violations;
    width = std::max(width, visible_line(layer.name).size());
  }
  append_line(text, "pruned",
              std::to_string(layers.size()) + " layers, zeros " + percent(num_zeros, num_weights) + ", " +
                  std::to_string(num_violations) + " violations");
  for (const LayerSparsity& layer : layers) {
    const std::string name = visible_line(layer.name);
    append_line(text, "  " + name + std::string(width - name.size(), ' '),
                layer.pattern_text() + (layer.claim.is_packed ? " packed" : "") + ", zeros " +
                    percent(layer.num_zeros, layer.num_weights) + ", " + std::to_string(layer.num_violations) +
                    " violations, " + format_number(layer.bits_per_weight, 3) + " bits per weight");
  }
}

void append_thresholds(std::ostringstream& text, const SparsityThresholds& thresholds) {
  float low = thresholds.begin()->second, high = low;
  for (const auto& [name, threshold] : thresholds) {
    low = std::min(low, threshold);
    high = std::max(high, threshold);
  }
  append_line(text, "small inputs",
              "dropped in " + std::to_string(thresholds.size()) + " layers, up to thresholds from " +
                  format_number(low, 5) + " to " + format_number(high, 5));
}

}  // namespace

int64_t linear_bytes(const Checkpoint& checkpoint, const std::vector<std::string>& names, const std::string& linear) {
  const std::string prefix = linear + ".";
  int64_t num_bytes = 0;
  for (auto name = std::lower_bound(names.begin(), names.end(), prefix); name != names.end(); ++name) {
    if (!name->starts_with(prefix)) break;
    if (*name != prefix + "bias") num_bytes += checkpoint.layout(*name).num_bytes();
  }
  return num_bytes;
}

WeightSizes weight_sizes(const Checkpoint& checkpoint) {
  const std::vector<std::string> names = checkpoint.tensor_names();  // sorted
  WeightSizes sizes;
  const std::vector<LinearDescription> linears =
      checkpoint.is_encoder() ? block_linears(checkpoint.encoder()) : block_linears(checkpoint.description());
  for (const LinearDescription& linear : linears) {
    sizes.linear_parameters += linear.num_out * linear.num_in;
    sizes.linear_bytes += linear_bytes(checkpoint, names, linear.name);
  }
  sizes.all_parameters = sizes.linear_parameters;
  sizes.all_bytes = sizes.linear_bytes;
  std::vector<LinearDescription> ends;
  if (checkpoint.is_encoder()) {
    ends = embedding_tables(checkpoint.encoder());
  } else {
    ends.push_back(checkpoint.embedding());
    if (!checkpoint.description().tied_head) ends.push_back(checkpoint.head());
  }
  for (const LinearDescription& end : ends) {
    sizes.all_parameters += end.num_out * end.num_in;
    sizes.all_bytes += linear_bytes(checkpoint, names, end.name);
  }
  return sizes;
}

std::map<std::string, int64_t> Inspection::bytes_by_dtype() const {
  std::map<std::string, int64_t> sums;
  for (const TensorSummary& tensor : tensors) sums[tensor.dtype] += tensor.num_bytes;
  return sums;
}

Inspection inspect(const std::filesystem::path& named) {
  const std::filesystem::path path = stored_model(named);
  if (!std::filesystem::exists(path)) {
    refuse_mistaken_model(path);
    throw std::runtime_error(path.string() + ": no such file or directory");
  }
  if (std::filesystem::is_directory(path)) return inspect_checkpoint(path);
  const std::filesystem::path extension = path.extension();
  Inspection result;
  if (extension == ".safetensors") {
    result = inspect_safetensors(path);
  } else if (extension == ".gguf") {
    result = inspect_gguf(path);
  } else if (extension == ".npy") {
    result = inspect_windows(path);
  } else {
    refuse_mistaken_model(path);
    throw std::invalid_argument(path.string() +
                                ": expected a Hugging Face directory, or a .safetensors, .gguf or .npy file");
  }
  result.num_bytes = static_cast<int64_t>(std::filesystem::file_size(path));
  return result;
}

std::vector<EngineVerdict> judge(const std::filesystem::path& named) {
  const std::filesystem::path path = stored_model(named);
  if (std::filesystem::is_directory(path)) return judge_checkpoint(Checkpoint::open(path));
  return path.extension() == ".gguf" ? judge_file(path) : std::vector<EngineVerdict>();
}

std::string to_json(const Inspection& inspection) {
  nlohmann::ordered_json json;
  json["kind"] = inspection.kind;
  json["bytes"] = inspection.num_bytes;
  if (inspection.kind == "token windows") {
    json["windows"] = inspection.num_windows;
    json["tokens"] = inspection.num_tokens;
    json["tokenizer"] = nullptr;
    if (!inspection.windows_tokenizer.empty()) json["tokenizer"] = inspection.windows_tokenizer;
    return json_text(json);
  }
  if (!inspection.architecture.empty()) json["architecture"] = inspection.architecture;
  if (inspection.sizes) {
    json["model"] = inspection.model ? model_json(*inspection.model) : encoder_json(*inspection.encoder);
    json["quantized"] = inspection.is_quantized;
    if (!inspection.decoding.empty()) json["decoded"] = inspection.decoding;
    if (!inspection.cache.empty()) json["cache"] = inspection.cache;
    json["linear_parameters"] = inspection.sizes->linear_parameters;
    json["parameters"] = inspection.sizes->all_parameters;
    json["bits_per_weight_linears"] = inspection.sizes->linear_bits();
    json["bits_per_weight"] = inspection.sizes->all_bits();
  }
  for (const EngineVerdict& verdict : inspection.engines) {
    json["engines"].push_back({{"engine", verdict.engine}, {"loads", verdict.loads}, {"reasons", verdict.reasons}});
  }
  for (const LayerSparsity& layer : inspection.sparsity) {
    json["sparsity"].push_back({{"name", layer.name},
                                {"pattern", layer.pattern_text()},
                                {"packed", layer.claim.is_packed},
                                {"zeros", layer.zeros()},
                                {"violations", layer.num_violations},
                                {"bits_per_weight", layer.bits_per_weight}});
  }
  for (const auto& [name, threshold] : inspection.sparsity_thresholds) {
    json["activation_sparsity"].push_back({{"name", name}, {"threshold", threshold}});
  }
  json["bytes_by_dtype"] = inspection.bytes_by_dtype();
  json["tensors"] = nlohmann::ordered_json::array();
  for (const TensorSummary& tensor : inspection.tensors) {
    json["tensors"].push_back(
        {{"name", tensor.name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"bytes", tensor.num_bytes}});
  }
  return json_text(json);
}

std::string to_text(const Inspection& inspection, bool list_tensors) {
  std::ostringstream text;
  append_line(text, "kind", inspection.kind);
  append_line(text, "size", format_bytes(inspection.num_bytes));
  if (inspection.kind == "token windows") {
    append_line(text, "windows",
                std::to_string(inspection.num_windows) + " of " + std::to_string(inspection.num_tokens) + " tokens");
    append_line(text, "tokenizer", inspection.windows_tokenizer.empty() ? "not known" : inspection.windows_tokenizer);
    return text.str();
  }
  if (!inspection.architecture.empty()) append_line(text, "architecture", inspection.architecture);
  if (inspection.sizes) {
    const WeightSizes& sizes = *inspection.sizes;
    const std::string& family = inspection.model ? inspection.model->family : inspection.encoder->family;
    append_line(text, "family",
                family + (inspection.is_quantized ? ", quantized (" + inspection.quantization_method + ")" : ""));
    if (!inspection.decoding.empty()) append_line(text, "decoded", inspection.decoding);
    if (!inspection.cache.empty()) append_line(text, "cache", inspection.cache);
    if (inspection.model) {
      append_model(text, *inspection.model);
    } else {
      append_model(text, *inspection.encoder);
    }
    append_line(text, "parameters",
                std::to_string(sizes.all_parameters) + ", " + std::to_string(sizes.linear_parameters) +
                    " of them in the blocks' linears");
    append_line(text, "bits per weight",
                format_number(sizes.linear_bits(), 3) + " in the blocks' linears, " +
                    format_number(sizes.all_bits(), 3) +
                    (inspection.model ? " with embedding and head" : " with embeddings"));
  }
  if (!inspection.sparsity.empty()) append_sparsity(text, inspection.sparsity);
  if (!inspection.sparsity_thresholds.empty()) append_thresholds(text, inspection.sparsity_thresholds);
  append_line(text, "tensors", std::to_string(inspection.tensors.size()));
  for (const auto& [dtype, num_bytes] : inspection.bytes_by_dtype())
    append_line(text, "  " + dtype, format_bytes(num_bytes));
  for (const EngineVerdict& verdict : inspection.engines) append_line(text, "engine", verdict_line(verdict));
  if (list_tensors) {
    for (const TensorSummary& tensor : inspection.tensors) {
      text << visible_line(tensor.name) << ' ' << tensor.dtype << ' ' << shape_text(tensor.shape) << '\n';
    }
  }
  return text.str();
}

}  // namespace pare::runtime
