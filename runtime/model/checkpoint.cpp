#include "runtime/model/checkpoint.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
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
#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/sha256.h"

namespace pare::runtime {
namespace {

namespace fs = std::filesystem;

// A tensor that is made of stacks, and the files that hold each part of it.
struct MadeTensor {
  ExpertTensor tensor;
  std::vector<const SafetensorsFile*> files;
};

// A tensor's place: one of the checkpoint's files, and the position in it.
struct Entry {
  const TensorView* view = nullptr;
  const SafetensorsFile* file = nullptr;
  const fs::path* path = nullptr;
  const MadeTensor* made = nullptr;  // not null: the view has no data, which are made of a stack in the file
};

bool are_equal(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.shape == b.shape && std::memcmp(a.data.data(), b.data.data(), a.data.size()) == 0;
}

// Adds what stands after the base, up to the next dot.
void add_child(const std::string& base, const std::string& module, ModuleNames& names) {
  std::string child = module.substr(base.size(), module.find('.', base.size()) - base.size());
  if (std::ranges::find(names.children, child) == names.children.end()) names.children.push_back(std::move(child));
}

ModuleNames module_names(const ModelDescription& model) {
  ModuleNames names = {.base = model.base, .children = {}, .anchor = {}, .embedding = {}, .head = model.head.name};
  const std::vector<NormDescription> norms = all_norms(model);
  const auto anchor = std::ranges::find_if(
      norms, [&](const NormDescription& norm) { return norm.name.starts_with(model.blocks.front().name + "."); });
  names.anchor = (anchor == norms.end() ? model.final_norm.name : anchor->name).substr(model.base.size()) + ".weight";
  names.embedding = model.embedding_name.substr(model.base.size());
  add_child(model.base, model.embedding_name, names);
  if (model.has_learned_positions()) add_child(model.base, model.position_table.name, names);
  for (const LinearDescription& linear : block_linears(model)) add_child(model.base, linear.name, names);
  for (const NormDescription& norm : norms) add_child(model.base, norm.name, names);
  return names;
}

ModuleNames module_names(const EncoderDescription& model) {
  ModuleNames names = {.base = {}, .children = {}, .anchor = {}, .embedding = model.word_embedding.name, .head = {}};
  names.anchor = model.blocks.front().feed_forward_norm.name + ".weight";
  add_child("", model.word_embedding.name, names);
  for (const LinearDescription& linear : block_linears(model)) add_child("", linear.name, names);
  for (const LayerNormDescription& norm : all_norms(model)) add_child("", norm.name, names);
  for (const std::string& linear : model.unused_linears) add_child("", linear, names);
  return names;
}

}  // namespace

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
  std::vector<fs::path> paths;
  std::vector<SafetensorsFile> files;  // in the order of paths; never resized once `tensors` points into it
  std::map<std::string, std::string> file_of_tensor;  // the index, by the names in the files
  StoredNames stored_names;
  std::map<std::string, Entry> tensors;  // by the description's names
  std::deque<TensorView> expert_views;   // `tensors` points to these if a file holds all experts in one tensor
  std::deque<MadeTensor> made_tensors;   // `tensors` points to these if files hold experts in stacks of their own
  std::deque<std::vector<std::byte>> transposed_bytes;  // of weights that the files hold as [I, O]
  std::deque<TensorView> transposed_views;              // `tensors` points to these then, without a file

  [[noreturn]] void fail_missing(const std::string& name) const;
  [[noreturn]] void fail(const std::string& name, const std::string& what) const {
    throw std::runtime_error(tensors.at(name).path->string() + ": tensor '" + stored_names.stored(name) + "': " + what);
  }
  const TensorView* find(const std::string& name) const {
    const auto entry = tensors.find(name);
    return entry == tensors.end() ? nullptr : entry->second.view;
  }

  // Returns a tensor that is there, with its data.
  TensorView tensor_of(const Entry& entry) const {
    TensorView view = *entry.view;
    if (entry.made == nullptr) return view;
    view.owned = std::make_shared<const std::vector<std::byte>>(entry.made->tensor.make());
    view.data = *view.owned;
    return view;
  }

