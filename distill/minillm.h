// MiniLLM's policy-gradient estimator (Gu et al., arXiv 2306.08543, sections 2.1 and 2.2) of the gradient of
//
//   L = KL(q || p) = E_{y ~ q} sum_t (log q(y_t | y_<t) - log p(y_t | y_<t)),   equation 1,
//
// over whole sequences y. The sequences were sampled from another distribution b: the mixture of teacher p and student
// q (equation 4), or an older student. Let r_t = log p(y_t | y_<t) - log q(y_t | y_<t) and G_t = r_t + r_{t+1} + ...
// The gradient is -E_q sum_t G_t grad log q(y_t | y_<t) (equation 2, less the constant 1, whose part is 0 in
// expectation). Single-step decomposition (equation 3) takes r_t out of the return. In its place it puts the gradient
// of the exact expectation of r_t over the vocabulary, which is -reverse_kl (losses.h):
//
//   grad L = E_q sum_t (grad KL(q(. | y_<t) || p(. | y_<t)) - G_{t+1} grad log q(y_t | y_<t)).
//
// Tensors are [B, T]: B sequences of T tokens each, where tokens after a sequence's end are masked. They are float32 or
// float64, all of one type. Sums over tokens run along rows, so results are the same for any number of threads.
//
// Bias (tests/distill/minillm_test.cpp enumerates all sequences of a small model and prints the table). It is zero for
// sequences of the student itself (b = q), whatever the weights, clipped or not, and for any b with
// ImportanceWeights::exact. It is not zero with length normalization. With b other than q it is not zero for
// ImportanceWeights::none and single_step (the paper's practice). That holds for cumulative too, equation 5 as written:
// its weight of token t reaches up to t, while the rewards after t come from b as well.
// The published code (microsoft/LMOps at 4f2a9de, minillm/minillm/losses.py and sampler.py, with the options of its
// training scripts) departs from equation 7 in more than its clipped ratio. These departures are not offered here:
// - Its return keeps the token's own reward beside the single-step term and is discounted by 0.95 a token. It is
//   divided by the number of tokens summed (T - t + 1), then shifted and scaled to mean 0 and variance 1 over the
//   batch.
// - Rewards are those of the student that sampled, twice as large (reward-scaling 0.5), and only then held within +-
//   100.
// - The single-step term has no importance weight.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "distill/options.h"

namespace pare::distill {

// Returns log(share p + (1 - share) q), equation 4, without gradient. The arguments have any shape: those of tokens,
// [B, T], or of whole distributions, [T, V]. -inf is a mass of 0. Throws std::invalid_argument for shapes or types that
// differ and for a share outside 0 .. 1.
at::Tensor teacher_mixed_log_probs(const at::Tensor& teacher, const at::Tensor& student, double teacher_share);

// The log-probabilities, [B, T], that each distribution gives the sampled tokens.
struct SampledSequences {
  at::Tensor student_BT;      // q's, with gradient; finite
  at::Tensor teacher_BT;      // p's; -inf counts as kLogOfNoMass (rows.h)
  at::Tensor behaviour_BT;    // b's at the time of sampling; finite. b = q: student_BT itself
  at::Tensor mask_BT;         // bool: the token is part of its sequence. Values of other tokens are not read
  at::Tensor single_step_BT;  // reverse_kl at each token, with gradient; only read with single_step
};

// Returns r_t = log p - log q of each token, [B, T] in nats, without gradient, held within +- reward_limit and 0 where
// masked. Throws std::invalid_argument for shapes and types of the sequences.
at::Tensor minillm_rewards(const SampledSequences& sequences, std::optional<double> reward_limit);

// Returns the sum of a sequence's rewards from each token on, or, with `after`, the sum of later rewards alone. With
// `normalized` it returns their mean, equation 6 (which divides T - t rewards by T - t - 1; here by T - t), or 0 where
// there is none. rewards_BT is floating point with 0 where masked, and mask_BT is bool, both [B, T].
// Throws std::invalid_argument for shapes and types.
at::Tensor minillm_returns(const at::Tensor& rewards_BT, const at::Tensor& mask_BT, bool after, bool normalized);

// Returns importance weights, [B, T], without gradient. They are q / b of each token (single_step), their product over
// a sequence's tokens up to this one (cumulative, exact), or 1 (none). Masked tokens count as ratio 1. Throws as
// minillm_rewards does.
at::Tensor minillm_weights(const SampledSequences& sequences, ImportanceWeights weights);

// Returns a loss for each token, [B, T], 0 where masked. Its gradient, summed over a sequence's tokens, is that
// sequence's estimate of grad L. So the mean over sequences, or over tokens (the published code), is minimized. Only
// the gradients have a meaning: the values are those of a surrogate. With G the return, w the weight, k the
// single_step_BT:
//
//   none          k_t - G_{t+1} log q_t
//   single_step   w_t k_t - G_{t+1} ratio_t, equation 7; ratio_t = q_t / b_t has the gradient w_t grad log q_t and may
//                 be clipped: ratio as algorithm 1 writes it, surrogate as its code does it (PPO's)
//   cumulative    w_t k_t - w_t G_{t+1} log q_t, equation 5
//   exact         w_{t-1} k_t - (w_{t+1} r_{t+1} + w_{t+2} r_{t+2} + ...) log q_t: each reward weighs as much as its
//                 own tokens are likelier under q than under b
//
// With single_step off there is no k, and returns begin at t instead of t + 1. teacher_share and language_model_weight
// are not read here: they are for the code that samples and sums. The optional language-model loss is hard_label_loss
// (losses.h) on plain text.
// Throws std::invalid_argument for shapes and types, single_step without single_step_BT, a clip without single_step
// weights (it clips their ratio), a clip_range outside 0 .. 1, and a student's or b's log-probability that is not
// finite.
at::Tensor minillm_losses(const SampledSequences& sequences, const MiniLlmOptions& options);

}  // namespace pare::distill
