#include "compress/train/train_minillm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <stdexcept>
#include <utility>

#include "distill/losses.h"
#include "distill/minillm.h"

namespace pare::compress {
namespace {

// The id at which the cumulative sum of exp(log_probs_V) passes share of the whole.
int64_t draw(const at::Tensor& log_probs_V, double share) {
  const at::Tensor probabilities_V = log_probs_V.to(at::kCPU, at::kDouble).exp().contiguous();
  const double* const p = probabilities_V.const_data_ptr<double>();
  const int64_t size = probabilities_V.size(0);
  double whole = 0.0;
  for (int64_t v = 0; v < size; ++v) whole += p[v];
  double sum = 0.0;
  int64_t last = 0;
  for (int64_t v = 0; v < size; ++v) {
    if (p[v] <= 0.0) continue;
    last = v;
    sum += p[v];
    if (sum > share * whole) return v;
  }
  return last;
}

at::Tensor last_rows(const at::Tensor& normalized_BTD) {
  return normalized_BTD.select(1, normalized_BTD.size(1) - 1);
}

// Values of a pass over all rows without gradients: of each row's label, and the divergence of the row.
struct Rewarded {
  at::Tensor student_R, teacher_R, single_step_R;
};

Rewarded measure(const TokenBatch& batch, const at::Tensor& hidden_BTD, const StudentModel& student, Teacher& teacher) {
  const at::NoGradGuard no_grad;
  const FrozenModel frozen = student.frozen_outer();
  const at::Tensor labels_R = batch.labels_BT.reshape({-1});
  const at::Tensor hidden_RD = hidden_BTD.reshape({-1, hidden_BTD.size(-1)});
  const auto zeros = [&] { return at::zeros({batch.num_tokens()}, hidden_BTD.options().dtype(at::kFloat)); };
  Rewarded rewarded{zeros(), zeros(), zeros()};
  for (int64_t first = 0; first < batch.num_tokens(); first += kHeadTokens) {
    const int64_t count = std::min(kHeadTokens, batch.num_tokens() - first);
    const at::Tensor labels = labels_R.narrow(0, first, count);
    if (!labels.ne(distill::kIgnoredLabel).any().item<bool>()) continue;
    const at::Tensor logits_RV =
        frozen.logits(frozen.functions->final_norm(frozen.gain_D, hidden_RD.narrow(0, first, count)));
    rewarded.student_R.narrow(0, first, count).copy_(distill::label_log_probs(logits_RV, labels));
    rewarded.teacher_R.narrow(0, first, count).copy_(teacher.label_losses(first, labels).neg());
    rewarded.single_step_R.narrow(0, first, count).copy_(distill::reverse_kl(logits_RV, teacher.logits(first, count)));
  }
  return rewarded;
}

}  // namespace

Continuations sample_continuations(const at::Tensor& prompts_BT, int64_t num_new, double teacher_share,
                                   const std::vector<int32_t>& end_tokens, uint64_t seed, int64_t num_ids,
                                   const FrozenModel& student, const LiveTeacher& teacher) {
  const at::NoGradGuard no_grad;
  const int64_t batch = prompts_BT.size(0);
  const int64_t num_prompt = prompts_BT.size(1);
  if (num_prompt < 1 || num_new < 1) {
    throw std::invalid_argument(
        "sample_continuations: expected at least one token of prompt and one to sample, found " +
        std::to_string(num_prompt) + " and " + std::to_string(num_new));
  }
  const int64_t num_both = std::min(student.functions->description().vocabulary_size,
                                    teacher.model().functions->description().vocabulary_size);
  if (num_ids < 1 || num_ids > num_both) {
    throw std::invalid_argument("sample_continuations: expected 1 to " + std::to_string(num_both) +
                                " ids, which student and teacher both have, found " + std::to_string(num_ids));
  }
  const int64_t num_tokens = num_prompt + num_new;
  Continuations samples{at::zeros({batch, num_tokens}, at::kLong), at::zeros({batch, num_tokens}, at::kBool),
                        at::zeros({batch, num_tokens}, at::kFloat)};
  samples.ids_BT.narrow(1, 0, num_prompt).copy_(prompts_BT);
  std::vector<bool> is_over(static_cast<size_t>(batch), false);
  std::vector<KeyValues> student_earlier, teacher_earlier;
  const at::Device device = student.functions->device();
  at::Tensor fed_BT = prompts_BT;
  std::mt19937_64 random(seed);
  for (int64_t t = num_prompt; t < num_tokens; ++t) {
    const auto next_log_probs = [&](const FrozenModel& model, std::vector<KeyValues>& earlier) {
      const at::Tensor logits_BV = model.logits(last_rows(model.normalized(fed_BT.to(device), &earlier)));
      return at::log_softmax(logits_BV.narrow(1, 0, num_ids), -1);
    };
    const at::Tensor q_BV = next_log_probs(student, student_earlier);
    const at::Tensor p_BV = next_log_probs(teacher.model(), teacher_earlier);
    const at::Tensor mixed_BV = distill::teacher_mixed_log_probs(p_BV, q_BV, teacher_share);
    fed_BT = at::empty({batch, 1}, at::kLong);
    for (int64_t b = 0; b < batch; ++b) {
      const double share = static_cast<double>(random() >> 11) * 0x1.0p-53;
      const int64_t id = draw(mixed_BV[b], share);
      fed_BT.data_ptr<int64_t>()[b] = id;
      samples.ids_BT.data_ptr<int64_t>()[b * num_tokens + t] = id;
      if (is_over[static_cast<size_t>(b)]) continue;
      samples.mask_BT.data_ptr<bool>()[b * num_tokens + t - 1] = true;
      samples.behaviour_BT.data_ptr<float>()[b * num_tokens + t - 1] = mixed_BV[b][id].item<float>();
      is_over[static_cast<size_t>(b)] = std::find(end_tokens.begin(), end_tokens.end(), id) != end_tokens.end();
    }
  }
  return samples;
}

BatchLoss train_on_samples(const Continuations& given, const distill::MiniLlmOptions& options, bool recompute,
                           int64_t num_step_labels, LiveTeacher& teacher, StudentModel& student) {
  const at::Device device = student.functions().device();
  const Continuations samples{given.ids_BT.to(device), given.mask_BT.to(device), given.behaviour_BT.to(device)};
  const int64_t batch_size = samples.ids_BT.size(0);
  const int64_t num_tokens = samples.ids_BT.size(1);
  TokenBatch batch{samples.ids_BT, at::full_like(samples.ids_BT, distill::kIgnoredLabel), {}};
  batch.labels_BT.narrow(1, 0, num_tokens - 1).copy_(samples.ids_BT.narrow(1, 1, num_tokens - 1));
  batch.labels_BT.masked_fill_(samples.mask_BT.logical_not(), distill::kIgnoredLabel);
  teacher.see(batch);

  double divergence = 0.0;
  // d loss / d log q(label) and d loss / d KL of each row are known once all rewards are.
  const auto make_loss = [&](const at::Tensor& hidden_BTD) -> TokenLoss {
    const Rewarded rewarded = measure(batch, hidden_BTD, student, teacher);
    const auto shaped = [&](const at::Tensor& values_R) { return values_R.view({batch_size, num_tokens}); };
    distill::SampledSequences sequences;
    sequences.student_BT = shaped(rewarded.student_R).detach().requires_grad_(true);
    sequences.teacher_BT = shaped(rewarded.teacher_R);
    sequences.behaviour_BT = samples.behaviour_BT;
    sequences.mask_BT = samples.mask_BT;
    sequences.single_step_BT = shaped(rewarded.single_step_R).detach().requires_grad_(true);
    divergence =
        rewarded.single_step_R.masked_select(samples.mask_BT.reshape({-1})).to(at::kDouble).sum().item<double>();
    const std::vector<at::Tensor> slopes = torch::autograd::grad({distill::minillm_losses(sequences, options).sum()},
                                                                 {sequences.student_BT, sequences.single_step_BT}, {},
                                                                 false, false, /*allow_unused=*/true);
    const auto flat = [&](const at::Tensor& slope_BT) {
      return slope_BT.defined() ? slope_BT.reshape({-1}) : at::zeros_like(rewarded.student_R);
    };
    return [&teacher, of_label = flat(slopes[0]), of_divergence = flat(slopes[1])](
               const at::Tensor& logits_RV, const at::Tensor& labels_R, int64_t first) {
      const int64_t count = labels_R.size(0);
      return distill::label_log_probs(logits_RV, labels_R)
          .mul(of_label.narrow(0, first, count))
          .add(distill::reverse_kl(logits_RV, teacher.logits(first, count)).mul(of_divergence.narrow(0, first, count)));
    };
  };
  BatchLoss loss = train_on(batch, make_loss, recompute, num_step_labels, student);
  loss.sum = divergence;
  return loss;
}

BatchLoss train_on_text(const TokenBatch& batch, double weight, bool recompute, int64_t num_step_labels,
                        StudentModel& student) {
  const auto make_loss = [&](const at::Tensor&) -> TokenLoss {
    return [weight](const at::Tensor& logits_RV, const at::Tensor& labels_R, int64_t) {
      return distill::hard_label_loss(logits_RV, labels_R).mul(weight);
    };
  };
  return train_on(batch, make_loss, recompute, num_step_labels, student);
}

}  // namespace pare::compress
