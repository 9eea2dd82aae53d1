// Rounds weights to the blocks of a GGUF type column by column, so that later columns make up for the errors of earlier
// ones (GPTQ, arXiv 2210.17323). Then codes and the blocks' whole numbers change one after another where the error
// under H falls (coordinate descent as in QuantEase, arXiv 2309.01885). llama.cpp's quantizer weighs errors with
// diag(H) alone (its importance matrix) and spreads none.
#pragma once

#include <cstdint>

#include "quant/gptq.h"
#include "runtime/blocks/gguf_parts.h"

namespace pare::quant {

struct BlockOptions {
  runtime::GgufType type = runtime::GgufType::Q4_K;
  int64_t block_size = GptqOptions{}.block_size;  // as in GptqOptions
  double damping = GptqOptions{}.damping;
  ActOrder act_order = ActOrder::static_groups;  // or none
  int sweeps = RefineOptions{}.sweeps;           // over all groups after the loop; 0: none
  double sweep_damping = RefineOptions{}.damping;
};

// Rounds weight_OI, float32 [O, I]. The scales and minima of blocks are those that encode_gguf_row finds with diag(H),
// and the sweeps and the errors in the result are against target_OI [O, I]. The result's codes are the bytes of blocks
// (QuantizedWeight). The mask kept_OI, bool [O, I] (undefined: all are kept), needs a type with a code of 0
// (GgufGrid::has_zero); pruned weights are 0 in the result. The factor must be made with these options' damping and
// order. Rows are independent and split over OpenMP threads in fixed chunks, so that any number of threads gives the
// same bytes.
// Throws std::invalid_argument for shapes, options, a width that does not fill blocks, values that are not finite or
// beyond float16, and a mask where the type has no 0.
GptqResult gptq_to_blocks(const at::Tensor& weight_OI, const at::Tensor& target_OI, const GptqFactor& factor,
                          const BlockOptions& options, const at::Tensor& kept_OI = {});

}  // namespace pare::quant
