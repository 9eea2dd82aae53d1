// The GPTQ containers (quant_method "gptq") of AutoGPTQ and GPTQModel (gptqmodel/nn_modules/qlinear/__init__.py, pack):
// integers of 2, 3, 4 or 8 bits with float16 scales, in groups along the input or one for a whole row. AutoRound stores
// 5, 6 and 7 bits as well, as the same stream of bits (auto_round 0.16.1, utils/bit_packing.py); they are read.
//
// Tensors of a module with weight [O, I] (names are the module's name + suffix):
//   qweight I32 [I*bits/32, O]   column o is the bit stream of row o's codes (bit_stream.h)
//   qzeros  I32 [G, O*bits/32]   row g is the bit stream of that group's zeros, each less 1 in the first version
//   scales  F16 [G, O]
//   g_idx   I32 [I]              the group of each column
// W = scale * (code - zero), as in QuantizedWeight.
//
// The two versions differ in the zeros alone. Readers of the first one add 1 to whole words, so that a zero of 0 would
// change its neighbours: gptq is written for weights without a zero of 0, gptq-v2 for all. So no recipe asks for gptq
// with asymmetric weights, whose zeros it does not know. Files of the first version that have such zeros are read field
// by field.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/format/container_format.h"
#include "runtime/format/name_pattern.h"
#include "runtime/format/stored_scheme.h"

namespace pare::runtime {

inline constexpr std::string_view kGptq = "gptq";       // ContainerFormat::name() of the first version
inline constexpr std::string_view kGptqV2 = "gptq-v2";  // and of the second
const ContainerFormat& gptq_container();
const ContainerFormat& gptq_v2_container();

inline constexpr std::string_view kGptqWeightSuffix = ".qweight";
inline constexpr std::string_view kGptqZerosSuffix = ".qzeros";
inline constexpr std::string_view kGptqScalesSuffix = ".scales";
inline constexpr std::string_view kGptqGroupsSuffix = ".g_idx";

// The number of which a file with codes of `bits` bits has a multiple of inputs, and of outputs: 32 for 3 bits, the
// codes of a word for others.
int64_t gptq_multiple(int bits);

// Returns the group of each of num_in columns where none is moved: column / group_size, or 0 for kPerChannel.
std::vector<int32_t> columns_in_place(int64_t num_in, int64_t group_size);
// Returns g_idx where it moves columns between groups; empty where it is missing or leaves them in place. Throws
// std::runtime_error for another type or size. Entries may be out of range (validate tells).
std::vector<int32_t> moved_groups(const FindTensor& find, int64_t num_in, int64_t group_size,
                                  const std::string& module);

// A quantization_config with quant_method "gptq" as read. The tensors tell which modules are quantized. They also tell
// of columns that are moved between groups where desc_act says nothing of it.
struct GptqConfig final : ContainerConfig {
  // An entry of "dynamic" (GPTQModel, quantization/config.py, dynamic_get): modules that match are stored with
  // `scheme`, or are not quantized. The first entry that matches decides.
  struct Rule {
    NamePattern pattern;
    bool is_quantized = true;
    PackScheme scheme = {};
  };
  PackScheme scheme;  // of modules that no rule names
  std::vector<Rule> rules;

  // `json` is the object's text and `where` names its file. Throws std::invalid_argument for formats, bits and types of
  // words that pare does not read, and anything that is not a GPTQ configuration.
  static GptqConfig parse(const std::string& json, const std::string& where);
  std::optional<PackScheme> scheme_of(const std::string& module, std::string_view class_name,
                                      const FindTensor& find) const override;
};

// Returns whether a configuration says "gptq_v2", in any of the keys in which releases wrote it.
bool is_gptq_v2(const std::string& json);

// Returns the JSON object for the key "quantization_config". Modules that differ from the most common scheme, and
// those of `ignore`, are entries of "dynamic"; "modules_in_block_to_quantize" says the latter to optimum, which reads
// no "dynamic".
std::string gptq_config_json(std::span<const StoredModule> modules, std::span<const std::string> ignore,
                             std::string_view container);

}  // namespace pare::runtime
