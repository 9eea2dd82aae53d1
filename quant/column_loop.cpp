#include "quant/column_loop.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "quant/checked_tensor.h"
#include "quant/row_chunks.h"

namespace pare::quant {
namespace {

constexpr int64_t kLoopRows = 96;
constexpr float kNoCandidate = -1.0f;  // the score of a weight that may not be kept: below all others

// A worker's rows with the state of their loop.
struct Chunk {
  LoopRows rows;
  at::Tensor errors_BR;
  std::unique_ptr<ColumnRule> rule;
};

// Returns the columns of a block. Groups of M lie within one block, so that their weights are up to date at their first
// column.
int64_t block_columns(const ColumnLoop& loop) {
  const int64_t group = std::max<int64_t>(loop.mask.pattern.group, 1);
  return (loop.block_size + group - 1) / group * group;
}

// Copies a mask's rows, bool [O, I], transposed like the weights.
void gather_mask(const at::Tensor& mask_OI, const std::vector<int64_t>& order_I, const LoopRows& rows,
                 std::vector<uint8_t>& mask_IR) {
  const int64_t num_in = mask_OI.size(1);
  mask_IR.resize(static_cast<size_t>(num_in * rows.num_rows));
  for (int64_t r = 0; r < rows.num_rows; ++r) {
    const bool* mask_I = mask_OI.const_data_ptr<bool>() + (rows.first_row + r) * num_in;
    for (int64_t p = 0; p < num_in; ++p) mask_IR[p * rows.num_rows + r] = mask_I[order_I[p]];
  }
}

LoopRows gather_rows(const ColumnLoop& loop, int64_t first_row, int64_t num_rows) {
  const int64_t num_in = loop.weight_OI.size(1);
  LoopRows rows{first_row, num_rows, at::empty({num_in, num_rows}, at::kFloat), {}};
  if (!loop.mask.keeps_all()) rows.kept_IR.assign(num_in * num_rows, 1);
  float* gathered = rows.weight_IR.mutable_data_ptr<float>();
  for (int64_t r = 0; r < num_rows; ++r) {
    const float* weights_I = loop.weight_OI.const_data_ptr<float>() + (first_row + r) * num_in;
    for (int64_t p = 0; p < num_in; ++p) gathered[p * num_rows + r] = weights_I[loop.order_I[p]];
  }
  if (loop.mask.kept_OI.defined()) gather_mask(loop.mask.kept_OI, loop.order_I, rows, rows.kept_IR);
  if (loop.mask.allowed_OI.defined()) gather_mask(loop.mask.allowed_OI, loop.order_I, rows, rows.allowed_IR);
  return rows;
}

void scatter_mask(const LoopRows& rows, const std::vector<int64_t>& order_I, const at::Tensor& kept_OI) {
  const int64_t num_in = kept_OI.size(1);
  for (int64_t r = 0; r < rows.num_rows; ++r) {
    bool* kept_I = kept_OI.mutable_data_ptr<bool>() + (rows.first_row + r) * num_in;
    for (int64_t p = 0; p < num_in; ++p) kept_I[order_I[p]] = rows.kept_IR[p * rows.num_rows + r] != 0;
  }
}

// Chooses the mask of the pattern.group columns from `begin` on.
void choose_group(const std::vector<float>& costs_I, runtime::SparsePattern pattern, int64_t begin, LoopRows& rows) {
  const int64_t num_rows = rows.num_rows;
  const float* weights = rows.weight_IR.const_data_ptr<float>() + begin * num_rows;
  uint8_t* kept = rows.kept_IR.data() + begin * num_rows;
  std::vector<float> scores_MR(pattern.group * num_rows);
  for (int64_t i = 0; i < pattern.group; ++i) {
    const float cost = costs_I[begin + i];
    float* scores_R = scores_MR.data() + i * num_rows;
#pragma omp simd
    for (int64_t r = 0; r < num_rows; ++r) scores_R[r] = std::abs(weights[i * num_rows + r]) * cost;
  }
  const uint8_t* allowed = rows.allowed_IR.empty() ? nullptr : rows.allowed_IR.data() + begin * num_rows;
  for (int64_t i = 0; allowed != nullptr && i < pattern.group * num_rows; ++i) {
    if (allowed[i] == 0) scores_MR[i] = kNoCandidate;
  }
  std::vector<float> num_better_R(num_rows);
  const auto most = static_cast<float>(pattern.num_kept);
  for (int64_t i = 0; i < pattern.group; ++i) {
    std::fill(num_better_R.begin(), num_better_R.end(), 0.0f);
    const float* mine_R = scores_MR.data() + i * num_rows;
    for (int64_t j = 0; j < pattern.group; ++j) {
      const float* theirs_R = scores_MR.data() + j * num_rows;
      if (j < i) {  // NOLINT(bugprone-branch-clone): an equal score counts for those before alone
#pragma omp simd
        for (int64_t r = 0; r < num_rows; ++r) num_better_R[r] += theirs_R[r] >= mine_R[r] ? 1.0f : 0.0f;
      } else {
#pragma omp simd
        for (int64_t r = 0; r < num_rows; ++r) num_better_R[r] += theirs_R[r] > mine_R[r] ? 1.0f : 0.0f;
      }
    }
    for (int64_t r = 0; r < num_rows; ++r) kept[i * num_rows + r] = num_better_R[r] < most;
  }
  for (int64_t i = 0; allowed != nullptr && i < pattern.group * num_rows; ++i) kept[i] &= allowed[i];
}

// Chooses the mask of the columns [begin, end) of all rows: the llround(ratio * O * B) least scores are pruned.
void choose_block(const std::vector<float>& costs_I, double ratio, int64_t begin, int64_t end, int64_t num_out,
                  std::vector<Chunk>& chunks) {
  const int64_t width = end - begin;
  std::vector<float> scores_OB(num_out * width);
  for_row_chunks(num_out, kLoopRows, [&](int64_t first_row, int64_t num_rows) {
    LoopRows& rows = chunks[first_row / kLoopRows].rows;
    const float* weights = rows.weight_IR.const_data_ptr<float>();
    for (int64_t i = 0; i < width; ++i) {
      const float* weights_R = weights + (begin + i) * num_rows;
      for (int64_t r = 0; r < num_rows; ++r) {
        scores_OB[(first_row + r) * width + i] = std::abs(weights_R[r]) * costs_I[begin + i];
        const int64_t here = (begin + i) * num_rows + r;
        if (rows.allowed_IR.empty() || rows.allowed_IR[here] != 0) continue;
        scores_OB[(first_row + r) * width + i] = kNoCandidate;
        rows.kept_IR[here] = 0;
      }
    }
  });
  const int64_t num_pruned = std::llround(ratio * static_cast<double>(num_out * width));
  if (num_pruned == 0) return;
  std::vector<float> ordered = scores_OB;
  std::nth_element(ordered.begin(), ordered.begin() + (num_pruned - 1), ordered.end());
  const float threshold = ordered[num_pruned - 1];
  int64_t num_ties_left =
      num_pruned - std::count_if(scores_OB.begin(), scores_OB.end(), [&](float score) { return score < threshold; });
  for (int64_t index = num_out * width - 1; index >= 0; --index) {
    const float score = scores_OB[index];
    if (score > threshold || (score == threshold && num_ties_left-- <= 0)) continue;
    const int64_t row = index / width;
    LoopRows& rows = chunks[row / kLoopRows].rows;
    rows.kept_IR[(begin + index % width) * rows.num_rows + row % kLoopRows] = 0;
  }
}

// Runs the loop over the columns [begin, end) of one block.
void run_block(const ColumnLoop& loop, int64_t begin, int64_t end, Chunk& chunk) {
  const int64_t num_in = loop.weight_OI.size(1), num_rows = chunk.rows.num_rows;
  const float* factor = loop.inverse_factor_II.const_data_ptr<float>();
  float* weights = chunk.rows.weight_IR.mutable_data_ptr<float>();
  float* errors = chunk.errors_BR.mutable_data_ptr<float>();
  const runtime::SparsePattern pattern = loop.mask.pattern;
  for (int64_t k = begin; k < end; ++k) {
    if (!pattern.is_dense() && k % pattern.group == 0) choose_group(loop.costs_I, pattern, k, chunk.rows);
    float* errors_R = errors + (k - begin) * num_rows;
    const float* factor_row = factor + k * num_in;
    chunk.rule->column(k, factor_row[k], chunk.rows, errors_R);
    for (int64_t j = k + 1; j < end; ++j) {
      const float share = factor_row[j];
      float* later_R = weights + j * num_rows;
#pragma omp simd
      for (int64_t r = 0; r < num_rows; ++r) later_R[r] -= share * errors_R[r];
    }
  }
  if (end == num_in) return;
  chunk.rows.weight_IR.narrow(0, end, num_in - end)
      .addmm_(loop.inverse_factor_II.narrow(0, begin, end - begin).narrow(1, end, num_in - end).t(),
              chunk.errors_BR.narrow(0, 0, end - begin), /*beta=*/1, /*alpha=*/-1);
}

Chunk make_chunk(const ColumnLoop& loop, int64_t first_row, int64_t num_rows) {
  const int64_t num_in = loop.weight_OI.size(1);
  return {gather_rows(loop, first_row, num_rows),
          at::empty({std::min(block_columns(loop), num_in), num_rows}, at::kFloat), nullptr};
}

std::vector<Chunk> make_chunks(const ColumnLoop& loop) {
  const int64_t num_out = loop.weight_OI.size(0);
  std::vector<Chunk> chunks((num_out + kLoopRows - 1) / kLoopRows);
  for_row_chunks(num_out, kLoopRows, [&](int64_t first_row, int64_t num_rows) {
    chunks[first_row / kLoopRows] = make_chunk(loop, first_row, num_rows);
  });
  return chunks;
}

ColumnLoop with_contiguous_masks(ColumnLoop loop) {
  for (at::Tensor* const mask_OI : {&loop.mask.kept_OI, &loop.mask.allowed_OI}) {
    if (mask_OI->defined()) *mask_OI = mask_OI->contiguous();
  }
  return loop;
}

void check_groups(runtime::SparsePattern pattern, const std::vector<int64_t>& order_I) {
  const auto num_in = static_cast<int64_t>(order_I.size());
  const std::string name = std::to_string(pattern.num_kept) + ":" + std::to_string(pattern.group);
  if (!(0 < pattern.num_kept && pattern.num_kept < pattern.group)) {
    throw std::invalid_argument("pattern: expected N:M with 0 < N < M, found " + name);
  }
  if (num_in % pattern.group != 0) {
    throw std::invalid_argument("pattern " + name + ": expected a number of inputs that " +
                                std::to_string(pattern.group) + " divides, found " + std::to_string(num_in) +
                                "; exclude the layer or choose another pattern");
  }
  for (int64_t p = 0; p < num_in; ++p) {
    if (order_I[p] == order_I[p / pattern.group * pattern.group] + p % pattern.group &&
        order_I[p] % pattern.group == p % pattern.group) {
      continue;
    }
    throw std::invalid_argument("pattern " + name + ": the act-order tears groups of " + std::to_string(pattern.group) +
                                " columns apart; factorize the Hessian with that many columns together");
  }
}

}  // namespace

void check_mask(const ColumnMask& mask, int64_t num_out, const std::vector<int64_t>& order_I) {
  if (!(mask.ratio >= 0.0 && mask.ratio <= 1.0)) {
    throw std::invalid_argument("ratio: expected a number from 0 to 1, found " + std::to_string(mask.ratio));
  }
  if (int{mask.kept_OI.defined()} + int{!mask.pattern.is_dense()} + int{mask.ratio > 0.0} > 1) {
    throw std::invalid_argument("mask: expected one of a mask, a pattern and a ratio, found several");
  }
  if (mask.allowed_OI.defined()) {
    if (!mask.is_chosen()) {
      throw std::invalid_argument(
          "mask: a mask of what may be kept needs a pattern or a ratio to choose by, found neither");
    }
    check_kept(mask.allowed_OI, num_out, static_cast<int64_t>(order_I.size()));
  }
  if (mask.kept_OI.defined()) check_kept(mask.kept_OI, num_out, static_cast<int64_t>(order_I.size()));
  if (!mask.pattern.is_dense()) check_groups(mask.pattern, order_I);
}

at::Tensor run_column_loop(const ColumnLoop& given,
                           const std::function<std::unique_ptr<ColumnRule>(const LoopRows&)>& make_rule) {
  const ColumnLoop loop = with_contiguous_masks(given);
  const int64_t num_out = loop.weight_OI.size(0), num_in = loop.weight_OI.size(1), columns = block_columns(loop);
  at::Tensor kept_OI = loop.mask.is_chosen() ? at::empty({num_out, num_in}, at::kBool) : loop.mask.kept_OI;
  const auto finish = [&](Chunk& chunk) {
    chunk.rule->finish(chunk.rows);
    if (loop.mask.is_chosen()) scatter_mask(chunk.rows, loop.order_I, kept_OI);
  };
  if (loop.mask.ratio > 0.0) {
    // The mask of a block depends on all rows, so all chunks go from block to block together.
    std::vector<Chunk> chunks = make_chunks(loop);
    const auto for_chunks = [&](const auto& body) {
      for_row_chunks(num_out, kLoopRows, [&](int64_t first_row, int64_t) { body(chunks[first_row / kLoopRows]); });
    };
    for_chunks([&](Chunk& chunk) { chunk.rule = make_rule(chunk.rows); });
    for (int64_t begin = 0; begin < num_in; begin += columns) {
      const int64_t end = std::min(begin + columns, num_in);
      choose_block(loop.costs_I, loop.mask.ratio, begin, end, num_out, chunks);
      for_chunks([&](Chunk& chunk) { run_block(loop, begin, end, chunk); });
    }
    for_chunks(finish);
    return kept_OI;
  }
  for_row_chunks(num_out, kLoopRows, [&](int64_t first_row, int64_t num_rows) {
    Chunk chunk = make_chunk(loop, first_row, num_rows);
    chunk.rule = make_rule(chunk.rows);
    for (int64_t begin = 0; begin < num_in; begin += columns) {
      run_block(loop, begin, std::min(begin + columns, num_in), chunk);
    }
    finish(chunk);
  });
  return kept_OI;
}

at::Tensor estimated_mask(const ColumnLoop& given) {
  const ColumnLoop loop = with_contiguous_masks(given);
  const int64_t num_out = loop.weight_OI.size(0), num_in = loop.weight_OI.size(1), columns = block_columns(loop);
  if (!loop.mask.is_chosen()) return loop.mask.kept_OI;
  const at::Tensor kept_OI = at::empty({num_out, num_in}, at::kBool);
  std::vector<Chunk> chunks = make_chunks(loop);
  for (int64_t begin = 0; begin < num_in && loop.mask.ratio > 0.0; begin += columns) {
    choose_block(loop.costs_I, loop.mask.ratio, begin, std::min(begin + columns, num_in), num_out, chunks);
  }
  for (Chunk& chunk : chunks) {
    for (int64_t p = 0; p < num_in && !loop.mask.pattern.is_dense(); p += loop.mask.pattern.group) {
      choose_group(loop.costs_I, loop.mask.pattern, p, chunk.rows);
    }
    scatter_mask(chunk.rows, loop.order_I, kept_OI);
  }
  return kept_OI;
}

}  // namespace pare::quant
