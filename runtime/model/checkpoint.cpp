#include "runtime/model/checkpoint.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <stdexcept>

#include "runtime/containers/container_table.h"
#include "runtime/containers/stored_linear.h"
#include "runtime/model/checkpoint_files.h"
#include "runtime/model/own_config.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/sha256.h"

namespace pare::runtime {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHeadName = "lm_head";

// A tensor's place: one of the checkpoint's files, and the position in it.
struct Entry {
  const TensorView* view = nullptr;
  const SafetensorsFile* file = nullptr;
  const fs::path* path = nullptr;
};

}  // namespace

struct Checkpoint::State {
  fs::path directory;
  std::string config_file;  // as in the file; config_json has the model's own names (own_config.h)
  std::string config_json;
  ModelDescription description;  // for an encoder, only what the messages and the lookup below need
  std::optional<EncoderDescription> encoder;
  std::optional<Quantization> quantization;
  GenerationConfig generation;
  InputFiles inputs;  // all that was read
  std::vector<fs::path> paths;
  std::vector<SafetensorsFile> files;  // in the order of paths; never resized once `tensors` points into it
  std::map<std::string, Entry> tensors;
  std::deque<TensorView> expert_views;  // `tensors` points to these if a file holds all experts in one tensor

  [[noreturn]] void fail_missing(const std::string& name) const;
  [[noreturn]] void fail(const std::string& name, const std::string& what) const {
    throw std::runtime_error(tensors.at(name).path->string() + ": tensor '" + name + "': " + what);
  }
  const TensorView* find(const std::string& name) const {
    const auto entry = tensors.find(name);
    return entry == tensors.end() ? nullptr : entry->second.view;
  }

  bool is_table(const std::string& name) const {
    if (!encoder) return name == description.embedding_name;
    return std::ranges::any_of(embedding_tables(*encoder), [&](const auto& table) { return table.name == name; });
  }

  FindTensor finder() const {
    return [this](const std::string& name) { return find(name); };
  }

  // Runs an action whose errors name the tensor but not the directory, and adds that.
  template <typename Action>
  void in_this_directory(const Action& action) const {
    try {
      action();
    } catch (const std::runtime_error& error) {
      throw std::runtime_error("'" + directory.string() + "': " + error.what());
    }
  }

  void open_files(WeightFiles found);
  void describe(DType dtype_if_absent);
  void split_fused_experts();
  void split_tensor(const std::string& fused, std::span<const std::vector<LinearDescription>> parts);
  void check_all() const;
  void check_encoder() const;
  void check_tied_head() const;
  void check_linear(const LinearDescription& linear) const;
  const TensorView& dense_tensor(const std::string& name, const std::vector<int64_t>& shape) const;
  DenseWeight dense_weight(const LinearDescription& linear) const;  // with checked values
  std::vector<float> finite_values(const std::string& name, int64_t num_elements) const;
  void check_finite(const std::string& name) const;
  std::optional<PackScheme> scheme(const LinearDescription& linear) const;
};

void Checkpoint::State::fail_missing(const std::string& name) const {
  std::string hint;
  const std::string suffix = "." + name;
  const auto other =
      std::find_if(tensors.begin(), tensors.end(), [&](const auto& entry) { return entry.first.ends_with(suffix); });
  if (other != tensors.end()) {
    hint = "; there is '" + other->first + "', part of a larger model: save only its language model";
  } else if (name == std::string(kHeadName) + ".weight") {
    hint = "; tie_word_embeddings is false in " + std::string(kConfigName) +
           ": set it to true if the head shares the embedding's weight";
  } else if (name.ends_with(".weight")) {
    const std::string module = name.substr(0, name.rfind('.'));
    for (const ContainerFormat* container : container_formats()) {
      for (const std::string_view part : container->suffixes()) {
        if (!hint.empty() || find(module + std::string(part)) == nullptr) continue;
        hint = "; there is '" + module + std::string(part) + "', as in the container " +
               std::string(container->name()) + ", but the quantization_config of " + kConfigName +
               " does not say that this module is quantized so";
      }
    }
  }
  throw std::runtime_error("'" + directory.string() + "': tensor '" + name + "' is missing: the " + description.family +
                           " model of " + kConfigName + " needs it" + hint);
}

