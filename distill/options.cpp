#include "distill/options.h"

namespace pare::distill {

void DistillLossOptions::fields(runtime::FieldVisitor& visit) {
  visit(
      "loss", loss,
      "The student is trained to lower this loss. `hard_label` is the cross-entropy on the text and needs no teacher. "
      "`soft_label` adds it to a divergence from the teacher. `minillm` trains on sequences that the student writes "
      "itself. The others compare the distributions of teacher and student.");
  visit("temperature", temperature, {.low = 1e-3, .high = 1e3},
        "The logits of teacher and student are divided by this. `hard_label` and `minillm` do not read it.");
  visit("label_weight", label_weight, {.low = 0.0, .high = 1e3},
        "With `loss: soft_label`, the cross-entropy on the text has this weight.");
  visit("soft_form", soft_form,
        "With `loss: soft_label`, the teacher's labels count as a divergence or as a cross-entropy. Both have the same "
        "gradients.");
  visit(
      "tail_label_weight", tail_label_weight, {.low = 0.0, .high = 1e3},
      "With recorded `logits`, the text's own tokens have this weight among those that the record has merged. It needs "
      "`loss: soft_label` or `forward_kl`.");
  visit("beta", beta, {.low = 0.0, .high = 1.0},
        "With `loss: jensen_shannon`, this is the teacher's share of the mixture. It is 0, 1, or from 0.0001 to "
        "0.9999.");
  visit("skew", skew, {.low = 0.0, .high = 1.0 - kLeastShareOfMixture},
        "With `loss: skew_kl` or `skew_reverse_kl`, this is the first distribution's own share of the mixture.");
  visit("slim_share", slim_share, {.low = 1e-6, .high = 1.0},
        "With `loss: slim`, the teacher's largest logits are compared, for this share of the vocabulary.");
  visit("slim_weight", slim_weight, {.low = 0.0, .high = 1e3},
        "With `loss: slim`, the divergence has this weight next to the cross-entropy on the text.");
  visit("hidden_weight", hidden_weight, {.low = 0.0, .high = 1e3},
        "The distance from the teacher's hidden states after each block has this weight next to the loss. 0 leaves it "
        "out.");
}

void MiniLlmOptions::fields(runtime::FieldVisitor& visit) {
  visit("teacher_share", teacher_share, {.low = 0.0, .high = 1.0},
        "Sequences are drawn from a mixture in which the teacher has this share. 0 draws only from the student.");
  visit("single_step", single_step,
        "A token's own reward is its expectation over the vocabulary. With `false` it is that of the drawn token.");
  visit("length_normalization", length_normalization,
        "Later rewards count by their mean. With `false` they count by their sum.");
  visit("importance_weights", weights,
        "Weights make up for sequences that the student itself would draw otherwise. `single_step` takes the ratio of "
        "probabilities of one token, `cumulative` and `exact` the product of ratios.");
  visit("ratio_clip", clip,
        "`ratio` holds the ratio of probabilities below 1 + `clip_range`. `surrogate` is PPO's. Both need "
        "`importance_weights: single_step`.");
  visit("clip_range", clip_range, {.low = 0.0, .high = 1.0}, "The ratio may differ from 1 by this much.");
  visit("reward_limit", reward_limit, {.low = 1e-3, .high = 1e6},
        "Rewards are held within plus and minus this, in nats.");
  visit("language_model_weight", language_model_weight, {.low = 0.0, .high = 1e3},
        "The cross-entropy on the text has this weight next to the rewards. 0 leaves it out.");
}

}  // namespace pare::distill
