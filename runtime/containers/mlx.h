// The layout of MLX for Apple's processors, as AutoRound writes it (auto-round 0.16.1, export/export_to_mlx/export.py)
// and mlx-lm's QuantizedLinear reads it ("affine").
//
// Tensors of a module with weight [O, I] (names are the module's name + suffix):
//   weight  U32 [O, I*bits/32]            each row a bit stream (bit_stream.h) of the codes, of 2 to 8 bits
//   scales  F16, BF16 or F32 [O, G]
//   biases  F16, BF16 or F32 [O, G]       W = scale * code + bias
//
// AutoRound makes bias = -scale * zero of a whole zero, and rounds it to the file's type. Files are read as the weight
// scale * (code - zero) that it rounded. Where zeros are powers of two, as those of all symmetric weights are, that is
// what MLX computes as well; else the two differ by the rounding of the bias, at most 2^-11 of it in float16.
//
// mlx-lm's own rounding takes the edge of a group as its bias, and makes the scale a divisor of it. Both are rounded to
// the file's type then, so that some biases are no rounded multiples of their scales. No code with a zero is such a
// weight. A module with one such bias is read as floats: scale * code + bias in float32
// (TensorTable::decode_free_biases).
//
// The configuration is {"group_size": 64, "bits": 4, "model.layers.0.mlp.up_proj": {...} or false}, without a
// quant_method; or quant_method "auto-round" with packing_format "mlx", where the tensors say a module's bits. Files
// are read, and not written.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/format/container_format.h"

namespace pare::runtime {

inline constexpr std::string_view kMlx = "mlx";  // ContainerFormat::name()
const ContainerFormat& mlx_container();

inline constexpr std::string_view kMlxWeightSuffix = ".weight";
inline constexpr std::string_view kMlxScalesSuffix = ".scales";
inline constexpr std::string_view kMlxBiasesSuffix = ".biases";

// The weight of a module as floats.
struct MlxFloats {
  std::vector<int64_t> shape;                        // [O, I]
  std::vector<std::span<const std::byte>> parts;     // what it is made from
  std::function<std::vector<std::byte>()> make_f32;  // returns its bytes in F32
};

// As read. The tensors tell which modules are quantized, and whether they are symmetric.
class MlxConfig final : public ContainerConfig {
 public:
  struct Entry {
    bool is_quantized = true;
    int bits = 0;  // 0: as the tensors say
    int64_t group_size = 0;
  };

  // `json` is the object's text and `where` names its file. Throws std::invalid_argument for other modes than "affine",
  // other widths and groups, and anything that is no such configuration.
  MlxConfig(const std::string& json, const std::string& where);
  std::optional<PackScheme> scheme_of(const std::string& module, std::string_view class_name,
                                      const FindTensor& find) const override;
  // Returns the weight of a module with a bias that is no multiple of its scale; nullopt for any other module, and for
  // tensors that are missing or do not fit each other, which check() names. Reads scales and biases up to the first
  // such bias. The result reads the bytes of the tensors that `find` gives.
  std::optional<MlxFloats> free_biases(const std::string& module, const FindTensor& find) const;

 private:
  const Entry& entry_of(const std::string& module) const;

  Entry base_;
  std::map<std::string, Entry> of_module_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, bool> is_symmetric_;  // of the modules that were asked about
};

}  // namespace pare::runtime
