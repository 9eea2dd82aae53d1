// The storage of a checkpoint's linears: the facts that the configurations of all containers state, in one form.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/format/linear_weights.h"

namespace pare::runtime {

// The container's word for how GPTQ ordered the columns. weight: groups keep their place ("static"). group: groups were
// formed in that order, and weight_g_idx says which column is in which.
enum class StoredActOrder { none, weight, group };
inline std::span<const EnumName<StoredActOrder>> enum_names(StoredActOrder) {
  static constexpr std::array<EnumName<StoredActOrder>, 3> kNames = {
      {{StoredActOrder::none, "none"}, {StoredActOrder::weight, "static"}, {StoredActOrder::group, "group"}}};
  return kNames;
}

// How integer codes lie in a file: in a dense stream of bits, or one to a byte. Only compressed-tensors tells these
// apart. Other codes have one layout in each container and are called packed.
enum class CodeLayout { packed, bytes };
inline std::span<const EnumName<CodeLayout>> enum_names(CodeLayout) {
  static constexpr std::array<EnumName<CodeLayout>, 2> kNames = {
      {{CodeLayout::packed, "packed"}, {CodeLayout::bytes, "bytes"}}};
  return kNames;
}
inline constexpr int kDenseBits = 16;  // in a scheme of dense weights, whatever their type

inline constexpr std::string_view kCompressedTensors = "compressed-tensors";
inline constexpr std::string_view kPareSparse24 = "pare-sparse24";

// So many neighbouring rows and columns of a weight share a scale; blocks at edges may have fewer. {0, 0}: scales are
// of rows. Linears hold such a scale once for each row and group of columns (PackScheme::group_size).
struct ScaleBlock {
  int64_t num_rows = 0;
  int64_t num_columns = 0;
  bool is_none() const { return num_rows == 0; }
  bool operator==(const ScaleBlock&) const = default;
};

// The storage of one module. A configuration can describe two modules of one scheme together.
struct PackScheme {
  // The code of the weight. Null: it is dense, an unchanged floating point weight, and the scheme says how its input is
  // rounded or which pattern is packed.
  const WeightCode* code = &kIntegerCode;
  int bits = 4;                      // one of the code's widths; kDenseBits for dense
  int64_t group_size = kPerChannel;  // or a positive size
  bool symmetric = true;
  StoredActOrder act_order = StoredActOrder::none;
  CodeLayout layout = CodeLayout::packed;
  std::string container = std::string(kCompressedTensors);  // ContainerFormat::name()
  bool per_tensor = false;     // true: the file holds one scale; group_size is kPerChannel and every row has that scale
  InputFormat input = {};      // without scale, zero and outlier columns, which are the linear's own (input_scheme)
  ScaleBlock block = {};       // of files alone: no recipe makes such weights, and fields() leaves it out
  SparsePattern pattern = {};  // one that the container packs, storing only what is kept. Dense: zeros are stored too
  bool is_dense() const { return code == nullptr; }
  bool is_integer() const { return code != nullptr && code->is_integer(); }
  // True if W is a tensor like any other, under the model's own name: neither codes nor packed.
  bool has_own_tensor() const { return is_dense() && pattern.is_dense(); }
  // True if the container has nothing to store: W has its own tensor and its input is not rounded.
  bool is_plain() const { return has_own_tensor() && input.is_plain(); }
  int64_t num_groups(int64_t num_in) const { return group_size == kPerChannel ? 1 : num_in / group_size; }
  bool operator==(const PackScheme&) const = default;

  void fields(FieldVisitor& visit) {
    visit_code(visit);
    visit("bits", bits);
    visit("group_size", group_size);
    visit("symmetric", symmetric);
    visit("act_order", act_order);
    visit("layout", layout);
    visit("container", container);
    visit("per_tensor", per_tensor);
    visit("input", input);
    visit("pattern", pattern);
  }

 private:
  // Visits the code by its name.
  void visit_code(FieldVisitor& visit) {
    std::vector<std::string_view> names = {"dense"};
    for (const WeightCode* known : weight_codes()) names.push_back(known->name);
    std::string name(is_dense() ? names.front() : code->name);
    visit("code", name, std::span<const std::string_view>(names));
    code = find_weight_code(name);
  }
};

// Returns the scheme of a dense weight.
inline PackScheme dense_scheme() {
  return {.code = nullptr, .bits = kDenseBits};
}

// Returns the part of the format that modules of one scheme share, without the values that belong to one linear.
inline InputFormat input_scheme(InputFormat input) {
  input.scale = 0.0f;
  input.zero = 0;
  input.outlier_columns.clear();
  input.sparsity_threshold = 0.0f;
  return input;
}

// One module as readers return it and writers take it.
struct StoredLinear {
  QuantizedWeight weight;  // if dense, only num_out, num_in and pattern
  InputFormat input = {};
  DType input_scale_dtype = DType::BF16;      // for a fixed range; holds input.scale exactly
  std::vector<float> outlier_weight_OJ = {};  // as in LinearWeights; only pare_int8 stores it
  // W [O, I] with its zeros, for a dense weight whose pattern a container packs. Empty: the tensor has the model's own
  // name.
  std::vector<std::byte> dense_OI = {};
  DType dense_dtype = DType::BF16;
};

struct StoredModule {
  std::string name;
  PackScheme scheme;
  bool is_linear = true;  // false: an embedding
};

}  // namespace pare::runtime