void Checkpoint::State::open_files(WeightFiles found) {
  paths = std::move(found.paths);
  for (const fs::path& path : paths) {
    inputs.add(path);
    files.push_back(SafetensorsFile::open(path));
  }
  std::map<std::string, size_t> number_of_file;
  for (size_t f = 0; f < paths.size(); ++f) number_of_file[paths[f].filename().string()] = f;

  if (found.file_of_tensor.empty()) {
    for (const auto& [name, view] : files[0].tensors()) tensors[name] = {&view, &files[0], &paths[0]};
    return;
  }
  for (const auto& [name, file_name] : found.file_of_tensor) {
    const size_t f = number_of_file.at(file_name);
    const auto view = files[f].tensors().find(name);
    if (view == files[f].tensors().end()) {
      throw std::runtime_error("'" + paths[f].string() + "' lacks tensor '" + name + "', which " + kIndexName +
                               " says is there: fetch index and files of the same revision");
    }
    tensors[name] = {&view->second, &files[f], &paths[f]};
  }
}

// transformers 5 can store a mixture as it holds it: mlp.experts.gate_up_proj [E, 2F, D], mlp.experts.down_proj
// [E, D, F] and mlp.gate.weight, whatever the family calls single experts. This function makes single experts of them.
void Checkpoint::State::split_fused_experts() {
  for (const BlockDescription& block : description.blocks) {
    const std::string module = block.name + ".mlp.";
    if (!block.is_mixture() || find(module + "experts.gate_up_proj") == nullptr) continue;
    std::vector<std::vector<LinearDescription>> gate_ups, downs;
    for (const FeedForwardDescription& expert : block.experts) {
      gate_ups.push_back({expert.gate, expert.up});
      downs.push_back({expert.down});
    }
    split_tensor(module + "experts.gate_up_proj", gate_ups);
    split_tensor(module + "experts.down_proj", downs);
    if (auto router = tensors.extract(module + "gate.weight"); !router.empty()) {
      router.key() = block.router->name + ".weight";
      tensors.insert(std::move(router));
    }
  }
}

// Splits [E, rows of all parts of an expert, I] into the weights of the parts.
void Checkpoint::State::split_tensor(const std::string& fused, std::span<const std::vector<LinearDescription>> parts) {
  const LinearDescription& first = parts.front().front();
  int64_t num_rows = 0;
  for (const LinearDescription& part : parts.front()) num_rows += part.num_out;
  const Entry source = {&dense_tensor(fused, {static_cast<int64_t>(parts.size()), num_rows, first.num_in}),
                        tensors.at(fused).file, tensors.at(fused).path};
  const TensorView& view = *source.view;
  size_t begin = 0;
  for (const std::vector<LinearDescription>& expert : parts) {
    for (const LinearDescription& part : expert) {
      const auto num_bytes = static_cast<size_t>(part.num_out * part.num_in) * dtype_size_bytes(view.dtype);
      expert_views.push_back({view.dtype, {part.num_out, part.num_in}, view.data.subspan(begin, num_bytes)});
      begin += num_bytes;
      if (!tensors.emplace(part.name + ".weight", Entry{&expert_views.back(), source.file, source.path}).second) {
        fail(fused, "holds '" + part.name + ".weight', which is also stored by itself: the checkpoint is mixed up");
      }
    }
  }
  tensors.erase(fused);
}

const TensorView& Checkpoint::State::dense_tensor(const std::string& name, const std::vector<int64_t>& shape) const {
  const TensorView* view = find(name);
  if (view == nullptr) fail_missing(name);
  if (!is_float_dtype(view->dtype))
    fail(name, "expected F32, F16 or BF16, found " + std::string(dtype_name(view->dtype)));
  if (view->shape != shape) {
    fail(name, "expected shape " + shape_text(shape) + " of " + kConfigName + ", found " + shape_text(view->shape));
  }
  return *view;
}

void Checkpoint::State::check_finite(const std::string& name) const {
  const TensorView& view = *tensors.at(name).view;
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
  fail(name, "expected finite values, found " + std::string(std::isnan(value) ? "NaN" : "infinity") + " at element " +
                 place + ": the checkpoint is damaged");
}

