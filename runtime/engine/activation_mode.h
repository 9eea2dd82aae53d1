// Modes of decoders that no file asks for: inputs of linears are rounded while the model runs.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/engine/transformer.h"
#include "runtime/format/linear_weights.h"
#include "runtime/model/checkpoint.h"

namespace pare::runtime {

// exact: inputs stay as the model's files say. int8: those that are not rounded by the files, of linears whose weights
// are integers of 4 bits, or of 8 bits without zeros, become 8-bit integers. Each token has a scale for each group of
// the weights, symmetric, found as it comes. The inputs of 2:4 weights stay exact, which have kernels of their own.
// bf16: inputs that are not rounded by the files become the nearest bfloat16, as frameworks do that run a model in that
// type. In either mode embedding, head and routers stay exact, and so do inputs that are often zero.
enum class ActivationMode { exact, int8, bf16 };
inline constexpr std::string_view kActivationModes[] = {"exact", "int8", "bf16"};  // in the order of the enum
ActivationMode parse_activation_mode(std::string_view name);
std::string_view activation_mode_name(ActivationMode mode);

// True if int8 rounds the inputs of such a linear.
bool rounds_groups(const LinearWeights& weights);

// True if bf16 rounds the inputs of such a linear.
bool rounds_to_bf16(const LinearWeights& weights);

// Checks, before any weight is read, that the mode means something for the model. Unless it is exact, throws
// std::invalid_argument for an encoder and for a model whose files say that it has no such linears.
void require_activations(const Checkpoint& checkpoint, ActivationMode mode);

// Returns what Transformer::load takes as `change`; empty for `exact`. The CPU backend alone multiplies such linears.
std::function<void(LinearWeights&)> change_of(ActivationMode mode);

// Loads a model that runs in that mode. Throws what Transformer::load throws; unless the mode is exact,
// std::invalid_argument if no linear came to be rounded, so that no figure bears the mode's name without its effect.
Transformer load_in_mode(const Checkpoint& checkpoint, Backend& backend,
                         const std::function<void(int64_t, int64_t)>& progress, ActivationMode mode);

// Stand in the names of kernels that round groups, or to bfloat16.
inline constexpr std::string_view kGroupInputName = "a8group";
inline constexpr std::string_view kBf16InputName = "abf16";

// Linears that are packed together share their inputs: unless the mode rounds all of them, none is rounded.
void settle_inputs(std::span<LinearWeights> parts);

}  // namespace pare::runtime
