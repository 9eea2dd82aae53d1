// The compressed-tensors container: how one linear becomes tensors, and how config.json describes it. This file
// accesses no files; its callers read and write the tensors.
//
// Tensors of a module with weight [O, I] (names are the module's name + suffix). Format "pack-quantized":
//   weight_packed     I32 [O, ceil(I*bits/32)]   each row a bit stream (bit_stream.h) of the unsigned codes
//   weight_scale      BF16, F16 or F32 [O, G]    G = 1 per channel
//   weight_shape      I64 [2] = [O, I]
//   weight_zero_point I32 [ceil(O*bits/32), G]   asymmetric only: each column a bit stream of the unsigned zeros
//   weight_g_idx      I32 [I]                    act-order "group" only
// The package counts codes and zeros from -2^(bits-1) and adds that offset before it packs, so that the stored numbers
// are our unsigned ones. Checked against compressed-tensors 0.19 (compressors/pack_quantized/{base,helpers}.py): for 3
// bits it packs 32 codes into exactly 3 words, the same dense stream as for 2, 4 and 8. Releases before 2026 padded 10
// codes to a word; such files are refused by their width. Streams of 5, 6 and 7 bits, which AutoRound makes, are read
// (stored_widths.h). 0.19 no longer loads act-order "group", nor does vLLM 0.33.
//
// Formats "int-quantized" and "float-quantized" (compressors/naive_quantized/base.py):
//   weight            I8 or F8_E4M3 [O, I]       the package's signed code, ours - 2^(bits-1), or the E4M3 pattern
//   weight_scale      BF16, F16 or F32 [O, G]    or [1] per tensor; of fp8 also one for each block of rows and columns
//   weight_zero_point I8, as weight_scale        asymmetric integers only: the signed zero
// Formats "nvfp4-pack-quantized" and "mxfp4-pack-quantized" (compressors/{nvfp4,mxfp4}/base.py):
//   weight_packed       U8 [O, I/2]              two E2M1 codes to a byte, the first in the lower half
//   weight_scale        F8_E4M3 or U8 [O, G]     one for each block; the U8 are E8M0
//   weight_global_scale F32 [1]                  nvfp4 only: block scales are divided by it
// Format "dense" (inputs alone are quantized; "weights" is null in the config):
//   weight            F32, F16 or BF16 [O, I]    unchanged
// Any format with static input activations: input_scale and input_zero_point. nvfp4-pack-quantized with nvfp4 inputs:
// input_global_scale (scale_tensors.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/format/container_format.h"
#include "runtime/format/stored_scheme.h"
#include "runtime/format/tensor_view.h"

