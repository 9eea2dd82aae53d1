// The kernels of ops.h for NEON: the shared templates, written in the vectors of simd_neon.h.
#include "runtime/cpu/kernels/simd_neon.h"

#include "runtime/cpu/kernels/attention_kernels.h"
#include "runtime/cpu/kernels/ops_kernels.h"

namespace pare::runtime {

const OpKernels& op_kernels_neon() {
  static constexpr OpKernels kKernels = {
      .add_norm_row = add_norm_row,
      .rope_heads = rope_heads,
      .scale = scale,
      .activate = {activate<silu>, activate<gelu>, activate<gelu_tanh>, activate<relu>},
      .clamped_swiglu = clamped_swiglu,
      .activate_ungated = {activate_ungated<silu>, activate_ungated<gelu>, activate_ungated<gelu_tanh>,
                           activate_ungated<relu>},
      .add_layer_norm_row = add_layer_norm_row,
      .mean_rows = mean_rows,
      .softcap = softcap,
      .arg_max = arg_max,
      .sum_exp = sum_exp,
      .compare_sums = compare_sums,
      .attention_scratch = attention_scratch,
      .attention_tile = attention_tile,
      .attention_partial = attention_partial,
      .attention_join = attention_join,
  };
  return kKernels;
}

}  // namespace pare::runtime
