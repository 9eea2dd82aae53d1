#include "runtime/model/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>

#include "runtime/containers/container_table.h"
#include "runtime/containers/stored_linear.h"
#include "runtime/model/checkpoint_files.h"
#include "runtime/model/expert_stacks.h"
#include "runtime/model/own_config.h"
#include "runtime/model/stored_names.h"
#include "runtime/model/tensor_table.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/sha256.h"

namespace pare::runtime {
namespace fs = std::filesystem;

struct Checkpoint::State {
  fs::path directory;
  std::string config_file;  // as in the file; config_json has the model's own names (own_config.h)
  std::string config_json;
  ModelDescription description;  // for an encoder, only what the messages and the lookup below need
  std::optional<EncoderDescription> encoder;
  std::optional<Quantization> quantization;
  SparsityThresholds sparsity_thresholds;
  GenerationConfig generation;
  InputFiles inputs;  // all that was read
  TensorTable tensors;

  bool is_table(const std::string& name) const {
    if (!encoder) {
      return name == description.embedding_name ||
             (description.has_learned_positions() && name == description.position_table.name);
    }
    return std::ranges::any_of(embedding_tables(*encoder), [&](const auto& table) { return table.name == name; });
  }

  FindTensor finder() const {
    return [this](const std::string& name) { return tensors.find(name); };
  }

  void describe(DType dtype_if_absent);
  void read_early_quantization();
  ModuleNames module_names() const {
    return encoder ? runtime::module_names(*encoder) : runtime::module_names(description);
  }
  void check_all() const;
  void check_encoder() const;
  void check_tied_head() const;
  void check_thresholds() const;
  void check_linear(const LinearDescription& linear) const;
  DenseWeight dense_weight(const LinearDescription& linear) const;  // with checked values
  std::vector<float> finite_values(const std::string& name, const std::vector<int64_t>& shape) const;
  std::vector<int64_t> shape_of(const VectorDescription& vector) const;
  void check_finite(const std::string& name, const TensorView& view) const;
  std::optional<PackScheme> scheme(const LinearDescription& linear) const;
};

bool is_zero(const TensorView& view) {
  if (!is_float_dtype(view.dtype)) return false;
  std::vector<float> values(view.data.size() / static_cast<size_t>(dtype_size_bytes(view.dtype)));
  convert_to_float(view.dtype, view.data, values);
  return std::ranges::all_of(values, [](float value) { return value == 0.0f; });
}

void Checkpoint::State::check_finite(const std::string& name, const TensorView& view) const {
  const int64_t index = first_not_finite(view);
  if (index < 0) return;
  std::string place = std::to_string(index);
  if (view.shape.size() == 2) {
    place +=
        " (row " + std::to_string(index / view.shape[1]) + ", column " + std::to_string(index % view.shape[1]) + ")";
  }
  const size_t size = dtype_size_bytes(view.dtype);
  float value = 0;
  convert_to_float(view.dtype, view.data.subspan(static_cast<size_t>(index) * size, size), std::span(&value, 1));
  tensors.fail(name, "expected finite values, found " + std::string(std::isnan(value) ? "NaN" : "infinity") +
                         " at element " + place + ": the checkpoint is damaged");
}

DenseWeight Checkpoint::State::dense_weight(const LinearDescription& linear) const {
  const std::string name = linear.name + ".weight";
  tensors.dense_tensor(name, {linear.num_out, linear.num_in});
  const TensorView view = tensors.tensor(name);
  check_finite(name, view);
  return {linear.num_out, linear.num_in, view.dtype, view.data, {}, view.owned};
}

std::vector<int64_t> Checkpoint::State::shape_of(const VectorDescription& vector) const {
  const TensorView* const view = tensors.find(vector.name);
  return view != nullptr && view->shape.size() == 2 ? std::vector<int64_t>{1, vector.size} : std::vector{vector.size};
}

std::vector<float> Checkpoint::State::finite_values(const std::string& name, const std::vector<int64_t>& shape) const {
  tensors.dense_tensor(name, shape);
  const TensorView view = tensors.tensor(name);
  check_finite(name, view);
  std::vector<float> values(
      static_cast<size_t>(std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>())));
  convert_to_float(view.dtype, view.data, values);
  return values;
}

std::optional<PackScheme> Checkpoint::State::scheme(const LinearDescription& linear) const {
  if (!quantization) return std::nullopt;
  return runtime::stored_scheme(*quantization, tensors, linear.name, is_table(linear.name) ? "Embedding" : "Linear");
}

