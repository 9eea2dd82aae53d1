#include "runtime/model/tensor_table.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

#include "runtime/containers/container_table.h"
#include "runtime/containers/fp8.h"
#include "runtime/containers/mlx.h"
#include "runtime/model/expert_stacks.h"
#include "runtime/system/interrupt.h"

namespace pare::runtime {

namespace fs = std::filesystem;

bool are_equal(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.shape == b.shape && std::memcmp(a.data.data(), b.data.data(), a.data.size()) == 0;
}

std::optional<PackScheme> stored_scheme(const Quantization& quantization, const TensorTable& tensors,
                                        const std::string& module, std::string_view class_name) {
  std::optional<PackScheme> stored;
  const FindTensor find = [&](const std::string& tensor) { return tensors.find(tensor); };
  tensors.in_this_directory([&] { stored = quantization.config->scheme_of(module, class_name, find); });
  // The configuration may know the module by its name in the file. Where the two names say different things, the
  // weight itself tells whether it is quantized.
  const std::string name = tensors.stored_names().stored(module);
  if (name == module) return stored;
  std::optional<PackScheme> of_file;
  const FindTensor find_stored = [&](const std::string& tensor) {
    return tensors.find(tensors.stored_names().described(tensor));
  };
  tensors.in_this_directory([&] { of_file = quantization.config->scheme_of(name, class_name, find_stored); });
  if (of_file.has_value() == stored.has_value()) return stored;
  const TensorView* const weight = tensors.find(module + ".weight");
  const std::optional<PackScheme>& said = stored ? stored : of_file;
  return weight != nullptr && is_float_dtype(weight->dtype) && !said->has_own_tensor() ? std::nullopt : said;
}

void TensorTable::open(const fs::path& directory, WeightFiles found, const std::string& family,
                       const ModuleNames& modules) {
  directory_ = directory;
  family_ = family;
  head_ = modules.head;
  paths_ = std::move(found.paths);
  file_of_tensor_ = std::move(found.file_of_tensor);
  for (const fs::path& path : paths_) files_.push_back(SafetensorsFile::open(path));
  for (size_t f = 0; f < files_.size(); ++f) add_tensors(f);
  rename_tensors(modules);
}

// An index says which files there are. What a file holds, the file says: an index may be older. Of two files with the
// same tensor the index chooses.
void TensorTable::add_tensors(size_t f) {
  for (const auto& [name, view] : files_[f].tensors()) {
    const Entry entry = {&view, &files_[f], &paths_[f]};
    const auto [place, is_new] = tensors_.emplace(name, entry);
    if (is_new) continue;
    const auto listed = file_of_tensor_.find(name);
    const std::string chosen = listed == file_of_tensor_.end() ? "" : listed->second;
    if (chosen == paths_[f].filename()) {
      place->second = entry;
    } else if (chosen != place->second.path->filename() && !are_equal(view, *place->second.view)) {
      throw std::runtime_error("'" + place->second.path->string() + "' and '" + paths_[f].string() +
                               "' hold different tensors '" + name + "', and " + kIndexName +
                               " does not say which is meant: fetch index and files of the same revision");
    }
  }
}

void TensorTable::rename_tensors(const ModuleNames& modules) {
  std::vector<std::string> names;
  for (const auto& [name, entry] : tensors_) names.push_back(name);
  in_this_directory([&] { stored_names_ = StoredNames(names, modules); });
  if (stored_names_.are_described()) return;
  std::map<std::string, Entry> renamed;
  for (const auto& [name, entry] : tensors_) {
    if (renamed.emplace(stored_names_.described(name), entry).second) continue;
    throw std::runtime_error("'" + directory_.string() + "': expected one tensor '" + stored_names_.described(name) +
                             "', found it under another name too, '" + name + "': the checkpoint is mixed up");
  }
  tensors_ = std::move(renamed);
}

bool TensorTable::has_module(const std::string& module) const {
  const auto tensor = tensors_.lower_bound(module + ".");
  return tensor != tensors_.end() && tensor->first.starts_with(module + ".");
}

bool TensorTable::settle_head(const ModelDescription& model) {
  const std::string head = model.head.name + ".", embedding = model.embedding_name + ".";
  if (!model.tied_head || !has_module(model.head.name)) return model.tied_head;
  if (!has_module(model.embedding_name)) {
    while (has_module(model.head.name)) {
      auto tensor = tensors_.extract(tensors_.lower_bound(head));
      tensor.key() = embedding + tensor.key().substr(head.size());
      tensors_.insert(std::move(tensor));
    }
    return true;
  }
  const bool are_comparable = tensors_.contains(head + "weight") && tensors_.contains(embedding + "weight");
  return !model.is_tie_assumed || !are_comparable || are_equal(tensor(head + "weight"), tensor(embedding + "weight"));
}

// transformers 5 can store a mixture as it holds it: mlp.experts.gate_up_proj [E, 2F, D], mlp.experts.down_proj
// [E, D, F] and mlp.gate.weight, whatever the family calls single experts. This function makes single experts of them.
void TensorTable::split_experts(const ModelDescription& model, const std::optional<ScaleBlock>& fp8_block) {
  if (model.stacks_experts) return take_stacked_experts(model);
  for (const BlockDescription& block : model.blocks) {
    const std::string module = block.name + ".mlp.";
    if (!block.is_mixture() || find(module + "experts.gate_up_proj") == nullptr) continue;
    std::vector<std::vector<LinearDescription>> gate_ups, downs;
    for (const FeedForwardDescription& expert :
         std::span(block.experts).first(static_cast<size_t>(block.num_routed()))) {
      gate_ups.push_back({expert.gate, expert.up});
      downs.push_back({expert.down});
    }
    split_tensor(module + "experts.gate_up_proj", gate_ups, fp8_block);
    split_tensor(module + "experts.down_proj", downs, fp8_block);
    const auto take_name = [&](const std::string& held, const std::string& name) {
      if (auto tensor = tensors_.extract(held); !tensor.empty()) {
        tensor.key() = name;
        tensors_.insert(std::move(tensor));
      }
    };
    take_name(module + "gate.weight", block.router->name + ".weight");
    if (block.correction) {
      take_name(module + "gate." + block.correction->name.substr(module.size()), block.correction->name);
    }
  }
}

void TensorTable::take_stacked_experts(const ModelDescription& model) {
  for (const BlockDescription& block : model.blocks) {
    std::set<std::string> stacks;
    in_this_directory([&] {
      for (ExpertTensor& expert : experts_of_stacks(block, [&](const std::string& name) { return find(name); })) {
        stacks.insert(expert.stacks.begin(), expert.stacks.end());
        const Entry& stack = tensors_.at(expert.stacks.front());
        MadeTensor& made = made_tensors_.emplace_back(
            MadeTensor{TensorView{expert.dtype, expert.shape, {}}, std::move(expert.make), {}});
        for (size_t p = 0; p < expert.parts.size(); ++p) {
          made.parts.emplace_back(tensors_.at(expert.stacks[p]).file, expert.parts[p]);
        }
        if (tensors_.emplace(expert.name, Entry{&made.view, stack.file, stack.path, &made}).second) continue;
        throw std::runtime_error("tensor '" + expert.stacks.front() + "' holds '" + expert.name +
                                 "', which is also stored by itself: the checkpoint is mixed up");
      }
    });
    for (const std::string& stack : stacks) tensors_.erase(stack);
  }
}

void TensorTable::decode_free_biases(const std::optional<Quantization>& quantization) {
  const auto* const config = quantization ? dynamic_cast<const MlxConfig*>(quantization->config.get()) : nullptr;
  if (config == nullptr) return;
  std::vector<std::string> modules;
  for (const auto& [name, entry] : tensors_) {
    if (name.ends_with(kMlxBiasesSuffix)) modules.push_back(name.substr(0, name.size() - kMlxBiasesSuffix.size()));
  }
  for (const std::string& module : modules) {
    throw_if_interrupted();
    // The configuration has the names of the file.
    const std::string stored = stored_names_.stored(module);
    std::optional<MlxFloats> floats = config->free_biases(
        stored, [&](const std::string& tensor) { return find(module + tensor.substr(stored.size())); });
    if (!floats) continue;
    const Entry weight = tensors_.at(module + std::string(kMlxWeightSuffix));
    MadeTensor& made = made_tensors_.emplace_back(
        MadeTensor{TensorView{DType::F32, std::move(floats->shape), {}}, std::move(floats->make_f32), {}});
    size_t p = 0;
    for (const std::string_view suffix : {kMlxWeightSuffix, kMlxScalesSuffix, kMlxBiasesSuffix}) {
      made.parts.emplace_back(tensors_.at(module + std::string(suffix)).file, floats->parts[p++]);
      tensors_.erase(module + std::string(suffix));
    }
    tensors_.emplace(module + std::string(kMlxWeightSuffix), Entry{&made.view, weight.file, weight.path, &made});
  }
}

void TensorTable::add_part(const std::string& name, TensorView view, const std::string& fused) {
  split_views_.push_back(std::move(view));
  const Entry& source = tensors_.at(fused);
  if (tensors_.emplace(name, Entry{&split_views_.back(), source.file, source.path}).second) return;
  fail(fused, "holds '" + name + "', which is also stored by itself: the checkpoint is mixed up");
}

// Splits [E, rows of all parts of an expert, I] into the weights of the parts.
void TensorTable::split_tensor(const std::string& fused, std::span<const std::vector<LinearDescription>> parts,
                               const std::optional<ScaleBlock>& fp8_block) {
  const LinearDescription& first = parts.front().front();
  int64_t num_rows = 0;
  for (const LinearDescription& part : parts.front()) num_rows += part.num_out;
  const TensorView* const found = find(fused);
  const bool has_codes = fp8_block && found != nullptr && found->dtype == DType::F8_E4M3;
  const std::vector<int64_t> shape = {static_cast<int64_t>(parts.size()), num_rows, first.num_in};
  if (has_codes) in_this_directory([&] { require_tensor(found, fused, DType::F8_E4M3, shape); });
  const TensorView view = has_codes ? *found : dense_tensor(fused, shape);
  size_t begin = 0;
  for (const std::vector<LinearDescription>& expert : parts) {
    for (const LinearDescription& part : expert) {
      const auto num_bytes = static_cast<size_t>(part.num_out * part.num_in) * dtype_size_bytes(view.dtype);
      add_part(part.name + ".weight", {view.dtype, {part.num_out, part.num_in}, view.data.subspan(begin, num_bytes)},
               fused);
      begin += num_bytes;
    }
  }
  if (has_codes) split_scales(fused, parts, *fp8_block);
  tensors_.erase(fused);
}

// Splits the scales of a stack of codes, [E, rows of all parts, columns], and its ranges of inputs, [E].
void TensorTable::split_scales(const std::string& fused, std::span<const std::vector<LinearDescription>> parts,
                               const ScaleBlock& block) {
  const std::vector<LinearDescription>& first = parts.front();
  const auto num_experts = static_cast<int64_t>(parts.size()), num_parts = static_cast<int64_t>(first.size());
  const auto blocks_of = [](int64_t size, int64_t of_block) { return (size + of_block - 1) / of_block; };
  std::vector<int64_t> rows;  // of scales, for each part
  for (const LinearDescription& part : first) {
    rows.push_back(block.is_none() ? 1 : blocks_of(part.num_out, block.num_rows));
    // Rows of a block that two parts share would belong to one of them.
    if (!block.is_none() && num_parts > 1 && rows.back() > 1 && part.num_out % block.num_rows != 0) {
      fail(fused, "expected parts of whole blocks of " + std::to_string(block.num_rows) + " rows, found '" + part.name +
                      "' of " + std::to_string(part.num_out) + ": store its experts one by one");
    }
  }
  const std::string name = fused + "_scale_inv";
  const TensorView* const scales = find(name);
  const bool is_shared =
      block.is_none() && scales != nullptr && scales->shape == std::vector<int64_t>{num_experts, 1, 1};
  const int64_t num_columns = block.is_none() ? 1 : blocks_of(first.front().num_in, block.num_columns);
  const int64_t num_rows = is_shared ? 1 : std::accumulate(rows.begin(), rows.end(), int64_t{0});
  in_this_directory([&] {
    require_tensor(scales, name, scales == nullptr ? DType::F32 : scales->dtype, {num_experts, num_rows, num_columns});
  });
  const auto size = static_cast<int64_t>(dtype_size_bytes(scales->dtype));
  const TensorView view = *scales;
  const std::string range_name = fused + "_activation_scale";
  const TensorView* const ranges = find(range_name);
  if (ranges != nullptr) in_this_directory([&] { require_tensor(ranges, range_name, ranges->dtype, {num_experts}); });
  for (int64_t e = 0; e < num_experts; ++e) {
    int64_t row = e * num_rows;
    for (int64_t p = 0; p < num_parts; ++p) {
      const LinearDescription& part = parts[static_cast<size_t>(e)][static_cast<size_t>(p)];
      const int64_t num_of_part = rows[static_cast<size_t>(p)];
      const std::vector<int64_t> shape =
          block.is_none() ? std::vector<int64_t>{1} : std::vector<int64_t>{num_of_part, num_columns};
      add_part(part.name + std::string(kFp8ScaleSuffix),
               {view.dtype, shape,
                view.data.subspan(static_cast<size_t>(row * num_columns * size),
                                  static_cast<size_t>(num_of_part * num_columns * size))},
               name);
      if (!is_shared) row += num_of_part;
      if (ranges == nullptr) continue;
      const size_t range_size = dtype_size_bytes(ranges->dtype);
      add_part(part.name + std::string(kFp8InputSuffix),
               {ranges->dtype, {1}, ranges->data.subspan(static_cast<size_t>(e) * range_size, range_size)}, range_name);
    }
  }
  tensors_.erase(name);
  tensors_.erase(range_name);
}

// Weights in floats only: codes lie as their container has them, since no other program has a container for such a
// model.
void TensorTable::transpose_linears(const ModelDescription& model) {
  if (!model.stores_transposed) return;
  for (const LinearDescription& linear : block_linears(model)) {
    const auto entry = tensors_.find(linear.name + ".weight");
    if (entry == tensors_.end() || !is_float_dtype(entry->second.view->dtype)) continue;
    const TensorView& stored = dense_tensor(entry->first, {linear.num_in, linear.num_out});
    MadeTensor& made =
        made_tensors_.emplace_back(MadeTensor{.view = {stored.dtype, {linear.num_out, linear.num_in}, {}},
                                              .make = [&stored] { return transposed(stored); },
                                              .parts = {{entry->second.file, stored.data}}});
    entry->second.view = &made.view;
    entry->second.made = &made;
  }
}

const TensorView* TensorTable::find(const std::string& name) const {
  const auto entry = tensors_.find(name);
  return entry == tensors_.end() ? nullptr : entry->second.view;
}

TensorView TensorTable::tensor(const std::string& name) const {
  const Entry& entry = tensors_.at(name);
  TensorView view = *entry.view;
  if (entry.made == nullptr) return view;
  view.owned = std::make_shared<const std::vector<std::byte>>(entry.made->make());
  view.data = *view.owned;
  return view;
}

std::vector<std::string> TensorTable::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : tensors_) names.push_back(name);
  return names;
}

