#include "runtime/engine/activation_mode.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <variant>

namespace pare::runtime {
namespace {

bool has_groups(const LinearWeights& weights) {
  return weights.input.type == InputType::int8 && weights.input.range == InputRange::block;
}

// True if such codes have kernels that multiply rounded groups.
bool has_kernels(int bits, bool symmetric) {
  return bits == 4 || (bits == 8 && symmetric);
}

[[noreturn]] void refuse_none(ActivationMode mode) {
  if (mode == ActivationMode::bf16) {
    throw std::invalid_argument(
        "--activations bf16 rounds the inputs of linears that the model's files leave exact, and this model has none: "
        "leave the option out");
  }
  throw std::invalid_argument(
      "--activations int8 rounds the inputs of linears whose weights are integers of 4 bits, or of 8 bits without "
      "zeros, and this model has none whose inputs are exact: leave the option out, or turn a .gguf into codes first "
      "with 'pare export'");
}

}  // namespace

ActivationMode parse_activation_mode(std::string_view name) {
  const auto* const found = std::find(std::begin(kActivationModes), std::end(kActivationModes), name);
  if (found != std::end(kActivationModes)) return static_cast<ActivationMode>(found - std::begin(kActivationModes));
  throw std::invalid_argument("activations '" + std::string(name) + "': expected exact, int8 or bf16");
}

std::string_view activation_mode_name(ActivationMode mode) {
  return kActivationModes[static_cast<int>(mode)];
}

bool rounds_groups(const LinearWeights& weights) {
  const auto* const weight = std::get_if<QuantizedWeight>(&weights.weight);
  return weights.input.keeps_values() && weight != nullptr && weight->code->is_integer() &&
         has_kernels(weight->bits, weight->symmetric) && weight->pattern == SparsePattern{} &&
         !weights.has_sparse_input;
}

bool rounds_to_bf16(const LinearWeights& weights) {
  return weights.input.keeps_values() && !weights.has_sparse_input;
}

void require_activations(const Checkpoint& checkpoint, ActivationMode mode) {
  if (mode == ActivationMode::exact) return;
  if (checkpoint.is_encoder()) {
    throw std::invalid_argument(
        "--activations " + std::string(activation_mode_name(mode)) +
        " is for models that predict tokens, and this one makes embeddings: leave the option out");
  }
  for (const BlockDescription& block : checkpoint.description().blocks) {
    for (const LinearDescription& linear : block_linears(block)) {
      const std::optional<PackScheme> scheme = checkpoint.stored_scheme(linear);
      if (mode == ActivationMode::bf16) {
        if (!scheme || scheme->input.is_plain()) return;
        continue;
      }
      if (scheme && scheme->is_integer() && scheme->input.is_plain() && has_kernels(scheme->bits, scheme->symmetric)) {
        return;
      }
    }
  }
  refuse_none(mode);
}

std::function<void(LinearWeights&)> change_of(ActivationMode mode) {
  if (mode == ActivationMode::exact) return {};
  if (mode == ActivationMode::bf16) {
    return [](LinearWeights& weights) { weights.has_bf16_input = rounds_to_bf16(weights); };
  }
  return [](LinearWeights& weights) {
    if (rounds_groups(weights)) weights.input = {.type = InputType::int8, .range = InputRange::block};
  };
}

Transformer load_in_mode(const Checkpoint& checkpoint, Backend& backend,
                         const std::function<void(int64_t, int64_t)>& progress, ActivationMode mode) {
  Transformer model = Transformer::load(checkpoint, backend, progress, change_of(mode));
  const std::vector<std::string> kernels = model.kernel_names();
  const std::string_view input = mode == ActivationMode::bf16 ? kBf16InputName : kGroupInputName;
  const auto rounds = [&](const std::string& name) { return name.find(input) != std::string::npos; };
  if (mode != ActivationMode::exact && std::none_of(kernels.begin(), kernels.end(), rounds)) refuse_none(mode);
  return model;
}

void settle_inputs(std::span<LinearWeights> parts) {
  const auto has_bf16 = [](const LinearWeights& part) { return part.has_bf16_input; };
  if (!std::all_of(parts.begin(), parts.end(), has_bf16)) {
    for (LinearWeights& part : parts) part.has_bf16_input = false;
  }
  if (std::all_of(parts.begin(), parts.end(), has_groups)) return;
  for (LinearWeights& part : parts) {
    if (has_groups(part)) part.input = {};
  }
}

}  // namespace pare::runtime