void Checkpoint::State::check_linear(const LinearDescription& linear) const {
  throw_if_interrupted();
  const std::string bias = linear.name + ".bias";
  if (const std::optional<PackScheme> stored = scheme(linear)) {
    tensors.in_this_directory(
        [&] { quantization->container->check(finder(), *stored, linear.num_out, linear.num_in, linear.name); });
  } else {
    tensors.dense_tensor(linear.name + ".weight", {linear.num_out, linear.num_in});
  }
  if (linear.has_bias) {
    tensors.dense_tensor(bias, {linear.num_out});
  } else if (tensors.find(bias) != nullptr && !(scheme(linear) && is_zero(tensors.tensor(bias)))) {
    // Unlike a tensor of an unknown module, this one would change the result if it were ignored. Zeros would not:
    // early AutoGPTQ stored them for every layer that it quantized.
    tensors.fail(bias, "unexpected: according to " + std::string(kConfigName) + " the " + description.family +
                           " model has no bias here (see attention_bias or mlp_bias, if the family has them)");
  }
}

// Files of a tied model may hold the shared weight twice. Only equal copies are the model that config.json describes.
void Checkpoint::State::check_tied_head() const {
  const std::string prefix = description.head.name + ".";
  for (const std::string& name : tensors.names()) {
    if (!name.starts_with(prefix)) continue;
    const std::string table = description.embedding_name + "." + name.substr(prefix.size());
    if (tensors.find(table) == nullptr || !are_equal(tensors.tensor(table), tensors.tensor(name))) {
      tensors.fail(name, "differs from the embedding, although tie_word_embeddings is true in " +
                             std::string(kConfigName) + ": set it to false if the head has weights of its own");
    }
  }
}

void Checkpoint::State::check_all() const {
  check_linear({description.embedding_name, description.vocabulary_size, description.hidden_size, false});
  if (description.has_learned_positions()) check_linear(description.position_table);
  for (const NormDescription& norm : all_norms(description)) {
    tensors.dense_tensor(norm.name + ".weight", {norm.width});
    if (norm.has_bias) tensors.dense_tensor(norm.name + ".bias", {norm.width});
  }
  for (const LinearDescription& linear : block_linears(description)) check_linear(linear);
  for (const BlockDescription& block : description.blocks) {
    for (const VectorDescription& vector : block.vectors()) tensors.dense_tensor(vector.name, shape_of(vector));
  }
  if (description.tied_head) {
    check_tied_head();
  } else {
    check_linear(description.head);
  }
}

void Checkpoint::State::check_encoder() const {
  for (const std::string& name : tensors.names()) {
    if (encoder->head.empty() || !name.starts_with(encoder->head + ".")) continue;
    tensors.fail(name,
                 "is part of a head, which embeddings do not pass through: save only the encoder (in Python, "
                 "AutoModel.from_pretrained(DIR).save_pretrained(OUT))");
  }
  for (const LinearDescription& table : embedding_tables(*encoder)) {
    tensors.dense_tensor(table.name + ".weight", {table.num_out, table.num_in});
  }
  for (const LinearDescription& linear : block_linears(*encoder)) check_linear(linear);
  for (const LayerNormDescription& norm : all_norms(*encoder)) {
    tensors.dense_tensor(norm.name + ".weight", {norm.width});
    if (norm.has_bias) tensors.dense_tensor(norm.name + ".bias", {norm.width});
  }
  if (encoder->distances) {
    const LinearDescription& table = encoder->distances->table;
    tensors.dense_tensor(table.name + ".weight", {table.num_out, table.num_in});
  }
}

// Inputs are dropped where the feed-forward network of a decoder ends, and nowhere else.
void Checkpoint::State::check_thresholds() const {
  if (sparsity_thresholds.empty()) return;
  std::set<std::string> ends;
  for (const BlockDescription& block : description.blocks) {
    for (const FeedForwardDescription& network : block.experts) ends.insert(network.down.name);
  }
  for (const auto& [name, threshold] : sparsity_thresholds) {
    if (ends.contains(name)) continue;
    throw std::invalid_argument((directory / kConfigName).string() + ": '" + std::string(kActivationSparsityKey) +
                                "' names '" + name + "', which ends no feed-forward network of the model" +
                                (ends.empty() ? "" : ", as '" + *ends.begin() + "' does") +
                                ": take the config.json that belongs to these weights");
  }
}

