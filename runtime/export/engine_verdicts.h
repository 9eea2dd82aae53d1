// Which engines load a model, predicted by rules. The verdicts are printed before any work of a run, stored in
// pare.json, and shown by `pare inspect`.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/format/stored_scheme.h"
#include "runtime/model/checkpoint.h"
#include "runtime/model/stage.h"

namespace pare::runtime {

struct EngineVerdict {
  std::string engine;  // with the release whose sources say so
  bool loads = true;
  std::vector<std::string> reasons;  // why not, or with which restriction
};

// How a linear of a block is stored. nullopt: as a tensor like any other. Zeros that are stored like other weights are
// no scheme.
struct JudgedLayer {
  LinearDescription linear = {};
  Stage stage = Stage::attention_input;
  std::optional<PackScheme> scheme = {};
};

// A model as its files hold it: the rules ask this beside its description.
struct JudgedModel {
  // The names of scales in the container fp8, by which engines differ. A model may have both.
  struct Fp8Names {
    bool are_early = false;    // some are weight_scale or input_scale
    bool are_late = false;     // some are weight_scale_inv or activation_scale
    bool are_renamed = false;  // vLLM's class for the model takes either
  };
  std::vector<std::vector<JudgedLayer>> blocks = {};  // the linears of each, by stages
  bool has_coded_tables = false;                      // embedding or head are in codes
  bool drops_inputs = false;                          // small ones, as config.json says
  Fp8Names fp8_names = {};
};

// Judges a decoder for this runtime, transformers, vLLM and llama.cpp's converter. The rules are those of the releases
// named in engine_verdicts.cpp.
std::vector<EngineVerdict> judge_engines(const JudgedModel& stored, const ModelDescription& model);
// Judges an encoder for this runtime and transformers.
std::vector<EngineVerdict> judge_encoder_engines(const JudgedModel& stored, const EncoderDescription& model);
// Judges a GGUF file for this runtime and llama.cpp, by llama_cpp_obstacles of its model.
std::vector<EngineVerdict> judge_gguf(const std::vector<std::string>& obstacles);

// Judges what a checkpoint's files say, whoever wrote them. Of AutoRound's own format it judges this runtime alone.
// Reads no weights.
std::vector<EngineVerdict> judge_checkpoint(const Checkpoint& checkpoint);
// Judges a .gguf by its header. One that pare does not read is that verdict alone. Throws Interrupted.
std::vector<EngineVerdict> judge_file(const std::filesystem::path& gguf);

// Returns "vLLM 0.33: loads it: REASON; REASON".
std::string verdict_line(const EngineVerdict& verdict);

}  // namespace pare::runtime
