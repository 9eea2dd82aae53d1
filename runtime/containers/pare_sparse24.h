// pare's own container for weights that keep 2 of 4: two values of every four neighbouring inputs, and their positions.
//
// docs/formats.md, "The bytes of pare-sparse24", gives the bytes and the quantization_config. Weights without a pattern
// may stand in the same checkpoint: as codes of the same layout, or unchanged with a rounded input. It holds integers
// and every code with a table, so that a code of a program's own needs no container of its own.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/format/container_format.h"
#include "runtime/format/stored_scheme.h"
#include "runtime/format/tensor_view.h"

namespace pare::runtime {

const ContainerFormat& pare_sparse24_container();

inline constexpr std::string_view kSparseValuesSuffix = ".weight_values";
inline constexpr std::string_view kSparsePositionsSuffix = ".weight_positions";
inline constexpr std::string_view kSparseScaleSuffix = ".weight_scale";
inline constexpr std::string_view kSparseZeroPointSuffix = ".weight_zero_point";
inline constexpr std::string_view kSparseTensorScaleSuffix = ".weight_tensor_scale";
inline constexpr std::string_view kSparsePlainSuffix = ".weight";

// Returns what the container does not hold of a scheme, and what would fit; empty: nothing.
std::string pare_sparse24_problem(const PackScheme& scheme);

// A quantization_config of this container as read.
class PareSparse24Config final : public ContainerConfig {
 public:
  // Throws std::invalid_argument for anything that is not such a configuration: unknown keys, schemes that the
  // container does not hold, modules that are named twice. `where` names the file.
  static PareSparse24Config parse(const std::string& json, const std::string& where);
  std::optional<PackScheme> scheme_of(const std::string& module, std::string_view class_name,
                                      const FindTensor& find) const override;

 private:
  std::map<std::string, PackScheme> scheme_of_module_;
};

// Returns the JSON object for the key "quantization_config". Throws std::invalid_argument if there is no module, if one
// is named twice or also ignored, or for a scheme that the container does not hold.
std::string pare_sparse24_config_json(std::span<const StoredModule> modules, std::span<const std::string> ignore);

}  // namespace pare::runtime
