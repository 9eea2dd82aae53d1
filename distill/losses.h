// Distillation losses of single tokens: what a student's logits lack of a teacher's, or of a label.
//
// Each function takes the student's logits [T, V] (float32 or float64, finite or -inf, with gradient) and returns one
// loss per token, [T] of the same type, in nats, before averaging; mean_loss averages and leaves out ignored tokens.
// Against a truncated teacher (teacher_logits.h) the K + 1 outcomes are compared. Below, p are the teacher's
// probabilities of the outcomes and q the student's, both of logits / temperature; sums run over outcomes.
//
// Gradients are autograd's, of formulas in logarithms (log_softmax, log-add-exp). Logits of any finite size give finite
// losses and gradients, and -inf gives no NaN: an outcome with a mass of exactly 0 (a logit of -inf) counts with
// log 2^-149 where its logarithm is needed (rows.h: kLogOfNoMass) and has no gradient there. What follows for each loss
// is said with it. NaN and +inf are not looked for, and give NaN.
//
// The same bits for any number of threads: rows.h says why.
//
// All throw std::invalid_argument as TeacherLogits::log_probs and student_log_probs do: shapes, types, temperatures.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "distill/options.h"
#include "distill/teacher_logits.h"

namespace pare {

// The label of a token that has no part in the loss.
inline constexpr int64_t kIgnoredLabel = -100;

// log softmax(logits)[label] of each token, [T], of float32 or float64 logits [T, V], with gradient; 0 where the label
// is kIgnoredLabel. labels_T int64 [T]. A label whose logit is -inf gives kLogOfNoMass and no gradient.
// Throws std::invalid_argument: shapes and types, a label outside 0 .. V - 1 (which).
at::Tensor label_log_probs(const at::Tensor& logits_TV, const at::Tensor& labels_T);

// -log q(label): on text, or on what the teacher has written (sequence-level distillation: Kim and Rush,
// arXiv 1606.07947, section 3.2). Throws as label_log_probs does.
at::Tensor hard_label_loss(const at::Tensor& student_TV, const at::Tensor& labels_T);

struct SoftLabelOptions {
  double temperature = 1.0;
  double label_weight = 0.0;  // lambda; 0: labels are not read
  SoftForm form = SoftForm::divergence;
};

// temperature^2 KL(p || q) + lambda (-log softmax(logits)[label]), Hinton, Vinyals and Dean, arXiv 1503.02531,
// section 2: the square keeps the soft part's gradient at one size when the temperature changes, and the label is seen
// at temperature 1. form cross_entropy: -sum p log q in place of KL, the same gradient.
// Masses of 0: as forward_kl. Throws also as label_log_probs does.
at::Tensor soft_label_loss(const at::Tensor& student_TV, const TeacherLogits& teacher, const at::Tensor& labels_T,
                           const SoftLabelOptions& options);

// KL(p || q) = sum p (log p - log q). p = 0 adds 0; q = 0 beside p > 0 adds p (log p - kLogOfNoMass) in place of
// infinity.
at::Tensor forward_kl(const at::Tensor& student_TV, const TeacherLogits& teacher, double temperature = 1.0);

// -log q(label | tail) where a truncated teacher's tail holds the label, and 0 elsewhere: at temperature 1, whatever the
// others'. What merging has taken from KL(p || q) is p(tail) KL(p(. | tail) || q(. | tail)); over labels that are drawn
// from p at temperature 1 this has the same gradient in expectation, so that forward_kl at temperature 1 plus this is an
// unbiased estimate of forward_kl against all logits, but for a constant. A text's own tokens, or those drawn in another
// way, stand for such labels, the better the more the teacher would write so. (The bias of
// truncation, and sampling against it: Anshumann et al., arXiv 2503.16870, who draw every token that they store.)
// A label whose logit is -inf: label_log_probs. Throws also as that does.
at::Tensor tail_label_loss(const at::Tensor& student_TV, const TeacherLogits& teacher, const at::Tensor& labels_T);

// KL(q || p) = sum q (log q - log p), token by token (the sum over the vocabulary of MiniLLM, arXiv 2306.08543,
// equation 7). q = 0 adds 0; p = 0 beside q > 0 adds q (log q - kLogOfNoMass) in place of infinity, so that the
// gradient still takes mass away from it.
at::Tensor reverse_kl(const at::Tensor& student_TV, const TeacherLogits& teacher, double temperature = 1.0);

// Generalized Jensen-Shannon, Agarwal et al., arXiv 2306.13649 (GKD), equation 1:
// beta KL(p || m) + (1 - beta) KL(q || m), m = beta p + (1 - beta) q. At beta 0 and 1, where that is 0, forward_kl and
// reverse_kl, as TRL's GKD trainer has it: they are its limits after division by beta and by 1 - beta.
// 0 < beta < 1: never above the entropy of (beta, 1 - beta); p = 0 or q = 0 adds what the formula says, without excess.
// Throws also for beta outside 0 .. 1.
at::Tensor jensen_shannon(const at::Tensor& student_TV, const TeacherLogits& teacher, double beta,
                          double temperature = 1.0);

// KL(p || skew p + (1 - skew) q), Ko et al., arXiv 2402.03898 (DistiLLM), section 3.1; skew 0 is forward_kl. For
// skew > 0 at most -log skew, and masses of 0 add what the formula says. Throws also for skew outside 0 .. 1.
at::Tensor skew_kl(const at::Tensor& student_TV, const TeacherLogits& teacher, double skew, double temperature = 1.0);

// KL(q || skew q + (1 - skew) p), ibid.; skew 0 is reverse_kl. Bounds and throws as skew_kl.
at::Tensor skew_reverse_kl(const at::Tensor& student_TV, const TeacherLogits& teacher, double skew,
                           double temperature = 1.0);

// Total variation, (1/2) sum |p - q|: 0 .. 1, exact for masses of 0. Where p = q an outcome's gradient is 0.
at::Tensor total_variation(const at::Tensor& student_TV, const TeacherLogits& teacher, double temperature = 1.0);

// SLIM's weights: Raman et al., "For Distillation, Tokens Are Not All You Need" (openreview 2fc5GOPYip). Of each
// sequence i 1 - exp(-S_i / t_i), S_i and t_i the means of the student's and the teacher's cross-entropy over its
// tokens with a label: near 0 for a student that is surer of the text than the teacher, near 1 for one that is far from
// it. t_i = 0 gives 1, with S_i = 0 too 0. Returns float64 [T], the weight of each token's sequence, without gradient:
// weights are constants of a step. Summed token by token in float64.
//
// losses [T]: hard_label_loss of the student and of the teacher (-label_log_probs of its logits), whole sequences.
// labels_T and sequences_T int64 [T]: of which sequence, 0 .. N - 1, a token is.
// Throws std::invalid_argument: shapes, types, a negative sequence, a loss that is negative or not finite where there
// is a label.
at::Tensor slim_weights(const at::Tensor& student_losses_T, const at::Tensor& teacher_losses_T,
                        const at::Tensor& labels_T, const at::Tensor& sequences_T);

// The number of logits that SLIM sees: share of the vocabulary, rounded up.
int64_t num_slim_logits(int64_t num_vocabulary, double share);

struct SlimOptions {
  double temperature = 1.0;
  double share = 0.05;  // of the vocabulary; 0 < share <= 1
  double weight = 1.0;  // alpha
};

// -log q(label) + alpha w KL(p || q), ibid., over the teacher's num_slim_logits largest logits and the tail; w of
// slim_weights. Keeping the tail as an outcome is this project's choice: it keeps KL a divergence of distributions.
// weights_T floating point [T]. Masses of 0: as forward_kl.
// Throws also as label_log_probs does, and for a truncated teacher that holds fewer tokens than num_slim_logits.
at::Tensor slim_loss(const at::Tensor& student_TV, const TeacherLogits& teacher, const at::Tensor& labels_T,
                     const at::Tensor& weights_T, const SlimOptions& options);

// The loss that options name. slim alone reads slim_weights_T. Throws as the function of that loss does; for minillm,
// which is no loss of given tokens.
at::Tensor token_losses(const DistillLossOptions& options, const at::Tensor& student_TV, const TeacherLogits& teacher,
                        const at::Tensor& labels_T, const at::Tensor& slim_weights_T = {});

// The mean of the losses over the tokens whose label is not kIgnoredLabel, a scalar with gradient; what the others hold
// has no part in it, be it NaN. num_tokens: what the sum is divided by instead, so that chunks of a batch, each divided
// by the batch's count, add to its mean; a chunk may then be ignored altogether.
// losses_T floating point [T]; labels_T int64 [T].
// Throws std::invalid_argument: shapes and types; num_tokens below 1; without it, no label at all.
at::Tensor mean_loss(const at::Tensor& losses_T, const at::Tensor& labels_T,
                     std::optional<int64_t> num_tokens = std::nullopt);

}  // namespace pare