void TensorTable::drop_pages(const std::string& name) const {
  const auto entry = tensors_.find(name);
  if (entry == tensors_.end()) return;
  const MadeTensor* const made = entry->second.made;
  if (made == nullptr) return entry->second.file->file().drop(entry->second.view->data);
  for (const auto& [file, bytes] : made->parts) file->file().drop(bytes);
}

void TensorTable::fail(const std::string& name, const std::string& what) const {
  throw std::runtime_error(tensors_.at(name).path->string() + ": tensor '" + stored_names_.stored(name) + "': " + what);
}

const TensorView& TensorTable::dense_tensor(const std::string& name, const std::vector<int64_t>& shape) const {
  const TensorView* view = find(name);
  if (view == nullptr) fail_missing(name);
  if (!is_float_dtype(view->dtype))
    fail(name, "expected F32, F16 or BF16, found " + std::string(dtype_name(view->dtype)));
  if (view->shape != shape) {
    fail(name, "expected shape " + shape_text(shape) + " of " + kConfigName + ", found " + shape_text(view->shape));
  }
  return *view;
}

// Returns where a missing tensor is, or should be; "": nothing says.
std::string TensorTable::hint_of_files(const std::string& stored) const {
  if (const auto listed = file_of_tensor_.find(stored); listed != file_of_tensor_.end()) {
    return "; " + std::string(kIndexName) + " says that '" + listed->second +
           "' holds it, which it does not: fetch index and files of the same revision";
  }
  for (const fs::path& path : other_weight_files(directory_, paths_)) {
    try {
      if (!SafetensorsFile::open(path).tensors().contains(stored)) continue;
    } catch (const std::runtime_error&) {
      continue;  // a file that nobody reads may be anything
    }
    return "; '" + path.filename().string() + "' holds it, which " +
           (file_of_tensor_.empty() ? "is not read beside " + std::string(kSingleFileName)
                                    : std::string(kIndexName) + " does not name") +
           ": fetch index and files of the same revision";
  }
  return "";
}

void TensorTable::fail_missing(const std::string& name) const {
  const std::string stored = stored_names_.stored(name), suffix = "." + name;
  std::string hint = hint_of_files(stored);
  const auto other =
      std::find_if(tensors_.begin(), tensors_.end(), [&](const auto& entry) { return entry.first.ends_with(suffix); });
  if (!hint.empty()) {
    // It says more than the model's other tensors do.
  } else if (other != tensors_.end()) {
    hint = "; there is '" + other->first + "', part of a larger model: save only its language model";
  } else if (name == head_ + ".weight") {
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
  throw std::runtime_error("'" + directory_.string() + "': tensor '" + stored + "' is missing: the " + family_ +
                           " model of " + kConfigName + " needs it" + hint);
}

}  // namespace pare::runtime
