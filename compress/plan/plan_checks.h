// What a plan refuses of a recipe: rules that look at several passes or layers, or at the whole model. Each throws
// std::invalid_argument with what does not go together, why, and what to do.
#pragma once

#include <string>
#include <vector>

#include "compress/plan/plan.h"
#include "compress/recipe/recipe.h"
#include "runtime/model/checkpoint.h"

namespace pare {

// Throws the message as a recipe's.
[[noreturn]] void refuse_recipe(const std::string& message);

// Bits are chosen for stages apart, but engines run a block's experts as one; and a stage is measured by running the
// whole model, of which there would be two for each expert.
void check_mixtures(const Recipe& recipe, const ModelDescription& model, RunPlan& plan);
// One input is rounded once: all linears that read it must ask for the same.
void check_inputs_agree(const std::vector<LayerPlan>& layers);
// A recipe that asks for packed weights gets them, or hears why not.
void check_packing(const Recipe& recipe);
// `names` are those that `exclude` may name, by habit also what no pass touches (head, routers).
void check_patterns(const Recipe& recipe, const std::vector<std::string>& names, const RunPlan& plan);
// A layer is fitted before its first step, whichever of them asks for it.
void check_fits_agree(const LayerPlan& layer);
void check_calibration(const Recipe& recipe, const RunPlan& plan);
// One checkpoint has one container, and that one must hold all modules beside each other.
void check_container(const Recipe& recipe, const RunPlan& plan);
// Whatever a budget may choose must fit beside whatever else it may choose.
void check_budget_fits(const Recipe& recipe, const RunPlan& plan);
void refuse_what_encoders_lack(const Recipe& recipe, const EncoderDescription& model);

}  // namespace pare
