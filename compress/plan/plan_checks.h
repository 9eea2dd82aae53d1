// The checks by which a plan refuses a recipe: rules about several passes or layers, or about the whole model. Each
// throws std::invalid_argument that says what does not go together, why, and what to do.
#pragma once

#include <string>
#include <vector>

#include "compress/plan/plan.h"
#include "compress/recipe/recipe.h"
#include "runtime/model/checkpoint.h"

namespace pare::compress {

// Throws the message as an error of the recipe.
[[noreturn]] void refuse_recipe(const std::string& message);

// Refuses a budget and some surveys for mixtures of experts. Bits are chosen for each stage, but engines run a block's
// experts as one. A stage is measured by running the whole model, and each expert has two stages.
void check_mixtures(const Recipe& recipe, const runtime::ModelDescription& model, RunPlan& plan);
// One input is rounded once, so all linears that read it must ask for the same format.
void check_inputs_agree(const std::vector<LayerPlan>& layers);
// Refuses a recipe that asks for packed weights and cannot get them.
void check_packing(const Recipe& recipe);
// Refuses a pattern that matches no name. `names` are those that `exclude` may name, including layers that no pass
// touches (head, routers) but users exclude by habit.
void check_pattern_names(const Recipe& recipe, const std::vector<std::string>& names);
// Refuses a pattern that matches only layers to which it does nothing.
void check_pattern_effects(const Recipe& recipe, const std::vector<std::string>& names, const RunPlan& plan);
// Refuses a layer whose pruned weights would not stay 0 in the codes that it gets (PassOptions::holds_zeros).
void check_zeros_are_held(const LayerPlan& layer);
// Refuses a budget or a survey where this layer's weight is not rounded and only its inputs are dropped.
void check_measured_layers(const Recipe& recipe, const std::string& layer);
// Refuses steps that disagree about the fit, because a layer is fitted once, before its first step.
void check_fits_agree(const LayerPlan& layer);
void check_calibration(const Recipe& recipe, const RunPlan& plan);
// Checks that one container can hold all modules of the checkpoint beside each other, and beside what is no text part.
void check_container(const Recipe& recipe, const runtime::Checkpoint& checkpoint, const RunPlan& plan);
// Checks that what the result is written as (Recipe::folder_format, gguf_format) holds the codes of every layer.
void check_form(const Recipe& recipe, const runtime::Checkpoint& checkpoint, const RunPlan& plan);
// Checks that all the schemes that a budget may choose fit beside each other.
void check_budget_fits(const Recipe& recipe, const RunPlan& plan);
// Refuses evaluations of the other kind of model.
void check_evaluations(const Recipe& recipe, const runtime::Checkpoint& checkpoint);
void refuse_what_encoders_lack(const Recipe& recipe, const runtime::EncoderDescription& model);

}  // namespace pare::compress