DenseWeight Checkpoint::State::dense_weight(const LinearDescription& linear) const {
  const std::string name = linear.name + ".weight";
  const TensorView& view = dense_tensor(name, {linear.num_out, linear.num_in});
  check_finite(name);
  return {linear.num_out, linear.num_in, view.dtype, view.data};
}

std::vector<float> Checkpoint::State::finite_values(const std::string& name, int64_t num_elements) const {
  const TensorView& view = dense_tensor(name, {num_elements});
  check_finite(name);
  std::vector<float> values(static_cast<size_t>(num_elements));
  convert_to_float(view.dtype, view.data, values);
  return values;
}

std::optional<PackScheme> Checkpoint::State::scheme(const LinearDescription& linear) const {
  std::optional<PackScheme> stored;
  if (!quantization) return stored;
  in_this_directory([&] {
    stored = quantization->config->scheme_of(linear.name, is_table(linear.name) ? "Embedding" : "Linear", finder());
  });
  return stored;
}

void Checkpoint::State::check_linear(const LinearDescription& linear) const {
  throw_if_interrupted();
  const std::string bias = linear.name + ".bias";
  if (const std::optional<PackScheme> stored = scheme(linear)) {
    in_this_directory(
        [&] { quantization->container->check(finder(), *stored, linear.num_out, linear.num_in, linear.name); });
  } else {
    dense_tensor(linear.name + ".weight", {linear.num_out, linear.num_in});
  }
  if (linear.has_bias) {
    dense_tensor(bias, {linear.num_out});
  } else if (find(bias) != nullptr) {
    // Unlike a tensor of an unknown module, this one would change the result if it were ignored.
    fail(bias, "unexpected: according to " + std::string(kConfigName) + " the " + description.family +
                   " model has no bias here (see attention_bias or mlp_bias, if the family has them)");
  }
}

// Files of a tied model may hold the shared weight twice. Only equal copies are the model that config.json describes.
void Checkpoint::State::check_tied_head() const {
  const std::string prefix = std::string(kHeadName) + ".";
  for (auto entry = tensors.lower_bound(prefix); entry != tensors.end() && entry->first.starts_with(prefix); ++entry) {
    const TensorView& copy = *entry->second.view;
    const TensorView* table = find(description.embedding_name + "." + entry->first.substr(prefix.size()));
    if (table == nullptr || table->dtype != copy.dtype || table->shape != copy.shape ||
        std::memcmp(table->data.data(), copy.data.data(), copy.data.size()) != 0) {
      fail(entry->first, "differs from the embedding, although tie_word_embeddings is true in " +
                             std::string(kConfigName) + ": set it to false if the head has weights of its own");
    }
  }
}

void Checkpoint::State::check_all() const {
  check_linear({description.embedding_name, description.vocabulary_size, description.hidden_size, false});
  for (const NormDescription& norm : all_norms(description)) dense_tensor(norm.name + ".weight", {norm.width});
  for (const LinearDescription& linear : block_linears(description)) check_linear(linear);
  if (description.tied_head) {
    check_tied_head();
  } else {
    check_linear(description.head);
  }
}

