#include "runtime/export/gguf_plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>
#include <variant>

#include "runtime/export/gguf_codes.h"
#include "runtime/export/gguf_matrix.h"

namespace pare::runtime {
namespace {

constexpr const char* kScalesBeyond = "float16 does not hold its scales";

bool is_quantized(const Checkpoint& checkpoint, const LinearDescription& linear) {
  const std::optional<PackScheme> scheme = checkpoint.stored_scheme(linear);
  return scheme && !scheme->is_dense();
}

bool has_blocks(const Checkpoint& checkpoint, const LinearDescription& linear) {
  const std::optional<PackScheme> scheme = checkpoint.stored_scheme(linear);
  return scheme && !scheme->is_dense() && scheme->code->is_blocks();
}

// Returns the type of blocks in which all parts are stored; nullopt: they are not, or in several.
std::optional<GgufType> stored_blocks(const Checkpoint& checkpoint, const PlannedGgufTensor& tensor) {
  std::optional<GgufType> type;
  for (const GgufPlace& place : tensor.parts) {
    if (!has_blocks(checkpoint, *place.linear)) return std::nullopt;
    const auto own = static_cast<GgufType>(checkpoint.stored_scheme(*place.linear)->code->gguf_type);
    if (type && *type != own) return std::nullopt;
    type = own;
  }
  return type;
}

// Returns the type of floats that holds what a dense linear has.
GgufType float_type(const Checkpoint& checkpoint, const LinearDescription& linear) {
  const std::string name = linear.name + ".weight";
  // A container may pack a dense weight that has a pattern.
  const DType dtype = checkpoint.has_tensor(name) ? checkpoint.layout(name).dtype
                                                  : std::get<DenseWeight>(checkpoint.linear(linear).weight).dtype;
  if (dtype == DType::F16) return GgufType::F16;
  if (dtype == DType::BF16) return GgufType::BF16;
  return GgufType::F32;
}

class Plan {
 public:
  Plan(const Checkpoint& checkpoint, const DecoderFamily& family, const GgufFormat& format, const GgufCopies& copies)
      : checkpoint_(checkpoint), model_(checkpoint.description()), family_(family), format_(format), copies_(copies) {}

  std::vector<PlannedGgufTensor> all() {
    for (const GgufPlace& place : gguf_places(family_, model_, has_in_new_gguf)) add(place);
    for (PlannedGgufTensor& tensor : tensors_) choose_type(tensor);
    return std::move(tensors_);
  }

 private:
  void add(const GgufPlace& place);
  void add_latents(const GgufPlace& place);
  void choose_type(PlannedGgufTensor& tensor) const;
  std::optional<GgufType> copied_type(const PlannedGgufTensor& tensor) const;
  void choose_new_type(PlannedGgufTensor& tensor, const LinearDescription& linear) const;
  ChosenType asked_type(const PlannedGgufTensor& tensor, bool has_codes) const;
  bool is_head(const PlannedGgufTensor& tensor) const;
  // Calls holds(linear, type) for every part, and returns whether all do.
  bool all_parts(const PlannedGgufTensor& tensor, GgufType type,
                 bool (*holds)(const LinearWeights& linear, GgufType type)) const;
  ChosenType smallest_for_codes(const PlannedGgufTensor& tensor) const;
  bool is_router(const std::string& name) const;

