// MiniLLM's policy-gradient estimator (Gu et al., arXiv 2306.08543, sections 2.1 and 2.2) of the gradient of
//
//   L = KL(q || p) = E_{y ~ q} sum_t (log q(y_t | y_<t) - log p(y_t | y_<t)),   equation 1,
//
// over whole sequences y, from sequences that were sampled from another distribution b: the mixture of teacher p and
// student q (equation 4), or an older student. With r_t = log p(y_t | y_<t) - log q(y_t | y_<t) and G_t = r_t + r_{t+1}
// + ... the gradient is -E_q sum_t G_t grad log q(y_t | y_<t) (equation 2, less the constant 1, whose part is 0 in
// expectation). Single-step decomposition (equation 3) takes r_t out of the return and puts in its place the gradient
// of its exact expectation over the vocabulary, which is -reverse_kl (losses.h):
//
//   grad L = E_q sum_t (grad KL(q(. | y_<t) || p(. | y_<t)) - G_{t+1} grad log q(y_t | y_<t)).
//
// Tensors are [B, T]: B sequences, T tokens each, those after a sequence's end masked. float32 or float64, all of one
// type. Results are the same for any number of threads: sums over tokens run along rows.
//
// Bias (tests/distill/minillm_test.cpp enumerates all sequences of a small model and prints the table). Zero: sequences
// of the student itself (b = q), whatever the weights, clipped or not; any b with ImportanceWeights::exact. Not zero:
// length normalization; and with b other than q ImportanceWeights::none, single_step (the paper's practice) and also
// cumulative, equation 5 as written: its weight of token t reaches up to t, while the rewards after t come from b as
// well.
// The published code (microsoft/LMOps at 4f2a9de, minillm/minillm/losses.py and sampler.py, with the options of its
// training scripts) departs from equation 7 in more than its clipped ratio, and these departures are not offered here:
// its return keeps the token's own reward beside the single-step term, is discounted by 0.95 a token, divided by the
// number of tokens summed (T - t + 1) and then shifted and scaled to mean 0 and variance 1 over the batch; rewards are
// those of the student that sampled, twice as large (reward-scaling 0.5) and only then held within +- 100; the
// single-step term has no importance weight.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "distill/options.h"

namespace pare {

// log(share p + (1 - share) q), equation 4: of tokens, [B, T], or of whole distributions, [T, V]; any shape. Without
// gradient. -inf is a mass of 0. Throws std::invalid_argument: shapes or types that differ, share outside 0 .. 1.
at::Tensor teacher_mixed_log_probs(const at::Tensor& teacher, const at::Tensor& student, double teacher_share);

// What was sampled, and what each distribution says of the sampled tokens: their log-probabilities, [B, T].
struct SampledSequences {
  at::Tensor student_BT;      // q's, with gradient; finite
  at::Tensor teacher_BT;      // p's; -inf counts as kLogOfNoMass (rows.h)
  at::Tensor behaviour_BT;    // b's, as when they were sampled; finite. b = q: student_BT itself
  at::Tensor mask_BT;         // bool: the token is part of its sequence. What the others hold is not read
  at::Tensor single_step_BT;  // reverse_kl at each token, with gradient; read by single_step alone
};

// r_t = log p - log q of each token, [B, T] in nats, without gradient, held within +- reward_limit; 0 where masked.
// Throws std::invalid_argument: shapes and types of the sequences.
at::Tensor minillm_rewards(const SampledSequences& sequences, std::optional<double> reward_limit);

// The sum of a sequence's rewards from each token on, or with `after` of those behind it; with `normalized` their mean,
// equation 6 (which divides T - t rewards by T - t - 1; here by T - t); 0 where there is none.
// rewards_BT floating point with 0 where masked, mask_BT bool, both [B, T].
// Throws std::invalid_argument: shapes and types.
at::Tensor minillm_returns(const at::Tensor& rewards_BT, const at::Tensor& mask_BT, bool after, bool normalized);

// q / b of each token (single_step), or their product over a sequence's tokens up to this one (cumulative, exact), or
// 1 (none): [B, T], without gradient; masked tokens count as ratio 1. Throws as minillm_rewards does.
at::Tensor minillm_weights(const SampledSequences& sequences, ImportanceWeights weights);

// A loss for each token, [B, T], 0 where masked, whose gradient summed over a sequence's tokens is that sequence's
// estimate of grad L; so the mean over sequences, or over tokens (the published code), is minimized. Only gradients
// mean something: the values are a surrogate's. With G the return, w the weight, k the single_step_BT:
//
//   none          k_t - G_{t+1} log q_t
//   single_step   w_t k_t - G_{t+1} ratio_t, equation 7; ratio_t = q_t / b_t has the gradient w_t grad log q_t and may
//                 be clipped: ratio as algorithm 1 writes it, surrogate as its code does it (PPO's)
//   cumulative    w_t k_t - w_t G_{t+1} log q_t, equation 5
//   exact         w_{t-1} k_t - (w_{t+1} r_{t+1} + w_{t+2} r_{t+2} + ...) log q_t: each reward weighs as much as its
//                 own tokens are likelier under q than under b
//
// With single_step off there is no k, and returns begin at t instead of t + 1. teacher_share and language_model_weight
// are for who samples and sums. The optional language-model loss is hard_label_loss (losses.h) on plain text.
// Throws std::invalid_argument: shapes and types; single_step without single_step_BT; a clip without single_step
// weights, of which it is defined; a clip_range outside 0 .. 1; a student's or b's log-probability that is not finite.
at::Tensor minillm_losses(const SampledSequences& sequences, const MiniLlmOptions& options);

}  // namespace pare