void Checkpoint::State::check_encoder() const {
  for (const LinearDescription& table : embedding_tables(*encoder)) {
    dense_tensor(table.name + ".weight", {table.num_out, table.num_in});
  }
  for (const LinearDescription& linear : block_linears(*encoder)) check_linear(linear);
  for (const LayerNormDescription& norm : all_norms(*encoder)) {
    dense_tensor(norm.name + ".weight", {norm.width});
    dense_tensor(norm.name + ".bias", {norm.width});
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
  state.quantization = read_quantization_config(state.config_json, config_path);
  if (!state.encoder) {
    state.inputs.add(directory / kGenerationConfigName);
    state.generation = read_generation_config(directory);
  }
  if (!is_there(directory / kSingleFileName)) state.inputs.add(directory / kIndexName);
  state.open_files(find_weight_files(directory));
  state.split_fused_experts();
  // Without a dtype in config.json transformers takes that of the stored weights. A norm's is always dense.
  const std::string& norm_name = state.encoder ? state.encoder->embedding_norm.name : state.description.final_norm.name;
  const TensorView* norm = state.find(norm_name + ".weight");
  if (norm != nullptr && is_float_dtype(norm->dtype)) state.describe(norm->dtype);
  if (!state.generation.eos_tokens.empty()) state.description.stop_tokens = state.generation.eos_tokens;
  if (state.encoder) {
    state.check_encoder();
  } else {
    state.check_all();
  }
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
  return state_->paths;
}

std::map<std::string, std::string> Checkpoint::file_hashes() const {
  std::map<std::string, std::string> hashes;
  hashes[kConfigName] = sha256_hex(std::as_bytes(std::span(state_->config_file)));
  for (size_t f = 0; f < state_->paths.size(); ++f) {
    hashes[state_->paths[f].filename().string()] = state_->files[f].file().sha256();
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
  return state_->find(name) != nullptr;
}

const TensorView& Checkpoint::tensor(const std::string& name) const {
  const TensorView* view = state_->find(name);
  if (view == nullptr) throw std::runtime_error("'" + directory().string() + "' has no tensor '" + name + "'");
  return *view;
}

std::vector<std::string> Checkpoint::tensor_names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : state_->tensors) names.push_back(name);
  return names;
}

LinearWeights Checkpoint::linear(const LinearDescription& linear) const {
  LinearWeights weights;
  weights.name = linear.name;
  if (const std::optional<PackScheme> stored = state_->scheme(linear)) {
    state_->in_this_directory([&] {
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
  if (linear.has_bias) weights.bias_O = state_->finite_values(linear.name + ".bias", linear.num_out);
  return weights;
}

LinearDescription Checkpoint::embedding() const {
  if (is_encoder()) return state_->encoder->word_embedding;
  return {description().embedding_name, description().vocabulary_size, description().hidden_size, false};
}

LinearDescription Checkpoint::head() const {
  return description().tied_head ? embedding() : description().head;
}

std::vector<float> Checkpoint::norm_gain(const NormDescription& norm) const {
  std::vector<float> gain = state_->finite_values(norm.name + ".weight", norm.width);
  if (norm.unit_offset) {
    for (float& g : gain) g += 1.0f;
  }
  return gain;
}

LayerNorm Checkpoint::layer_norm(const LayerNormDescription& norm) const {
  return {.gain = state_->finite_values(norm.name + ".weight", norm.width),
          .bias = state_->finite_values(norm.name + ".bias", norm.width),
          .epsilon = norm.epsilon};
}

void Checkpoint::check_values() const {
  std::vector<LinearDescription> linears = stored_linears(*this);
  if (is_encoder()) {
    for (const LayerNormDescription& norm : all_norms(encoder())) layer_norm(norm);
    const std::vector<LinearDescription> tables = embedding_tables(encoder());
    linears.insert(linears.end(), tables.begin(), tables.end());
  } else {
    for (const NormDescription& norm : all_norms(description())) norm_gain(norm);
  }
  for (const LinearDescription& read : linears) {
    throw_if_interrupted();
    linear(read);
    drop_pages(read);
  }
}

void Checkpoint::drop_pages(const LinearDescription& linear) const {
  const auto drop = [&](const std::string& name) {
    const auto entry = state_->tensors.find(name);
    if (entry != state_->tensors.end()) entry->second.file->file().drop(entry->second.view->data);
  };
  drop(linear.name + ".bias");
  drop(linear.name + ".weight");
  if (!state_->quantization) return;
  for (const std::string_view suffix : state_->quantization->container->suffixes()) {
    drop(linear.name + std::string(suffix));
  }
}

std::vector<LinearDescription> stored_linears(const Checkpoint& checkpoint) {
  if (checkpoint.is_encoder()) return block_linears(checkpoint.encoder());
  std::vector<LinearDescription> linears = block_linears(checkpoint.description());
  linears.push_back(checkpoint.embedding());
  if (!checkpoint.description().tied_head) linears.push_back(checkpoint.head());
  return linears;
}

}  // namespace pare::runtime