  bool is_table(const std::string& name) const {
    if (!encoder) {
      return name == description.embedding_name ||
             (description.has_learned_positions() && name == description.position_table.name);
    }
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
  void add_tensors(size_t f);
  void rename_tensors();
  bool has_module(const std::string& module) const;
  void settle_head();
  std::string hint_of_files(const std::string& stored) const;
  void describe(DType dtype_if_absent);
  void split_fused_experts();
  void take_stacked_experts();
  void split_tensor(const std::string& fused, std::span<const std::vector<LinearDescription>> parts);
  void transpose_linears();
  void check_all() const;
  void check_encoder() const;
  void check_tied_head() const;
  void check_thresholds() const;
  void check_linear(const LinearDescription& linear) const;
  const TensorView& dense_tensor(const std::string& name, const std::vector<int64_t>& shape) const;
  DenseWeight dense_weight(const LinearDescription& linear) const;  // with checked values
  std::vector<float> finite_values(const std::string& name, const std::vector<int64_t>& shape) const;
  std::vector<int64_t> shape_of(const VectorDescription& vector) const;
  void check_finite(const std::string& name, const TensorView& view) const;
  std::optional<PackScheme> scheme(const LinearDescription& linear) const;
};

// Returns where a missing tensor is, or should be; "": nothing says.
std::string Checkpoint::State::hint_of_files(const std::string& stored) const {
  if (const auto listed = file_of_tensor.find(stored); listed != file_of_tensor.end()) {
    return "; " + std::string(kIndexName) + " says that '" + listed->second +
           "' holds it, which it does not: fetch index and files of the same revision";
  }
  for (const fs::path& path : other_weight_files(directory, paths)) {
    try {
      if (!SafetensorsFile::open(path).tensors().contains(stored)) continue;
    } catch (const std::runtime_error&) {
      continue;  // a file that nobody reads may be anything
    }
    return "; '" + path.filename().string() + "' holds it, which " +
           (file_of_tensor.empty() ? "is not read beside " + std::string(kSingleFileName)
                                   : std::string(kIndexName) + " does not name") +
           ": fetch index and files of the same revision";
  }
  return "";
}

void Checkpoint::State::fail_missing(const std::string& name) const {
  const std::string stored = stored_names.stored(name), suffix = "." + name;
  std::string hint = hint_of_files(stored);
  const auto other =
      std::find_if(tensors.begin(), tensors.end(), [&](const auto& entry) { return entry.first.ends_with(suffix); });
  if (!hint.empty()) {
    // It says more than the model's other tensors do.
  } else if (other != tensors.end()) {
    hint = "; there is '" + other->first + "', part of a larger model: save only its language model";
  } else if (name == description.head.name + ".weight") {
    hint = "; no file holds a head, and tie_word_embeddings is false in " + std::string(kConfigName) +
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
  throw std::runtime_error("'" + directory.string() + "': tensor '" + stored + "' is missing: the " +
                           description.family + " model of " + kConfigName + " needs it" + hint);
}

void Checkpoint::State::open_files(WeightFiles found) {
  paths = std::move(found.paths);
  file_of_tensor = std::move(found.file_of_tensor);
  for (const fs::path& path : paths) {
    inputs.add(path);
    files.push_back(SafetensorsFile::open(path));
  }
  for (size_t f = 0; f < files.size(); ++f) add_tensors(f);
  rename_tensors();
}

// An index says which files there are. What a file holds, the file says: an index may be older. Of two files with the
// same tensor the index chooses.
void Checkpoint::State::add_tensors(size_t f) {
  for (const auto& [name, view] : files[f].tensors()) {
    const Entry entry = {&view, &files[f], &paths[f]};
    const auto [place, is_new] = tensors.emplace(name, entry);
    if (is_new) continue;
    const auto listed = file_of_tensor.find(name);
    const std::string chosen = listed == file_of_tensor.end() ? "" : listed->second;
    if (chosen == paths[f].filename()) {
      place->second = entry;
    } else if (chosen != place->second.path->filename() && !are_equal(view, *place->second.view)) {
      throw std::runtime_error("'" + place->second.path->string() + "' and '" + paths[f].string() +
                               "' hold different tensors '" + name + "', and " + kIndexName +
                               " does not say which is meant: fetch index and files of the same revision");
    }
  }
}

void Checkpoint::State::rename_tensors() {
  std::vector<std::string> names;
  for (const auto& [name, entry] : tensors) names.push_back(name);
  in_this_directory(
      [&] { stored_names = StoredNames(names, encoder ? module_names(*encoder) : module_names(description)); });
  if (stored_names.are_described()) return;
  std::map<std::string, Entry> renamed;
  for (const auto& [name, entry] : tensors) {
    if (renamed.emplace(stored_names.described(name), entry).second) continue;
    throw std::runtime_error("'" + directory.string() + "': expected one tensor '" + stored_names.described(name) +
                             "', found it under another name too, '" + name + "': the checkpoint is mixed up");
  }
  tensors = std::move(renamed);
}

bool Checkpoint::State::has_module(const std::string& module) const {
  const auto tensor = tensors.lower_bound(module + ".");
  return tensor != tensors.end() && tensor->first.starts_with(module + ".");
}

// A head and an embedding that share their weight may be stored under either name. Where only a default says that they
// share it, a stored head decides, as in transformers.
void Checkpoint::State::settle_head() {
  const std::string head = description.head.name + ".", embedding = description.embedding_name + ".";
  if (encoder || !description.tied_head || !has_module(description.head.name)) return;
  if (!has_module(description.embedding_name)) {
    while (has_module(description.head.name)) {
      auto tensor = tensors.extract(tensors.lower_bound(head));
      tensor.key() = embedding + tensor.key().substr(head.size());
      tensors.insert(std::move(tensor));
    }
  } else if (const TensorView* own = find(head + "weight"), *shared = find(embedding + "weight");
             description.is_tie_assumed && own != nullptr && shared != nullptr && !are_equal(*own, *shared)) {
    description.tied_head = false;
  }
}

// transformers 5 can store a mixture as it holds it: mlp.experts.gate_up_proj [E, 2F, D], mlp.experts.down_proj
// [E, D, F] and mlp.gate.weight, whatever the family calls single experts. This function makes single experts of them.
void Checkpoint::State::split_fused_experts() {
  if (description.stacks_experts) return take_stacked_experts();
  for (const BlockDescription& block : description.blocks) {
    const std::string module = block.name + ".mlp.";
    if (!block.is_mixture() || find(module + "experts.gate_up_proj") == nullptr) continue;
    std::vector<std::vector<LinearDescription>> gate_ups, downs;
    for (const FeedForwardDescription& expert :
         std::span(block.experts).first(static_cast<size_t>(block.num_routed()))) {
      gate_ups.push_back({expert.gate, expert.up});
      downs.push_back({expert.down});
    }
    split_tensor(module + "experts.gate_up_proj", gate_ups);
    split_tensor(module + "experts.down_proj", downs);
    const auto take_name = [&](const std::string& held, const std::string& name) {
      if (auto tensor = tensors.extract(held); !tensor.empty()) {
        tensor.key() = name;
        tensors.insert(std::move(tensor));
      }
    };
    take_name(module + "gate.weight", block.router->name + ".weight");
    if (block.correction) {
      take_name(module + "gate." + block.correction->name.substr(module.size()), block.correction->name);
    }
  }
}

void Checkpoint::State::take_stacked_experts() {
  for (const BlockDescription& block : description.blocks) {
    std::set<std::string> stacks;
    in_this_directory([&] {
      for (ExpertTensor& made : experts_of_stacks(block, finder())) {
        stacks.insert(made.stacks.begin(), made.stacks.end());
        const Entry& stack = tensors.at(made.stacks.front());
        MadeTensor& held = made_tensors.emplace_back(MadeTensor{std::move(made), {}});
        const ExpertTensor& tensor = held.tensor;
        for (const std::string& name : tensor.stacks) held.files.push_back(tensors.at(name).file);
        const TensorView& view = expert_views.emplace_back(TensorView{tensor.dtype, tensor.shape, {}});
        if (tensors.emplace(tensor.name, Entry{&view, stack.file, stack.path, &held}).second) continue;
        throw std::runtime_error("tensor '" + tensor.stacks.front() + "' holds '" + tensor.name +
                                 "', which is also stored by itself: the checkpoint is mixed up");
      }
    });
    for (const std::string& stack : stacks) tensors.erase(stack);
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

// Weights in floats only: codes lie as their container has them, since no other program has a container for such a
// model.
void Checkpoint::State::transpose_linears() {
  if (encoder || !description.stores_transposed) return;
  for (const LinearDescription& linear : block_linears(description)) {
    throw_if_interrupted();
    const auto entry = tensors.find(linear.name + ".weight");
    if (entry == tensors.end() || !is_float_dtype(entry->second.view->dtype)) continue;
    const TensorView& stored = dense_tensor(entry->first, {linear.num_in, linear.num_out});
    transposed_bytes.push_back(transposed(stored));
    transposed_views.push_back({stored.dtype, {linear.num_out, linear.num_in}, transposed_bytes.back()});
    entry->second.file->file().drop(stored.data);
    entry->second = {&transposed_views.back(), nullptr, entry->second.path};
  }
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
  fail(name, "expected finite values, found " + std::string(std::isnan(value) ? "NaN" : "infinity") + " at element " +
                 place + ": the checkpoint is damaged");
}

DenseWeight Checkpoint::State::dense_weight(const LinearDescription& linear) const {
  const std::string name = linear.name + ".weight";
  dense_tensor(name, {linear.num_out, linear.num_in});
  const TensorView view = tensor_of(tensors.at(name));
  check_finite(name, view);
  return {linear.num_out, linear.num_in, view.dtype, view.data, {}, view.owned};
}

std::vector<int64_t> Checkpoint::State::shape_of(const VectorDescription& vector) const {
  const TensorView* const view = find(vector.name);
  return view != nullptr && view->shape.size() == 2 ? std::vector<int64_t>{1, vector.size} : std::vector{vector.size};
}

std::vector<float> Checkpoint::State::finite_values(const std::string& name, const std::vector<int64_t>& shape) const {
  dense_tensor(name, shape);
  const TensorView view = tensor_of(tensors.at(name));
  check_finite(name, view);
  std::vector<float> values(
      static_cast<size_t>(std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>())));
  convert_to_float(view.dtype, view.data, values);
  return values;
}

std::optional<PackScheme> Checkpoint::State::scheme(const LinearDescription& linear) const {
  std::optional<PackScheme> stored;
  if (!quantization) return stored;
  const std::string_view class_name = is_table(linear.name) ? "Embedding" : "Linear";
  in_this_directory([&] { stored = quantization->config->scheme_of(linear.name, class_name, finder()); });
  // The configuration may know the module by its name in the file. Where the two names say different things, the
  // weight itself tells whether it is quantized.
  const std::string name = stored_names.stored(linear.name);
  if (name == linear.name) return stored;
  std::optional<PackScheme> of_file;
  const FindTensor find_stored = [this](const std::string& tensor) { return find(stored_names.described(tensor)); };
  in_this_directory([&] { of_file = quantization->config->scheme_of(name, class_name, find_stored); });
  if (of_file.has_value() == stored.has_value()) return stored;
  const TensorView* const weight = find(linear.name + ".weight");
  const std::optional<PackScheme>& said = stored ? stored : of_file;
  return weight != nullptr && is_float_dtype(weight->dtype) && !said->has_own_tensor() ? std::nullopt : said;
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
  const std::string prefix = description.head.name + ".";
  for (auto entry = tensors.lower_bound(prefix); entry != tensors.end() && entry->first.starts_with(prefix); ++entry) {
    const TensorView& copy = *entry->second.view;
    const TensorView* table = find(description.embedding_name + "." + entry->first.substr(prefix.size()));
    if (table == nullptr || !are_equal(*table, copy)) {
      fail(entry->first, "differs from the embedding, although tie_word_embeddings is true in " +
                             std::string(kConfigName) + ": set it to false if the head has weights of its own");
    }
  }
}

void Checkpoint::State::check_all() const {
  check_linear({description.embedding_name, description.vocabulary_size, description.hidden_size, false});
  if (description.has_learned_positions()) check_linear(description.position_table);
  for (const NormDescription& norm : all_norms(description)) {
    dense_tensor(norm.name + ".weight", {norm.width});
    if (norm.has_bias) dense_tensor(norm.name + ".bias", {norm.width});
  }
  for (const LinearDescription& linear : block_linears(description)) check_linear(linear);
  for (const BlockDescription& block : description.blocks) {
    for (const VectorDescription& vector : block.vectors()) dense_tensor(vector.name, shape_of(vector));
  }
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
    if (norm.has_bias) dense_tensor(norm.name + ".bias", {norm.width});
  }
  if (encoder->distances) {
    const LinearDescription& table = encoder->distances->table;
    dense_tensor(table.name + ".weight", {table.num_out, table.num_in});
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
  state.open_files(find_weight_files(directory));
  state.split_fused_experts();
  // Without a dtype in config.json transformers takes that of the stored weights. A norm's is always dense.
  const std::string& norm_name = state.encoder ? state.encoder->embedding_norm.name : state.description.final_norm.name;
  const TensorView* norm = state.find(norm_name + ".weight");
  if (norm != nullptr && is_float_dtype(norm->dtype)) state.describe(norm->dtype);
  if (!state.generation.eos_tokens.empty()) state.description.stop_tokens = state.generation.eos_tokens;
  state.settle_head();
  state.transpose_linears();
  if (state.encoder) {
    state.check_encoder();
  } else {
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

TensorView Checkpoint::tensor(const std::string& name) const {
  const auto entry = state_->tensors.find(name);
  if (entry == state_->tensors.end()) {
    throw std::runtime_error("'" + directory().string() + "' has no tensor '" + name + "'");
  }
  return state_->tensor_of(entry->second);
}

TensorLayout Checkpoint::layout(const std::string& name) const {
  const TensorView* view = state_->find(name);
  if (view == nullptr) throw std::runtime_error("'" + directory().string() + "' has no tensor '" + name + "'");
  return {view->dtype, view->shape};
}

std::string Checkpoint::written_name(const std::string& tensor) const {
  const bool is_part = !is_encoder() && state_->description.is_text_part;
  return is_part ? state_->stored_names.stored(tensor) : tensor;
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
  for (const auto& [name, entry] : state_->tensors) {
    const auto is_in = [&name = name](const std::string& module) { return name.starts_with(module + "."); };
    const bool is_text = is_in(own.head) ||
                         std::ranges::any_of(own.children, [&](const auto& child) { return is_in(own.base + child); });
    const std::string stored = state_->stored_names.stored(name);
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
  if (linear.has_bias) weights.bias_O = state_->finite_values(linear.name + ".bias", {linear.num_out});
  weights.input.sparsity_threshold = sparsity_threshold(linear);
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
  const auto drop = [&](const std::string& name) {
    const auto entry = state_->tensors.find(name);
    if (entry == state_->tensors.end() || entry->second.file == nullptr) return;
    const MadeTensor* const made = entry->second.made;
    if (made == nullptr) return entry->second.file->file().drop(entry->second.view->data);
    for (size_t p = 0; p < made->files.size(); ++p) made->files[p]->file().drop(made->tensor.parts[p]);
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
  if (checkpoint.description().has_learned_positions()) linears.push_back(checkpoint.description().position_table);
  if (!checkpoint.description().tied_head) linears.push_back(checkpoint.head());
  return linears;
}

}  // namespace pare::runtime