void Checkpoint::State::describe(DType dtype_if_absent) {
  const std::string where = (directory / kConfigName).string();
  if (!describes_encoder(config_json, where)) {
    description = describe_model(config_json, where, dtype_if_absent);
    return;
  }
  encoder = describe_encoder(config_json, where, dtype_if_absent);
  description.family = encoder->family;
  description.embedding_name = encoder->word_embedding.name;
}

// Only where tensors are stored so: the file may have been left beside weights of another kind.
void Checkpoint::State::read_early_quantization() {
  const auto is_code = [](const std::string& name) { return name.ends_with(".qweight"); };
  if (quantization || !std::ranges::any_of(tensors.names(), is_code)) return;
  fs::path found;
  config_json = with_early_quantization(config_json, directory, found);
  if (found.empty()) return;
  inputs.add(found);
  quantization = read_quantization_config(config_json, found);
}

Checkpoint::Checkpoint() : state_(std::make_unique<State>()) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Checkpoint Checkpoint::open(const fs::path& directory) {
  Checkpoint checkpoint;
  State& state = *checkpoint.state_;
  const fs::path config_path = directory / kConfigName;
  state.directory = directory;
  state.inputs.add(config_path);
  state.config_file = read_config(directory);
  state.config_json = config_of_model(state.config_file, config_path.string());
  // An unknown architecture or container is refused before the weights are looked for: that is the better message.
  state.describe(DType::F32);
  if (state.description.stacks_experts) state.config_json = without_mxfp4(state.config_json, config_path.string());
  state.quantization = read_quantization_config(state.config_json, config_path);
  state.sparsity_thresholds = read_sparsity_thresholds(state.config_json, config_path.string());
  if (!state.encoder) {
    state.inputs.add(directory / kGenerationConfigName);
    state.generation = read_generation_config(directory);
  }
  if (!is_there(directory / kSingleFileName)) state.inputs.add(directory / kIndexName);
  WeightFiles found = find_weight_files(directory);
  for (const fs::path& path : found.paths) state.inputs.add(path);
  state.tensors.open(directory, std::move(found), state.description.family, state.module_names());
  state.read_early_quantization();
  state.tensors.split_experts(state.description, block_of_stacks(state.quantization));
  state.tensors.decode_free_biases(state.quantization);
  // Without a dtype in config.json transformers takes that of the stored weights. A norm's is always dense.
  const std::string& norm_name = state.encoder ? state.encoder->embedding_norm.name : state.description.final_norm.name;
  const TensorView* norm = state.tensors.find(norm_name + ".weight");
  if (norm != nullptr && is_float_dtype(norm->dtype)) state.describe(norm->dtype);
  if (!state.generation.eos_tokens.empty()) state.description.stop_tokens = state.generation.eos_tokens;
  if (state.encoder) {
    state.check_encoder();
  } else {
    state.description.tied_head = state.tensors.settle_head(state.description);
    state.tensors.transpose_linears(state.description);
    state.check_all();
  }
  state.check_thresholds();
  return checkpoint;
}

const fs::path& Checkpoint::directory() const {
  return state_->directory;
}
bool Checkpoint::is_encoder() const {
  return state_->encoder.has_value();
}
const ModelDescription& Checkpoint::description() const {
  if (is_encoder()) {
    throw std::invalid_argument("'" + directory().string() + "' is an encoder (" + state_->encoder->family +
                                "), which does not predict a next token: expected a decoder");
  }
  return state_->description;
}
const GenerationConfig& Checkpoint::generation() const {
  if (!state_->generation.complaint.empty()) throw std::invalid_argument(state_->generation.complaint);
  return state_->generation;
}
const EncoderDescription& Checkpoint::encoder() const {
  if (!is_encoder()) {
    throw std::invalid_argument("'" + directory().string() + "' is a decoder (" + state_->description.family +
                                "), which does not give embeddings of sentences: expected an encoder");
  }
  return *state_->encoder;
}
// For a checkpoint that only pare reads, the text has the names by which other programs know the model (own_config.h).
const std::string& Checkpoint::config_json() const {
  return state_->config_json;
}
std::string Checkpoint::quantization_method() const {
  if (!is_quantized()) return "";
  return std::string(state_->quantization->container->method());
}
bool Checkpoint::is_quantized() const {
  return state_->quantization.has_value();
}
std::vector<fs::path> Checkpoint::weight_files() const {
  return state_->tensors.paths();
}