namespace pare::runtime {

// Returns the row of the table (container_table.h); its name is kCompressedTensors.
const ContainerFormat& compressed_tensors_container();

// --- tensors ---

inline constexpr std::string_view kPackedSuffix = ".weight_packed";
inline constexpr std::string_view kScaleSuffix = ".weight_scale";
inline constexpr std::string_view kShapeSuffix = ".weight_shape";
inline constexpr std::string_view kZeroPointSuffix = ".weight_zero_point";
inline constexpr std::string_view kGroupIndexSuffix = ".weight_g_idx";
inline constexpr std::string_view kPlainSuffix = ".weight";
inline constexpr std::string_view kGlobalScaleSuffix = ".weight_global_scale";

// The formats of the package, as a scheme says them.
inline bool has_float_codes(const PackScheme& scheme) {
  return !scheme.is_dense() && !scheme.is_integer();
}
inline bool is_pack_quantized(const PackScheme& scheme) {
  return scheme.is_integer() && scheme.layout == CodeLayout::packed;
}
inline bool is_int_quantized(const PackScheme& scheme) {
  return scheme.is_integer() && scheme.layout == CodeLayout::bytes;
}
// True for codes of 4 bits that are floats: two in a byte, in blocks.
inline bool has_fp4_codes(const PackScheme& scheme) {
  return has_float_codes(scheme) && scheme.code->block != 0;
}

// This is what the container says of codes that are floats.
struct FloatFormat {
  const WeightCode* code;
  std::string_view format;       // the group's "format"
  std::string_view strategy;     // of weights in blocks; empty: channel or tensor
  std::string_view scale_dtype;  // as the config spells it; empty: it is not said
};
std::span<const FloatFormat> float_formats();
// Returns the code's row, or null.
const FloatFormat* find_float_format(const WeightCode* code);

// Returns the tensors of `module` as pack-quantized without input activations. Throws std::runtime_error if the weight
// is invalid (see validate), and std::invalid_argument if weight.scale_dtype does not represent a scale exactly.
std::vector<OwnedTensor> pack_compressed_tensors(const QuantizedWeight& weight, const std::string& module);
// Does the same in the format of `scheme`, with the scale and zero of a fixed input range. Also throws
// std::invalid_argument if the linear is not what the scheme describes (type of codes, bits, group size, symmetry, one
// scale per tensor, input). The result does not include the weight of a dense scheme.
std::vector<OwnedTensor> pack_compressed_tensors(const StoredLinear& linear, const PackScheme& scheme,
                                                 const std::string& module);

// The tensors that a reader found under the module's name; null: absent.
struct PackedTensors {
  const TensorView* packed = nullptr;
  const TensorView* scale = nullptr;
  const TensorView* shape = nullptr;
  const TensorView* zero_point = nullptr;
  const TensorView* group_index = nullptr;
  const TensorView* plain = nullptr;
  const TensorView* global_scale = nullptr;
  const TensorView* input_scale = nullptr;
  const TensorView* input_zero_point = nullptr;
  const TensorView* input_global_scale = nullptr;
};

// Checks that the tensors that `scheme` asks for, and no others, are there with the dtypes and shapes of a weight
// [num_out, num_in]. Reads weight_shape, and nothing of the size of the weight. Throws std::runtime_error (tensor,
// expected, found).
void check_compressed_tensors(const PackedTensors& tensors, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                              const std::string& module);

// Does the inverse of packing, after the check above, and checks every value.
// Throws std::runtime_error (tensor, expected, found), also for an input scale that is not positive and finite.
StoredLinear unpack_compressed_linear(const PackedTensors& tensors, const PackScheme& scheme, int64_t num_out,
                                      int64_t num_in, const std::string& module);
// Returns only the weight.
QuantizedWeight unpack_compressed_tensors(const PackedTensors& tensors, const PackScheme& scheme, int64_t num_out,
                                          int64_t num_in, const std::string& module);

// --- config.json: quantization_config ---

// Returns the JSON object for the key "quantization_config" (indented by two spaces). It has one config group with the
// target "Linear" if all linears share a scheme (engines prefer that; one converter accepts nothing else). Otherwise it
// has a group for each scheme with full module names as targets, because engines resolve a class target before the
// parts of a fused layer. `ignore` names the linears left unquantized; other modules need no entry. The top-level
// format is that of all groups, or "mixed-precision" if they differ. Throws std::invalid_argument if there is no
// module, if a module is named twice or also ignored, or if the container's readers do not know a scheme.
std::string quantization_config_json(std::span<const StoredModule> modules, std::span<const std::string> ignore);

// Returns what is wrong with a scheme as a whole; empty: nothing. No other place knows which combinations the
// container's readers accept.
std::string compressed_tensors_problem(const PackScheme& scheme);

// Return what ContainerFormat::unread_by and read_only say. Read in the sources of transformers 5.17 with
// compressed-tensors 0.19, of vLLM 0.33, and of llama.cpp's converter of 2026.
std::vector<std::string> compressed_tensors_unread_by(Engine engine, const PackScheme& scheme);
std::vector<std::string> compressed_tensors_read_only(Engine engine, const PackScheme& scheme);

// Returns what is said of a model whose keys and values are to be rounded, for config.json as a whole; "" if they are
// not.
std::string unrounded_cache_note(const std::string& config_json);
// Returns whether the tensor is a scale or a zero of rounded queries, keys or values.
bool is_of_rounded_cache(std::string_view tensor);

// A quantization_config as read. Lookup follows the package (utils/match.py). Ignored modules are not quantized.
// Otherwise an exact name wins over a regular expression ("re:..."), which wins over a class name ("Linear",
// "Embedding").
class QuantizationConfig final : public ContainerConfig {
 public:
  // `json` is the object's text and `where` names its file. Throws std::invalid_argument for anything that this runtime
  // does not support, and names it. Not supported are another quant_method or format, quantized outputs, sparsity,
  // rotations of inputs, blocks of other codes than fp8, other widths and unknown keys of a group. Input activations
  // must have 8 bits per token or tensor, or per 128 values of fp8, or be those of nvfp4. A kv_cache_scheme of 8 bits
  // is read, and rounds nothing (unrounded_cache_note).
  // max_steps bounds the total work of the regular expressions. The default takes seconds, and is ten times what
  // published lists need for a mixture of 50,000 layers.
  static QuantizationConfig parse(const std::string& json, const std::string& where, int64_t max_steps = 2'000'000'000);
  QuantizationConfig(QuantizationConfig&&) noexcept;
  QuantizationConfig& operator=(QuantizationConfig&&) noexcept;
  ~QuantizationConfig() override;

  // Returns nullopt if the module is not quantized. class_name is the module's class in PyTorch: "Linear" or
  // "Embedding". May be called from several threads. Throws std::invalid_argument if max_steps are used up.
  std::optional<PackScheme> scheme(const std::string& module, std::string_view class_name = "Linear") const;
  std::optional<PackScheme> scheme_of(const std::string& module, std::string_view class_name,
                                      const FindTensor& find) const override;

 private:
  QuantizationConfig();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pare::runtime
