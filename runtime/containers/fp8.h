// The container with quant_method "fp8": E4M3 codes with one scale for each block of rows and columns, as DeepSeek-V3
// (arXiv 2412.19437, section 3.3.1) and Qwen3-FP8 are published, or with one scale for the whole weight. Source of
// names and fields: transformers 5.17, FineGrainedFP8Config and integrations/finegrained_fp8.py; AutoFP8's files for
// the names in brackets.
//
// Tensors of a module with weight [O, I] (names are the module's name + suffix):
//   weight            F8_E4M3 [O, I]
//   weight_scale_inv  F32, BF16, F16 or F8_E8M0 [ceil(O / rows), ceil(I / columns)] for blocks, else [] or [1]
//                     (weight_scale); it multiplies, whatever its name says. AutoRound's files may have [O] or [O, 1]
//                     (auto_round_config.h).
//   activation_scale  F32, BF16 or F16 [] or [1], for a static range of inputs (input_scale)
//
// transformers 5 may store the experts of a block in two stacks (FP8Experts), which TensorTable splits:
//   experts.gate_up_proj            F8_E4M3 [E, 2F, D]   gates, then ups
//   experts.gate_up_proj_scale_inv  [E, rows of gates and of ups, columns] for blocks, else [E, 2, 1] or [E, 1, 1]
//   experts.gate_up_proj_activation_scale  F32 [E], for a static range
// and down_proj's, [E, D, F], likewise.
//
// weight_block_size is [rows, columns], mostly [128, 128]; null: one scale for a weight. With activation_scheme
// "dynamic" engines round inputs to fp8: with blocks every 128 neighbouring values have a range, without them every
// token. With "static" the file has the range. scale_fmt "ue8m0" (DeepSeek-V3.1) says that scales are powers of two:
// those of weights in the file, and those of inputs as they are found. Files are read; blocks are also written.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "runtime/format/container_format.h"

namespace pare::runtime {

inline constexpr std::string_view kFp8Container = "fp8";  // ContainerFormat::name()
const ContainerFormat& fp8_container();

inline constexpr std::string_view kFp8WeightSuffix = ".weight";
inline constexpr std::string_view kFp8ScaleSuffix = ".weight_scale_inv";
inline constexpr std::string_view kFp8OldScaleSuffix = ".weight_scale";
inline constexpr std::string_view kFp8InputSuffix = ".activation_scale";
inline constexpr std::string_view kFp8OldInputSuffix = ".input_scale";

// read_only() says these of vLLM with FP8 weights whose inputs are rounded, also in compressed-tensors. The second is
// for one scale of a whole weight.
inline constexpr std::string_view kFp8InputsOfVllm =
    "fp8 inputs: rounded only on GPUs of compute capability 8.9 or later; elsewhere weights alone are";
inline constexpr std::string_view kFp8FusedOfVllm =
    "one scale per tensor: q, k and v, and gate and up, are rounded again to the largest of theirs";

// A quantization_config with quant_method "fp8" as read. The tensors tell which modules are quantized: those whose
// weight is F8_E4M3, or that have a scale.
struct Fp8Config final : ContainerConfig {
  PackScheme scheme;  // every quantized module's, without the group size that its blocks give
  ScaleBlock block;   // none: one scale for a weight
  std::set<std::string, std::less<>> unconverted;

  // `json` is the object's text and `where` names its file. Throws std::invalid_argument for other codes than E4M3, for
  // a static range of inputs with blocks, for powers of two without blocks, for a quantized KV cache or embedding, and
  // anything that is no such configuration.
  static Fp8Config parse(const std::string& json, const std::string& where);
  std::optional<PackScheme> scheme_of(const std::string& module, std::string_view class_name,
                                      const FindTensor& find) const override;
  std::optional<ScaleBlock> block_of_stacks() const override { return block; }
};

}  // namespace pare::runtime