  const Checkpoint& checkpoint_;
  const ModelDescription& model_;
  const DecoderFamily& family_;
  const GgufFormat& format_;
  const GgufCopies& copies_;
  std::vector<PlannedGgufTensor> tensors_;
  std::map<std::string, size_t> places_;
};

bool is_weight(const GgufPlace& place) {
  return place.linear && place.name.ends_with(".weight");
}

void Plan::add(const GgufPlace& place) {
  const bool is_tied_head = model_.tied_head && is_weight(place) && place.linear->name == model_.head.name;
  if (is_tied_head || (!is_weight(place) && !checkpoint_.has_tensor(place.name))) return;
  if (!place.latent_values.empty()) return add_latents(place);
  if (const auto known = places_.find(place.source.name); known != places_.end()) {
    tensors_[known->second].parts.push_back(place);
    return;
  }
  PlannedGgufTensor tensor;
  tensor.name = place.source.name;
  tensor.parts = {place};
  if (is_weight(place)) {
    tensor.shape = {place.linear->num_out, place.linear->num_in};
    // llama.cpp has a matrix of one row as a vector.
    if (place.linear->num_out == 1) {
      tensor.shape.erase(tensor.shape.begin());
      tensor.making = GgufMaking::vector;
    }
  } else {
    tensor.making = GgufMaking::vector;
    tensor.shape = checkpoint_.layout(place.name).shape;
    const bool is_row = tensor.shape.size() == 2 && tensor.shape.front() == 1;
    if (is_row) tensor.shape.erase(tensor.shape.begin());
  }
  if (place.source.num_parts > 0) tensor.shape.insert(tensor.shape.begin(), place.source.num_parts);
  places_[tensor.name] = tensors_.size();
  tensors_.push_back(std::move(tensor));
}

void Plan::add_latents(const GgufPlace& place) {
  const int64_t channels = model_.head_size - model_.blocks.front().latent->num_rotated;
  const int64_t latent = place.linear->num_in;
  const auto add_half = [&](const std::string& name, std::vector<int64_t> shape, GgufMaking making) {
    PlannedGgufTensor& half = tensors_.emplace_back();
    half.name = name;
    half.shape = std::move(shape);
    half.making = making;
    half.parts = {place};
  };
  add_half(place.source.name, {model_.num_heads, latent, channels}, GgufMaking::latent_keys);
  add_half(place.latent_values, {model_.num_heads, model_.value_size, latent}, GgufMaking::latent_values);
}

// Scores of experts decide, and take no room: llama.cpp has them in F32.
bool Plan::is_router(const std::string& name) const {
  return name.find("ffn_gate_inp") != std::string::npos;
}

void Plan::choose_type(PlannedGgufTensor& tensor) const {
  if (tensor.making == GgufMaking::vector || is_router(tensor.name)) {
    tensor.chosen = {GgufType::F32};
    return;
  }
  if (const std::optional<GgufType> type = copied_type(tensor)) {
    tensor.chosen = {*type};
    tensor.is_copied = true;
    return;
  }
  const LinearDescription& linear = *tensor.parts.front().linear;
  const bool asks_for_floats = format_.type && gguf_block(static_cast<uint32_t>(*format_.type)).num_elements == 1;
  if (asks_for_floats || !has_blocks(checkpoint_, linear)) return choose_new_type(tensor, linear);
  const std::optional<GgufType> blocks = stored_blocks(checkpoint_, tensor);
  if (tensor.making == GgufMaking::matrix && blocks) {
    tensor.chosen = {*blocks};
    if (format_.type && *format_.type != *blocks) tensor.chosen.why = "its blocks stay as they are";
    return;
  }
  choose_new_type(tensor, linear);
  tensor.chosen.why = tensor.making == GgufMaking::matrix ? "its parts are blocks of several types"
                                                          : "keys and values of a latent are stored turned";
}

bool Plan::is_head(const PlannedGgufTensor& tensor) const {
  const std::string& name = tensor.parts.front().linear->name;
  return name == model_.head.name || (model_.tied_head && name == model_.embedding_name);
}

// Returns the type of the imported file's blocks if they are what is wanted.
std::optional<GgufType> Plan::copied_type(const PlannedGgufTensor& tensor) const {
  if (tensor.making != GgufMaking::matrix) return std::nullopt;
  const std::optional<GgufType> type = copies_.type_of(tensor.parts.front());
  const bool are_of_one =
      std::ranges::all_of(tensor.parts, [&](const GgufPlace& place) { return copies_.type_of(place) == type; });
  if (!type || !are_of_one || !format_.type || *type == *format_.type) return are_of_one ? type : std::nullopt;
  const bool is_wanted = *type == type_for(*format_.type, tensor.shape.back(), is_head(tensor)).type;
  return is_wanted ? type : std::nullopt;
}

void Plan::choose_new_type(PlannedGgufTensor& tensor, const LinearDescription& linear) const {
  const bool has_codes = tensor.making == GgufMaking::matrix && is_quantized(checkpoint_, linear);
  if (format_.type) {
    tensor.chosen = asked_type(tensor, has_codes);
  } else if (has_codes || model_.stacks_experts) {
    // Stacks of experts may have codes as well, though the checkpoint gives floats.
    tensor.chosen = smallest_for_codes(tensor);
    if (!has_codes && tensor.chosen.type != GgufType::MXFP4) tensor.chosen = {float_type(checkpoint_, linear)};
  } else {
    tensor.chosen = {is_quantized(checkpoint_, linear) ? GgufType::F16 : float_type(checkpoint_, linear)};
  }
}

bool Plan::all_parts(const PlannedGgufTensor& tensor, GgufType type,
                     bool (*holds)(const LinearWeights& linear, GgufType type)) const {
  return std::ranges::all_of(tensor.parts, [&](const GgufPlace& place) {
    const bool is_held = holds(read_for_gguf(checkpoint_, *place.linear), type);
    checkpoint_.drop_pages(*place.linear);
    return is_held;
  });
}

// The logits' matrix keeps its size where that size holds its codes: a larger type would not make it better.
ChosenType Plan::asked_type(const PlannedGgufTensor& tensor, bool has_codes) const {
  const int64_t width = tensor.shape.back();
  const ChosenType usual = type_for(*format_.type, width, false),
                   by_rule = type_for(*format_.type, width, is_head(tensor));
  const bool is_float = gguf_block(static_cast<uint32_t>(by_rule.type)).num_elements == 1;
  if (!has_codes || is_float) return by_rule;
  for (const ChosenType& chosen : {usual, by_rule}) {
    if (!all_parts(tensor, chosen.type, holds_codes)) continue;
    if (all_parts(tensor, chosen.type, holds_scales)) return chosen;
    return {GgufType::BF16, kScalesBeyond};
  }
  return by_rule;
}

ChosenType Plan::smallest_for_codes(const PlannedGgufTensor& tensor) const {
  std::vector<GgufType> exact(code_types().begin(), code_types().end()), held = exact;
  if (tensor.making != GgufMaking::matrix) return {GgufType::F16};
  bool loses_scales = false;
  for (const GgufPlace& place : tensor.parts) {
    const LinearWeights linear = read_for_gguf(checkpoint_, *place.linear);
    std::erase_if(held, [&](GgufType type) {
      if (!holds_codes(linear, type)) return true;
      if (holds_scales(linear, type)) return false;
      loses_scales = true;
      return true;
    });
    std::erase_if(exact, [&](GgufType type) {
      return std::ranges::find(held, type) == held.end() || !is_held_exactly(linear, type);
    });
    checkpoint_.drop_pages(*place.linear);
    if (held.empty()) break;
  }
  if (!exact.empty()) return {exact.front()};
  if (!held.empty()) return {held.front(), "no type holds its scales exactly"};
  if (!all_parts(tensor, GgufType::F16, holds_scales)) return {GgufType::BF16, kScalesBeyond};
  return {GgufType::F16, loses_scales ? kScalesBeyond : "no type of blocks holds its codes"};
}

}  // namespace

std::vector<PlannedGgufTensor> plan_gguf_tensors(const Checkpoint& checkpoint, const DecoderFamily& family,
                                                 const GgufFormat& format, const GgufCopies& copies) {
  return Plan(checkpoint, family, format, copies).all();
}

}  // namespace pare::runtime
