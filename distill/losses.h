// Distillation losses of single tokens: how far a student's logits are from a teacher's, or from a label.
//
// Each function takes the student's logits [T, V] (float32 or float64, finite or -inf, with gradient). It returns one
// loss per token, [T] of the same type, in nats, before averaging. mean_loss averages and leaves out ignored tokens.
// Against a truncated teacher (teacher_logits.h) the K + 1 outcomes are compared. Below, p are the teacher's
// probabilities of the outcomes and q the student's, both of logits / temperature. Sums run over outcomes.
//
// Gradients are autograd's, of formulas in logarithms (log_softmax, log-add-exp). Logits of any finite size give finite
// losses and gradients, and -inf gives no NaN. An outcome with a mass of exactly 0 (a logit of -inf) counts with log
// 2^-149 where its logarithm is needed (rows.h: kLogOfNoMass), and has no gradient there. Each loss says what follows
// for it. NaN and +inf are not looked for, and give NaN.
//
// Any number of threads gives the same bits; rows.h says why.
//
// All throw std::invalid_argument for shapes, types and temperatures, as TeacherLogits::log_probs and student_log_probs
// do.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "distill/options.h"
#include "distill/teacher_logits.h"

namespace pare::distill {

// The label of a token that has no part in the loss.
inline constexpr int64_t kIgnoredLabel = -100;

// Returns log softmax(logits)[label] of each token, [T], with gradient. logits_TV are float32 or float64 [T, V];
// labels_T are int64 [T]. The result is 0 where the label is kIgnoredLabel. A label whose logit is -inf gives
// kLogOfNoMass and no gradient.
// Throws std::invalid_argument for shapes and types, and for a label outside 0 .. V - 1 (the message says which).
at::Tensor label_log_probs(const at::Tensor& logits_TV, const at::Tensor& labels_T);

// Returns -log q(label). Labels are those of a text, or of what the teacher has written (sequence-level distillation:
// Kim and Rush, arXiv 1606.07947, section 3.2). Throws as label_log_probs does.
at::Tensor hard_label_loss(const at::Tensor& student_TV, const at::Tensor& labels_T);

struct SoftLabelOptions {
  double temperature = 1.0;
  double label_weight = 0.0;  // lambda; 0: labels are not read
  SoftForm form = SoftForm::divergence;
};

// Returns temperature^2 KL(p || q) + lambda (-log softmax(logits)[label]) (Hinton, Vinyals and Dean, arXiv 1503.02531,
// section 2). The square keeps the soft part's gradient at one size when the temperature changes, and the label is seen
// at temperature 1. The form cross_entropy has -sum p log q in place of KL, with the same gradient. Masses of 0 count
// as in forward_kl. Throws also as label_log_probs does.
at::Tensor soft_label_loss(const at::Tensor& student_TV, const TeacherLogits& teacher, const at::Tensor& labels_T,
                           const SoftLabelOptions& options);

// Returns KL(p || q) = sum p (log p - log q). p = 0 adds 0. q = 0 with p > 0 adds p (log p - kLogOfNoMass) in place of
// infinity.
at::Tensor forward_kl(const at::Tensor& student_TV, const TeacherLogits& teacher, double temperature = 1.0);

// Returns -log q(label | tail) where a truncated teacher's tail holds the label, and 0 elsewhere. It is always at
// temperature 1.
// Merging tokens takes p(tail) KL(p(. | tail) || q(. | tail)) from KL(p || q). Over labels that are drawn from p at
// temperature 1, this loss has the same gradient in expectation. So forward_kl at temperature 1 plus this loss is, up
// to a constant, an unbiased estimate of forward_kl against all logits. A text's own tokens, or tokens drawn in another
// way, can stand for such labels. They do so the better, the more probable the teacher finds them. (The bias of
// truncation, and sampling against it: Anshumann et al., arXiv 2503.16870, who draw every token that they store.)
// A label whose logit is -inf counts as in label_log_probs. Throws also as that does.
at::Tensor tail_label_loss(const at::Tensor& student_TV, const TeacherLogits& teacher, const at::Tensor& labels_T);

// Returns KL(q || p) = sum q (log q - log p) for each token (the sum over the vocabulary of MiniLLM, arXiv 2306.08543,
// equation 7). q = 0 adds 0. p = 0 with q > 0 adds q (log q - kLogOfNoMass) in place of infinity, so that the gradient
// still takes mass away from it.
at::Tensor reverse_kl(const at::Tensor& student_TV, const TeacherLogits& teacher, double temperature = 1.0);

// Returns the generalized Jensen-Shannon divergence (Agarwal et al., arXiv 2306.13649 (GKD), equation 1): beta KL(p ||
// m) + (1 - beta) KL(q || m), m = beta p + (1 - beta) q. At beta 0 and 1 that would be 0. There it returns forward_kl
// and reverse_kl, as TRL's GKD trainer does: they are its limits after division by beta and by 1 - beta.
// For 0 < beta < 1 it is never above the entropy of (beta, 1 - beta), and masses of 0 add exactly what the formula
// says. Throws also for beta outside 0 .. 1.
at::Tensor jensen_shannon(const at::Tensor& student_TV, const TeacherLogits& teacher, double beta,
                          double temperature = 1.0);

// Returns KL(p || skew p + (1 - skew) q) (Ko et al., arXiv 2402.03898 (DistiLLM), section 3.1). Skew 0 is forward_kl.
// For skew > 0 it is at most -log skew, and masses of 0 add what the formula says. Throws also for skew outside 0 .. 1.
at::Tensor skew_kl(const at::Tensor& student_TV, const TeacherLogits& teacher, double skew, double temperature = 1.0);

// Returns KL(q || skew q + (1 - skew) p), ibid. Skew 0 is reverse_kl. Has the bounds of skew_kl and throws as it does.
at::Tensor skew_reverse_kl(const at::Tensor& student_TV, const TeacherLogits& teacher, double skew,
                           double temperature = 1.0);

// Returns the total variation, (1/2) sum |p - q|, in 0 .. 1 and exact for masses of 0. Where p = q an outcome's
// gradient is 0.
at::Tensor total_variation(const at::Tensor& student_TV, const TeacherLogits& teacher, double temperature = 1.0);

// Returns SLIM's weights (Raman et al., "For Distillation, Tokens Are Not All You Need", openreview 2fc5GOPYip). The
// weight of sequence i is 1 - exp(-S_i / t_i). S_i and t_i are the means of the student's and the teacher's
// cross-entropy over its tokens with a label. It is near 0 for a student that is surer of the text than the teacher,
// and near 1 for one that is far from it. t_i = 0 gives 1, or 0 if S_i = 0 too. The result is float64 [T], the weight
// of each token's sequence, without gradient, because weights are constants of a step. Sums are taken token by token in
// float64.
//
// student_losses_T and teacher_losses_T, [T], are the hard_label_loss of the student and of the teacher
// (-label_log_probs of its logits), of whole sequences. labels_T is int64 [T]. sequences_T, int64 [T], is the sequence,
// 0 .. N - 1, of each token.
// Throws std::invalid_argument for shapes, types, a negative sequence, and a loss that is negative or not finite where
// there is a label.
at::Tensor slim_weights(const at::Tensor& student_losses_T, const at::Tensor& teacher_losses_T,
                        const at::Tensor& labels_T, const at::Tensor& sequences_T);

// Returns the number of logits that SLIM sees: `share` of the vocabulary, rounded up.
int64_t num_slim_logits(int64_t num_vocabulary, double share);

struct SlimOptions {
  double temperature = 1.0;
  double share = 0.05;  // the compared share of the vocabulary; 0 < share <= 1
  double weight = 1.0;  // alpha
};

// Returns -log q(label) + alpha w KL(p || q), ibid., over the teacher's num_slim_logits largest logits and the tail. w
// are the slim_weights. Keeping the tail as an outcome is this project's choice: it keeps KL a divergence of
// distributions. weights_T is floating point [T]. Masses of 0 count as in forward_kl.
// Throws also as label_log_probs does, and for a truncated teacher that holds fewer tokens than num_slim_logits.
at::Tensor slim_loss(const at::Tensor& student_TV, const TeacherLogits& teacher, const at::Tensor& labels_T,
                     const at::Tensor& weights_T, const SlimOptions& options);

// Returns the loss that the options name. Only slim reads slim_weights_T. Throws as the function of that loss does, and
// for minillm, which is no loss of given tokens.
at::Tensor token_losses(const DistillLossOptions& options, const at::Tensor& student_TV, const TeacherLogits& teacher,
                        const at::Tensor& labels_T, const at::Tensor& slim_weights_T = {});

// Returns the mean of the losses over the tokens whose label is not kIgnoredLabel, a scalar with gradient. The losses
// of other tokens have no part in it, even if they are NaN. num_tokens is what the sum is divided by instead. Chunks of
// a batch, each divided by the batch's count, then add up to its mean; a chunk may even have no label.
// losses_T is floating point [T] and labels_T is int64 [T].
// Throws std::invalid_argument for shapes and types, num_tokens below 1, and, without num_tokens, no label at all.
at::Tensor mean_loss(const at::Tensor& losses_T, const at::Tensor& labels_T,
                     std::optional<int64_t> num_tokens = std::nullopt);

}  // namespace pare::distill
