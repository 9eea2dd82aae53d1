// A weight of zeros in every form that a scheme may ask for.
#pragma once

#include "runtime/files/gguf.h"
#include "runtime/format/container_format.h"

namespace pare {
using namespace runtime;

inline StoredLinear zero_linear(const ContainerFormat& container, const PackScheme& scheme, int64_t num_out,
                                int64_t num_in) {
  StoredLinear linear;
  QuantizedWeight& weight = linear.weight;
  linear.input = scheme.input;
  if (scheme.input.has_stored_scale()) linear.input.scale = 1.0f;
  weight.num_out = num_out;
  weight.num_in = num_in;
  weight.pattern = scheme.pattern;
  const auto num_weights = static_cast<size_t>(num_out * num_in);
  if (scheme.is_dense()) {
    if (!scheme.has_own_tensor()) linear.dense_OI.resize(2 * num_weights);
    return linear;
  }
  weight.bits = scheme.bits;
  weight.group_size = scheme.group_size;
  weight.symmetric = scheme.symmetric;
  weight.code = scheme.code;
  weight.scale_dtype = weight.code->scale_dtype.value_or(container.scale_dtype(DType::BF16));
  if (weight.code->is_blocks()) {
    weight.codes_OI.resize(
        static_cast<size_t>(num_out * gguf_row_bytes(static_cast<GgufType>(weight.code->gguf_type), num_in)));
    return linear;
  }
  const uint8_t zero = weight.code->zero_code(weight.bits);
  weight.codes_OI.assign(num_weights, zero);
  weight.scales_OG.assign(static_cast<size_t>(num_out * weight.num_groups()), 1.0f);
  if (!scheme.symmetric) weight.zeros_OG.assign(weight.scales_OG.size(), zero);
  if (scheme.act_order == StoredActOrder::group) {
    for (int64_t i = 0; i < num_in; ++i) {
      weight.group_of_I.push_back(static_cast<int32_t>(scheme.group_size > 0 ? i / scheme.group_size : 0));
    }
  }
  return linear;
}

}  // namespace pare
