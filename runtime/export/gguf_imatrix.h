// llama.cpp's importance matrix: the mean square of each input of each linear, which llama-quantize weighs errors with
// (tools/imatrix/imatrix.cpp, save_imatrix: a GGUF file of `general.type` "imatrix").
//
//   NAME.in_sum2  F32 [I], of experts [E, I]   the sum of the squares over the tokens; NAME as in a GGUF file of the
//                                              model: blk.0.attn_q.weight
//   NAME.counts   F32 [1], of experts [E, 1]   the tokens
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "runtime/model/checkpoint.h"

namespace pare::runtime {

struct ColumnSquares {
  int64_t num_tokens = 0;     // 0: nothing is known of this linear, which is left out
  std::vector<float> mean_I;  // of the squares of the inputs
};

struct ImatrixOrigin {
  std::string dataset;
  int64_t num_chunks = 0, chunk_tokens = 0;
};

// Throws std::invalid_argument for a checkpoint that has no GGUF files (export_gguf.h). Call it before any work.
void check_has_imatrix(const Checkpoint& checkpoint);

// Writes `out`, whole or not at all. Linears that GGUF stores together have one entry. Throws what check_has_imatrix
// throws, std::invalid_argument for squares of another width than the linear's, and std::runtime_error for what the
// disk refuses.
void write_imatrix(const Checkpoint& checkpoint, const std::filesystem::path& out,
                   const std::function<ColumnSquares(const LinearDescription&)>& squares, const ImatrixOrigin& origin);

}  // namespace pare::runtime
