// Predicts which engines load what a run makes. The verdicts are printed before any work and stored in pare.json.
#pragma once

#include <string>
#include <vector>

#include "compress/plan/plan.h"

namespace pare::compress {

struct EngineVerdict {
  std::string engine;
  bool loads = true;
  std::vector<std::string> reasons;  // why not, or with which restriction
};

// Judges a decoder for this runtime, transformers, vLLM and llama.cpp's converter. The rules are those of the releases
// named in engine_verdicts.cpp. source_drops_inputs: also without a step that does it, small inputs are dropped, as the
// source's config.json says.
std::vector<EngineVerdict> judge_engines(const RunPlan& plan, const runtime::ModelDescription& model,
                                         bool source_drops_inputs = false);
// Judges a GGUF file for this runtime and llama.cpp, by llama_cpp_obstacles of its model.
std::vector<EngineVerdict> judge_gguf(const std::vector<std::string>& obstacles);
// Judges an encoder for this runtime and transformers.
std::vector<EngineVerdict> judge_encoder_engines(const RunPlan& plan, const runtime::EncoderDescription& model);

}  // namespace pare::compress
