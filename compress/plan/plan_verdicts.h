// Which engines load what a run makes (runtime/export/engine_verdicts.h), as its plan says it.
#pragma once

#include <vector>

#include "compress/plan/plan.h"
#include "runtime/export/engine_verdicts.h"

namespace pare::compress {

using runtime::EngineVerdict;

// Judge a decoder's and an encoder's plan. source_drops_inputs: also without a step that does it, small inputs are
// dropped, as the source's config.json says.
std::vector<EngineVerdict> judge_engines(const RunPlan& plan, const runtime::ModelDescription& model,
                                         bool source_drops_inputs = false);
std::vector<EngineVerdict> judge_encoder_engines(const RunPlan& plan, const runtime::EncoderDescription& model);

}  // namespace pare::compress