std::map<std::string, std::string> Checkpoint::file_hashes() const {
  std::map<std::string, std::string> hashes;
  hashes[kConfigName] = sha256_hex(std::as_bytes(std::span(state_->config_file)));
  const TensorTable& tensors = state_->tensors;
  for (size_t f = 0; f < tensors.paths().size(); ++f) {
    hashes[tensors.paths()[f].filename().string()] = tensors.files()[f].file().sha256();
  }
  return hashes;
}

void Checkpoint::check_unchanged() const {
  state_->inputs.check_unchanged();
}

std::optional<PackScheme> Checkpoint::stored_scheme(const LinearDescription& linear) const {
  return state_->scheme(linear);
}

bool Checkpoint::has_tensor(const std::string& name) const {
  return state_->tensors.find(name) != nullptr;
}

TensorView Checkpoint::tensor(const std::string& name) const {
  if (!has_tensor(name)) {
    throw std::runtime_error("'" + directory().string() + "' has no tensor '" + name + "'");
  }
  return state_->tensors.tensor(name);
}

TensorLayout Checkpoint::layout(const std::string& name) const {
  const TensorView* view = state_->tensors.find(name);
  if (view == nullptr) throw std::runtime_error("'" + directory().string() + "' has no tensor '" + name + "'");
  return {view->dtype, view->shape};
}

std::string Checkpoint::written_name(const std::string& tensor) const {
  const bool is_part = !is_encoder() && state_->description.is_text_part;
  return is_part ? state_->tensors.stored_names().stored(tensor) : tensor;
}

bool Checkpoint::is_written_transposed(const std::string& tensor, DType dtype) const {
  if (is_encoder() || !state_->description.stores_transposed || !is_float_dtype(dtype)) return false;
  return std::ranges::any_of(block_linears(state_->description),
                             [&](const LinearDescription& linear) { return tensor == linear.name + ".weight"; });
}

std::vector<std::string> Checkpoint::other_parts() const {
  std::set<std::string> parts, of_text;
  if (is_encoder() || !state_->description.is_text_part) return {};
  const ModelDescription& model = state_->description;
  const ModuleNames own = module_names(model);
  for (const std::string& name : tensor_names()) {
    const auto is_in = [&name](const std::string& module) { return name.starts_with(module + "."); };
    const bool is_text = is_in(own.head) ||
                         std::ranges::any_of(own.children, [&](const auto& child) { return is_in(own.base + child); });
    const std::string stored = state_->tensors.stored_names().stored(name);
    for (const std::string& full : {name, stored}) {
      const std::string_view below = full.starts_with("model.") ? std::string_view(full).substr(6) : full;
      (is_text ? of_text : parts).emplace(below.substr(0, below.find('.')));
    }
  }
  // A tensor beside the text part's own may lie under its name (rotary_emb.inv_freq of older files).
  for (const std::string& part : of_text) parts.erase(part);
  return {parts.begin(), parts.end()};
}

std::vector<std::string> Checkpoint::tensor_names() const {
  return state_->tensors.names();
}

LinearWeights Checkpoint::stored_linear(const LinearDescription& linear) const {
  LinearWeights weights;
  weights.name = linear.name;
  if (const std::optional<PackScheme> stored = state_->scheme(linear)) {
    state_->tensors.in_this_directory([&] {
      const ContainerFormat& container = *state_->quantization->container;
      StoredLinear read = container.load(state_->finder(), *stored, linear.num_out, linear.num_in, linear.name);
      weights.input = std::move(read.input);
      weights.outlier_weight_OJ = std::move(read.outlier_weight_OJ);
      if (stored->has_own_tensor()) {
        weights.weight = state_->dense_weight(linear);
      } else if (stored->is_dense()) {
        weights.weight = dense_weight(std::move(read));
      } else {
        weights.weight = std::move(read.weight);
      }
    });
  } else {
    weights.weight = state_->dense_weight(linear);
  }
  if (linear.has_bias) weights.bias_O = state_->finite_values(linear.name + ".bias", {linear.num_out});
  weights.input.sparsity_threshold = sparsity_threshold(linear);
  return weights;
}

LinearWeights Checkpoint::linear(const LinearDescription& linear) const {
  LinearWeights weights = stored_linear(linear);
  const auto* const quantized = std::get_if<QuantizedWeight>(&weights.weight);
  if (quantized != nullptr && quantized->code->is_blocks()) weights.weight = decoded_weight(*quantized);
  return weights;
}

const SparsityThresholds& Checkpoint::sparsity_thresholds() const {
  return state_->sparsity_thresholds;
}

