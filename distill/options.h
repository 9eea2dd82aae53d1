// The options of the distillation losses and their defaults, in one place. It is free of LibTorch, so that recipes can
// be read without it.
#pragma once

#include <array>
#include <optional>

#include "runtime/format/fields.h"

namespace pare::distill {

// The loss that a student is trained to lower (losses.h). minillm is in minillm.h and works on sequences that the
// student samples itself.
enum class DistillLoss {
  hard_label,
  soft_label,
  forward_kl,
  reverse_kl,
  jensen_shannon,
  skew_kl,
  skew_reverse_kl,
  total_variation,
  slim,
  minillm
};
inline std::span<const runtime::EnumName<DistillLoss>> enum_names(DistillLoss) {
  static constexpr std::array<runtime::EnumName<DistillLoss>, 10> kNames = {
      {{DistillLoss::hard_label, "hard_label"},
       {DistillLoss::soft_label, "soft_label"},
       {DistillLoss::forward_kl, "forward_kl"},
       {DistillLoss::reverse_kl, "reverse_kl"},
       {DistillLoss::jensen_shannon, "jensen_shannon"},
       {DistillLoss::skew_kl, "skew_kl"},
       {DistillLoss::skew_reverse_kl, "skew_reverse_kl"},
       {DistillLoss::total_variation, "total_variation"},
       {DistillLoss::slim, "slim"},
       {DistillLoss::minillm, "minillm"}}};
  return kNames;
}

// Soft labels as a divergence or as a cross-entropy. The latter is larger by the teacher's entropy; gradients are the
// same.
enum class SoftForm { divergence, cross_entropy };
inline std::span<const runtime::EnumName<SoftForm>> enum_names(SoftForm) {
  static constexpr std::array<runtime::EnumName<SoftForm>, 2> kNames = {
      {{SoftForm::divergence, "divergence"}, {SoftForm::cross_entropy, "cross_entropy"}}};
  return kNames;
}

// The least share that either distribution may have in a mixture that a training compares with (beta, 1 - beta, 1 -
// skew). Logits are float32, and a logarithm of 8 to 16 is rounded by up to 2^-21 there. The mixture differs from the
// distribution that it is compared with by as much as the other one's share s. So do the logarithms whose difference is
// an outcome's gradient. Hence 2^-21 / s of it is rounding: 0.5 % at this share, half of it at 1e-6.
inline constexpr double kLeastShareOfMixture = 1e-4;

struct DistillLossOptions {
  DistillLoss loss = DistillLoss::soft_label;
  double temperature = 1.0;   // for student and teacher alike, in every loss but hard_label and minillm; > 0
  double label_weight = 0.1;  // soft_label: factor of the cross-entropy on the true label
  SoftForm soft_form = SoftForm::divergence;
  // soft_label, forward_kl: factor of tail_label_loss, in which the true label stands for tokens that a truncated
  // teacher has merged.
  double tail_label_weight = 0.0;
  double beta = 0.5;         // jensen_shannon: the teacher's share of the mixture; 0 is forward_kl, 1 reverse_kl
  double skew = 0.1;         // skew_kl, skew_reverse_kl: share of the divergence's first argument in the mixture
  double slim_share = 0.05;  // slim: share of the vocabulary, the teacher's largest logits
  double slim_weight = 1.0;  // slim: factor of the divergence beside the cross-entropy on the true label
  // For any loss with a teacher: factor of the distance of the hidden states after each block from the teacher's
  // (hidden_states.h), averaged over blocks. 0: none.
  double hidden_weight = 0.0;

  void fields(runtime::FieldVisitor& visit);
};

// The correction for sequences that come from the mixture of teacher and student, or from an older student, instead of
// the trained student. minillm.h says what bias each has. none: no correction. single_step: the ratio of this token's
// probabilities. cumulative: the product of the ratios up to this token. exact: every reward has the product of the
// ratios up to its own token.
enum class ImportanceWeights { none, single_step, cumulative, exact };
inline std::span<const runtime::EnumName<ImportanceWeights>> enum_names(ImportanceWeights) {
  static constexpr std::array<runtime::EnumName<ImportanceWeights>, 4> kNames = {
      {{ImportanceWeights::none, "none"},
       {ImportanceWeights::single_step, "single_step"},
       {ImportanceWeights::cumulative, "cumulative"},
       {ImportanceWeights::exact, "exact"}}};
  return kNames;
}

// The clipping of the ratio. none: it is not clipped. ratio: min(ratio, 1 + range). surrogate: PPO's, the lower of
// return times ratio and return times the ratio held within 1 - range .. 1 + range.
enum class RatioClip { none, ratio, surrogate };
inline std::span<const runtime::EnumName<RatioClip>> enum_names(RatioClip) {
  static constexpr std::array<runtime::EnumName<RatioClip>, 3> kNames = {
      {{RatioClip::none, "none"}, {RatioClip::ratio, "ratio"}, {RatioClip::surrogate, "surrogate"}}};
  return kNames;
}

// Defaults are those of the paper (arXiv 2306.08543). Its published code holds rewards within the same limit, but
// doubles them before. Its loss on plain text is half the cross-entropy on it and half that on the teacher's soft
// labels. minillm.h says what else it does otherwise.
struct MiniLlmOptions {
  double teacher_share = 0.2;        // the teacher's share of the distribution that sequences are sampled from; 0: the
                                     // student alone samples
  bool single_step = true;           // a token's own reward counts as its expectation over the vocabulary, not as
                                     // sampled
  bool length_normalization = true;  // the mean of later rewards instead of their sum
  ImportanceWeights weights = ImportanceWeights::single_step;
  RatioClip clip = RatioClip::surrogate;       // with single_step weights only
  double clip_range = 0.2;                     // the range of the ratio around 1
  std::optional<double> reward_limit = 100.0;  // in nats; rewards are held within +- this; none: no limit
  double language_model_weight = 1.0;          // factor of the cross-entropy on plain text beside the estimator; 0:
                                               // none

  void fields(runtime::FieldVisitor& visit);
};

}  // namespace pare::distill
