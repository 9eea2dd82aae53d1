// The functions of the passes that pare brings, each in a file of its own. pass_table.cpp lists them with their options
// and recipe keys (compress/recipe/pass.h: pass_rows). Each takes a stage's layers and changes them.
//
// All throw std::invalid_argument with the layer's name in front for weights, statistics or options that do not fit,
// UnusableInput for statistics with invalid values, and Interrupted between layers.
#pragma once

#include <optional>

#include "compress/passes/stage_state.h"

namespace pare::compress {

std::optional<InputScaling> apply_magnitude(StageState& stage, const SteppedLayers& layers);
std::optional<InputScaling> apply_wanda(StageState& stage, const SteppedLayers& layers);
std::optional<InputScaling> apply_sparsegpt(StageState& stage, const SteppedLayers& layers);
std::optional<InputScaling> apply_rtn(StageState& stage, const SteppedLayers& layers);
std::optional<InputScaling> apply_gptq(StageState& stage, const SteppedLayers& layers);
std::optional<InputScaling> apply_gguf(StageState& stage, const SteppedLayers& layers);
std::optional<InputScaling> apply_fp8(StageState& stage, const SteppedLayers& layers);
std::optional<InputScaling> apply_llm_int8(StageState& stage, const SteppedLayers& layers);
std::optional<InputScaling> apply_activations(StageState& stage, const SteppedLayers& layers);
std::optional<InputScaling> apply_awq(StageState& stage, const SteppedLayers& layers);
std::optional<InputScaling> apply_smoothquant(StageState& stage, const SteppedLayers& layers);
std::optional<InputScaling> apply_activation_sparsity(StageState& stage, const SteppedLayers& layers);

}  // namespace pare::compress
