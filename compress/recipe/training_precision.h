// In which type the products of a training are: an option of every pass that trains. Free of LibTorch.
#pragma once

#include <array>
#include <span>
#include <string>

#include "runtime/format/fields.h"

namespace pare::compress {

// Of matrix products; auto: bfloat16 where the CPU multiplies it (AVX-512 BF16 or AMX) and no input of a linear is
// rounded, else float32. Weights, gradients and moments are float32 in either case.
enum class TrainingPrecision { automatic, float32, bfloat16 };
inline std::span<const runtime::EnumName<TrainingPrecision>> enum_names(TrainingPrecision) {
  static constexpr std::array<runtime::EnumName<TrainingPrecision>, 3> kNames = {
      {{TrainingPrecision::automatic, "auto"},
       {TrainingPrecision::float32, "float32"},
       {TrainingPrecision::bfloat16, "bfloat16"}}};
  return kNames;
}

// It stands here for readers of recipes that are built without what knows the processor.
inline void visit_precision(runtime::FieldVisitor& visit, TrainingPrecision& precision) {
  visit("precision", precision,
        "Products of matrices are computed in this type. `auto` takes `bfloat16` where the processor multiplies it and "
        "no input is rounded, else `float32`.");
}

// Whether products are in bfloat16, of a model of which any linear's input is rounded or none. Throws
// std::invalid_argument, with the pass's key, for bfloat16 where inputs are rounded: it does not hold them exactly.
bool trains_in_bfloat16(TrainingPrecision precision, bool rounds_inputs, const std::string& pass);

}  // namespace pare::compress
