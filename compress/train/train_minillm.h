// MiniLLM in training (Gu et al., arXiv 2306.08543, algorithm 1): the student continues prompts, sampled from the
// mixture of teacher and student, and learns from what the teacher says of its own sequences (distill/minillm.h).
#pragma once

#include <cstdint>

#include "compress/train/train_step.h"
#include "distill/options.h"

namespace pare::compress {

struct Continuations {
  at::Tensor ids_BT;        // in host memory, int64: prompt and continuation
  at::Tensor mask_BT;       // bool: token t + 1 was sampled and is part of its sequence; what row t predicts
  at::Tensor behaviour_BT;  // float32: its logarithm under the distribution that it was sampled from; 0 elsewhere
};

// Continues each prompt by num_new tokens, drawn from teacher_share p + (1 - teacher_share) q at temperature 1; behind
// one of end_tokens a sequence is over, and filled up. prompts_BT int64 [B, T0]. `seed` decides all draws: one number
// of a Mersenne Twister a token, cumulative sums in float64, in the order of ids. Tokens are the first num_ids of both
// tables, and p and q distributions over these: rows behind them are padding, or unknown to the other model.
// Throws std::invalid_argument: no prompt token, num_new below 1, num_ids of more rows than a table has.
Continuations sample_continuations(const at::Tensor& prompts_BT, int64_t num_new, double teacher_share,
                                   const std::vector<int32_t>& end_tokens, uint64_t seed, int64_t num_ids,
                                   const FrozenModel& student, const LiveTeacher& teacher);

// Adds the gradients of the mean of minillm_losses over the num_step_labels sampled tokens of the step. Two passes over
// the head's logits: returns and weights need all of a sequence's rewards before the first gradient. The loss returned
// is KL(q || p) of the sampled tokens' positions, summed: what is to fall. (minillm_losses' own value means nothing.)
BatchLoss train_on_samples(const Continuations& samples, const distill::MiniLlmOptions& options, bool recompute,
                           int64_t num_step_labels, LiveTeacher& teacher, StudentModel& student);

// Adds the gradients of weight times the mean of -log q(label) over the num_step_labels labels of the step's plain text
// (the paper's L_PT). The loss returned has the weight.
BatchLoss train_on_text(const TokenBatch& batch, double weight, bool recompute, int64_t num_step_labels,
                        StudentModel& student);

}  // namespace pare::compress
