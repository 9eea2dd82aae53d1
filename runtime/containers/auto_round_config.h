// The quantization_config of AutoRound (quant_method "auto-round", early "intel/auto-round"), whose tensors are those
// of GPTQ or AWQ GEMM. Source: auto-round 0.16.1, export/export_to_autoround/export.py, inference/convert_model.py and
// inference/backend.py; 0.3.1 for "backend".
//
//   packing_format                                    tensors of
//   auto_round:auto_gptq, auto_round:gptq, auto, none  gptq (zeros less 1), without g_idx
//   auto_round, auto_round:exllamav2, auto_round:triton  gptq-v2 (zeros as they are), without g_idx
//   auto_round:gptqmodel                              gptq-v2
//   auto_round:auto_awq, auto_round:awq               awq-gemm
//
// Releases before packing_format wrote these words in "backend", with a kernel's name after them
// ("auto_round:gptq:exllamav2").
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/format/container_format.h"
#include "runtime/format/name_pattern.h"

namespace pare::runtime {

bool is_auto_round(std::string_view quant_method);
// The same of a configuration's own quant_method.
bool is_auto_round_config(const std::string& json);
// Returns the container whose tensors a configuration of AutoRound says; "gptq" for one that pare does not read, which
// AutoRoundConfig refuses.
std::string_view auto_round_container(const std::string& json);

// As read. The tensors tell which modules are quantized.
struct AutoRoundConfig final : ContainerConfig {
  // An entry of "extra_config": what some modules have in place of the rest.
  struct Change {
    bool is_quantized = true;
    PackScheme scheme = {};
  };
  PackScheme scheme;  // of modules that no entry names
  std::map<std::string, Change> of_module;
  // Regular expressions, of which the first that is found in a name decides; whole names come first.
  std::vector<std::pair<NamePattern, Change>> of_pattern;

  // `json` is the object's text and `where` names its file. Throws std::invalid_argument for other packings, types,
  // widths, rounded inputs and rotations, and anything that is no such configuration.
  static AutoRoundConfig parse(const std::string& json, const std::string& where);
  std::optional<PackScheme> scheme_of(const std::string& module, std::string_view class_name,
                                      const FindTensor& find) const override;
};

}  // namespace pare::runtime
