// How the linears of a checkpoint are stored: the facts that the configurations of all containers state, in one form.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/format/linear_weights.h"

namespace pare {

// The container's word for how GPTQ ordered the columns. weight: groups keep their place ("static"); group: groups were
// formed in that order and weight_g_idx says which column is in which.
enum class StoredActOrder { none, weight, group };
inline std::span<const EnumName<StoredActOrder>> enum_names(StoredActOrder) {
  static constexpr std::array<EnumName<StoredActOrder>, 3> kNames = {
      {{StoredActOrder::none, "none"}, {StoredActOrder::weight, "static"}, {StoredActOrder::group, "group"}}};
  return kNames;
}

// What the numbers of a weight are: integers (the first two, which compressed-tensors alone tells apart: in a dense
// stream of bits, or one to a byte), FP8, or dense: the weight is as it was, in floating point, and the scheme says how
// its input is rounded.
enum class StoredFormat { pack_quantized, int_quantized, float_quantized, dense };
inline std::span<const EnumName<StoredFormat>> enum_names(StoredFormat) {
  static constexpr std::array<EnumName<StoredFormat>, 4> kNames = {{{StoredFormat::pack_quantized, "pack-quantized"},
                                                                    {StoredFormat::int_quantized, "int-quantized"},
                                                                    {StoredFormat::float_quantized, "float-quantized"},
                                                                    {StoredFormat::dense, "dense"}}};
  return kNames;
}
inline constexpr int kDenseBits = 16;  // what a scheme of dense weights says, whatever their type

inline constexpr std::string_view kCompressedTensors = "compressed-tensors";

// How one module is stored. Two modules of one scheme can be described together.
struct PackScheme {
  int bits = 4;                      // 2, 3, 4, 8; 8 for float_quantized; kDenseBits for dense
  int64_t group_size = kPerChannel;  // or a positive size
  bool symmetric = true;
  StoredActOrder act_order = StoredActOrder::none;
  StoredFormat format = StoredFormat::pack_quantized;
  std::string container = std::string(kCompressedTensors);  // ContainerFormat::name()
  bool per_tensor = false;     // the file holds one scale; group_size is kPerChannel and every row has that scale
  InputFormat input = {};      // without scale, zero and outlier columns, which are the linear's own (input_scheme)
  SparsePattern pattern = {};  // that the container packs: only what is kept is stored. Dense: zeros are stored too
  bool is_dense() const { return format == StoredFormat::dense; }
  // Whether W is a tensor like any other, under the model's own name: neither codes nor packed.
  bool has_own_tensor() const { return is_dense() && pattern.is_dense(); }
  // Whether the container has nothing to do with it: nor is its input rounded.
  bool is_plain() const { return has_own_tensor() && input.is_plain(); }
  CodeType code_type() const { return format == StoredFormat::float_quantized ? CodeType::fp8 : CodeType::integer; }
  int64_t num_groups(int64_t num_in) const { return group_size == kPerChannel ? 1 : num_in / group_size; }
  bool operator==(const PackScheme&) const = default;

  void fields(FieldVisitor& visit) {
    visit("bits", bits);
    visit("group_size", group_size);
    visit("symmetric", symmetric);
    visit("act_order", act_order);
    visit("format", format);
    visit("container", container);
    visit("per_tensor", per_tensor);
    visit("input", input);
    visit("pattern", pattern);
  }
};

// What modules of one scheme share: the format without the values that belong to one linear.
inline InputFormat input_scheme(InputFormat input) {
  input.scale = 0.0f;
  input.zero = 0;
  input.outlier_columns.clear();
  return input;
}

// What a reader makes of one module and a writer takes.
struct StoredLinear {
  QuantizedWeight weight;  // of dense: num_out, num_in and pattern alone
  InputFormat input = {};
  DType input_scale_dtype = DType::BF16;      // of a fixed range: holds input.scale exactly
  std::vector<float> outlier_weight_OJ = {};  // as in LinearWeights; pare_int8 alone stores it
  // Of a dense weight whose pattern a container packs: W [O, I] with its zeros. Empty: the tensor of the model's own
  // name.
  std::vector<std::byte> dense_OI = {};
  DType dense_dtype = DType::BF16;
};

struct StoredModule {
  std::string name;
  PackScheme scheme;
  bool is_linear = true;  // false: an embedding
};

}  // namespace pare