float Checkpoint::sparsity_threshold(const LinearDescription& linear) const {
  const auto found = state_->sparsity_thresholds.find(linear.name);
  return found == state_->sparsity_thresholds.end() ? 0.0f : found->second;
}

LinearDescription Checkpoint::embedding() const {
  if (is_encoder()) return state_->encoder->word_embedding;
  return {description().embedding_name, description().vocabulary_size, description().hidden_size, false};
}

LinearDescription Checkpoint::head() const {
  return description().tied_head ? embedding() : description().head;
}

std::vector<float> Checkpoint::norm_gain(const NormDescription& norm) const {
  std::vector<float> gain = state_->finite_values(norm.name + ".weight", {norm.width});
  if (norm.unit_offset) {
    for (float& g : gain) g += 1.0f;
  }
  return gain;
}

std::vector<float> Checkpoint::norm_bias(const NormDescription& norm) const {
  return norm.has_bias ? state_->finite_values(norm.name + ".bias", {norm.width}) : std::vector<float>();
}

std::vector<float> Checkpoint::values_of(const VectorDescription& vector) const {
  return state_->finite_values(vector.name, state_->shape_of(vector));
}

LayerNorm Checkpoint::layer_norm(const LayerNormDescription& norm) const {
  return {.gain = state_->finite_values(norm.name + ".weight", {norm.width}),
          .bias = norm.has_bias ? state_->finite_values(norm.name + ".bias", {norm.width})
                                : std::vector<float>(static_cast<size_t>(norm.width), 0.0f),
          .epsilon = norm.epsilon};
}

std::vector<float> Checkpoint::distance_scores() const {
  if (!encoder().distances) return {};
  const LinearDescription& table = encoder().distances->table;
  return scores_of_distances(*encoder().distances,
                             state_->finite_values(table.name + ".weight", {table.num_out, table.num_in}));
}

void Checkpoint::check_values() const {
  std::vector<LinearDescription> linears = stored_linears(*this);
  if (is_encoder()) {
    for (const LayerNormDescription& norm : all_norms(encoder())) layer_norm(norm);
    distance_scores();
    const std::vector<LinearDescription> tables = embedding_tables(encoder());
    linears.insert(linears.end(), tables.begin(), tables.end());
  } else {
    for (const NormDescription& norm : all_norms(description())) {
      norm_gain(norm);
      norm_bias(norm);
    }
    for (const BlockDescription& block : description().blocks) {
      for (const VectorDescription& vector : block.vectors()) values_of(vector);
    }
  }
  for (const LinearDescription& read : linears) {
    throw_if_interrupted();
    linear(read);
    drop_pages(read);
  }
}

void Checkpoint::drop_pages(const LinearDescription& linear) const {
  state_->tensors.drop_pages(linear.name + ".bias");
  state_->tensors.drop_pages(linear.name + ".weight");
  if (!state_->quantization) return;
  for (const std::string_view suffix : state_->quantization->container->suffixes()) {
    state_->tensors.drop_pages(linear.name + std::string(suffix));
  }
}

std::vector<LinearDescription> stored_linears(const Checkpoint& checkpoint) {
  if (checkpoint.is_encoder()) return block_linears(checkpoint.encoder());
  std::vector<LinearDescription> linears = block_linears(checkpoint.description());
  linears.push_back(checkpoint.embedding());
  if (checkpoint.description().has_learned_positions()) linears.push_back(checkpoint.description().position_table);
  if (!checkpoint.description().tied_head) linears.push_back(checkpoint.head());
  return linears;
}

std::vector<LinearDescription> other_fp8_linears(const Checkpoint& checkpoint) {
  std::vector<LinearDescription> linears;
  if (!checkpoint.is_quantized()) return linears;
  constexpr std::string_view kSuffix = ".weight";
  std::set<std::string> known;
  for (const LinearDescription& linear : stored_linears(checkpoint)) known.insert(linear.name);
  for (const std::string& tensor : checkpoint.tensor_names()) {
    if (!tensor.ends_with(kSuffix)) continue;
    const TensorLayout layout = checkpoint.layout(tensor);
    if (layout.dtype != DType::F8_E4M3 || layout.shape.size() != 2) continue;
    const LinearDescription linear = {tensor.substr(0, tensor.size() - kSuffix.size()), layout.shape[0],
                                      layout.shape[1], false};
    if (!known.contains(linear.name) && checkpoint.stored_scheme(linear)) linears.push_back(linear);
  }
  return linears;
}

}  // namespace pare::runtime
