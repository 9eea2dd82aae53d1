// Who loads what a run makes: said before any work, stored in pare.json.
#pragma once

#include <string>
#include <vector>

#include "compress/plan/plan.h"

namespace pare {

struct EngineVerdict {
  std::string engine;
  bool loads = true;
  std::vector<std::string> reasons;  // why not, or with what restriction
};

// This runtime, transformers, vLLM and llama.cpp's converter, of a decoder; the rules are those of the releases named
// in engine_verdicts.cpp.
std::vector<EngineVerdict> judge_engines(const RunPlan& plan, const ModelDescription& model);
// This runtime and transformers, of an encoder.
std::vector<EngineVerdict> judge_encoder_engines(const RunPlan& plan);

}  // namespace pare
