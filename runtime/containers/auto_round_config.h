// The quantization_config of AutoRound (quant_method "auto-round", early "intel/auto-round"), whose tensors are those
// of another container. Source: auto-round 0.16.1, export/export_to_autoround (export.py, export_to_fp8.py,
// export_to_nvfp_mx.py), inference/convert_model.py and inference/backend.py; 0.3.1 for "backend".
//
//   packing_format                                    tensors of
//   auto_round:auto_gptq, auto_round:gptq, auto, none  gptq (zeros less 1), without g_idx
//   auto_round, auto_round:exllamav2, auto_round:triton  gptq-v2 (zeros as they are), without g_idx
//   auto_round:gptqmodel                              gptq-v2
//   auto_round:auto_awq, auto_round:awq               awq-gemm
//   auto_round:llm_compressor                         compressed-tensors, FP4: data_type nv_fp or mx_fp
//   auto_round:fp8_static, auto_round:fp8             fp8; weight_scale [O], [O, 1] or [1], or weight_scale_inv
//   none, with data_type fp                           the same
//   mlx, auto_round:mlx                               mlx, which reads its configuration itself
//
// Integers have 2 to 8 bits, in the packing of AWQ 4 to 7. Releases before packing_format wrote these words in
// "backend", with a kernel's name after them ("auto_round:gptq:exllamav2").
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

// A configuration says this of its modules, and an entry of "extra_config" of some of them.
struct AutoRoundScheme {
  bool is_quantized = true;
  PackScheme scheme = {};  // without the group size that its blocks give
  ScaleBlock block = {};   // of fp8; none: rows, or one scale
};

// As read. The tensors tell which modules are quantized. The base class is of modules that no entry names.
struct AutoRoundConfig final : ContainerConfig, AutoRoundScheme {
  using Change = AutoRoundScheme;
  std::map<std::string, Change> of_module;
  // Regular expressions, of which the first that is found in a name decides; whole names come first.
  std::vector<std::pair<NamePattern, Change>> of_pattern;

  // `json` is the object's text and `where` names its file. Throws std::invalid_argument for other packings, types,
  // widths, roundings of inputs and rotations, and anything that is no such configuration.
  static AutoRoundConfig parse(const std::string& json, const std::string& where);
  std::optional<PackScheme> scheme_of(const std::string& module, std::string_view class_name,
                                      const FindTensor& find) const override;
};

}  // namespace pare::runtime
