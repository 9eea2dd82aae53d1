#include "distill/minillm.h"

#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include <sstream>
#include <stdexcept>
#include <string>

#include "distill/rows.h"
#include "quant/checked_tensor.h"

namespace pare::distill {
namespace {

void check_like(const at::Tensor& tensor, const at::Tensor& like, at::ScalarType type, const std::string& name) {
  if (tensor.defined() && tensor.sizes() == like.sizes() && tensor.scalar_type() == type) return;
  throw std::invalid_argument(name + ": expected " + at::toString(type) + " values of shape " +
                              quant::shape_text(like) + ", found " + quant::found_text(tensor));
}

void check_matrix(const at::Tensor& matrix, const std::string& name) {
  if (matrix.defined() && matrix.dim() == 2 && matrix.numel() > 0 &&
      (matrix.scalar_type() == at::kFloat || matrix.scalar_type() == at::kDouble)) {
    return;
  }
  throw std::invalid_argument(name + ": expected a float32 or float64 matrix [sequences, tokens], found " +
                              quant::found_text(matrix));
}

void check_finite_where(const at::Tensor& logs, const at::Tensor& mask, const std::string& name) {
  if (logs.detach().isfinite().logical_or(mask.logical_not()).all().item<bool>()) return;
  throw std::invalid_argument(name + ": expected finite values where a token was sampled, found another");
}

void check(const SampledSequences& sequences) {
  const at::Tensor& student = sequences.student_BT;
  check_matrix(student, "student's log-probabilities");
  check_like(sequences.teacher_BT, student, student.scalar_type(), "teacher's log-probabilities");
  check_like(sequences.behaviour_BT, student, student.scalar_type(), "behaviour's log-probabilities");
  check_like(sequences.mask_BT, student, at::kBool, "mask");
  check_finite_where(student, sequences.mask_BT, "student's log-probabilities");
  check_finite_where(sequences.behaviour_BT, sequences.mask_BT, "behaviour's log-probabilities");
}

// Returns the values with 0, and no gradient, where masked.
at::Tensor only_where(const at::Tensor& values, const at::Tensor& mask) {
  return values.masked_fill(mask.logical_not(), 0.0);
}

// Returns the sums of a row's values from this one on, or of those after it.
at::Tensor sums_from_here(const at::Tensor& values_BT, bool after) {
  const at::Tensor sums = values_BT.flip(1).cumsum(1).flip(1);
  return after ? sums.sub(values_BT) : sums;
}

// Returns log q - log b of each token, 0 where masked, with the student's gradient.
at::Tensor log_ratios(const SampledSequences& sequences) {
  return only_where(sequences.student_BT.sub(sequences.behaviour_BT.detach()), sequences.mask_BT);
}

// Returns the products of the ratios before each token.
at::Tensor weights_before(const at::Tensor& log_ratios_BT) {
  return log_ratios_BT.cumsum(1).sub(log_ratios_BT).exp();
}

// Returns return times ratio, clipped. The gradient of a clipped ratio is 0.
at::Tensor clipped(const at::Tensor& returns_BT, const at::Tensor& ratio_BT, const MiniLlmOptions& options) {
  const double low = 1.0 - options.clip_range, high = 1.0 + options.clip_range;
  switch (options.clip) {
    case RatioClip::none:
      break;
    case RatioClip::ratio:
      return returns_BT.mul(ratio_BT.clamp_max(high));
    case RatioClip::surrogate:
      // This is the lower product. The return's sign chooses it, because at::minimum gives each of two equal products
      // half the gradient.
      return returns_BT.mul(at::where(returns_BT.gt(0.0), ratio_BT.clamp_max(high), ratio_BT.clamp_min(low)));
  }
  return returns_BT.mul(ratio_BT);
}

void check(const MiniLlmOptions& options) {
  if (options.clip != RatioClip::none && options.weights != ImportanceWeights::single_step) {
    throw std::invalid_argument("ratio_clip " + std::string(runtime::name_of(options.clip)) +
                                ": expected importance_weights " +
                                std::string(runtime::name_of(ImportanceWeights::single_step)) +
                                ", whose ratio it clips, found " + std::string(runtime::name_of(options.weights)) +
                                "; set ratio_clip to " + std::string(runtime::name_of(RatioClip::none)));
  }
  if (!(options.clip_range >= 0.0 && options.clip_range <= 1.0)) {
    std::ostringstream message;
    message << "clip_range: expected a number from 0 to 1, found " << options.clip_range;
    throw std::invalid_argument(message.str());
  }
}

}  // namespace

at::Tensor teacher_mixed_log_probs(const at::Tensor& teacher, const at::Tensor& student, double teacher_share) {
  if (!teacher.defined() || !student.defined() || teacher.sizes() != student.sizes() ||
      teacher.scalar_type() != student.scalar_type() || !teacher.is_floating_point()) {
    throw std::invalid_argument("mixture of teacher and student: expected log-probabilities of one shape and type, " +
                                std::string("found ") + quant::found_text(teacher) + " and " +
                                quant::found_text(student));
  }
  if (!(teacher_share >= 0.0 && teacher_share <= 1.0)) {
    std::ostringstream message;
    message << "teacher_share: expected a number from 0 to 1, found " << teacher_share;
    throw std::invalid_argument(message.str());
  }
  return log_of_mixture(student.detach(), teacher.detach(), teacher_share);
}

at::Tensor minillm_rewards(const SampledSequences& sequences, std::optional<double> reward_limit) {
  check(sequences);
  const at::Tensor rewards_BT =
      only_where(finite_logs(sequences.teacher_BT.detach()).sub(sequences.student_BT.detach()), sequences.mask_BT);
  return reward_limit ? rewards_BT.clamp(-*reward_limit, *reward_limit) : rewards_BT;
}

at::Tensor minillm_returns(const at::Tensor& rewards_BT, const at::Tensor& mask_BT, bool after, bool normalized) {
  check_matrix(rewards_BT, "rewards");
  check_like(mask_BT, rewards_BT, at::kBool, "mask");
  const at::Tensor sums_BT = sums_from_here(rewards_BT, after);
  if (!normalized) return sums_BT;
  return sums_BT.div(sums_from_here(mask_BT.to(rewards_BT.scalar_type()), after).clamp_min(1.0));
}

at::Tensor minillm_weights(const SampledSequences& sequences, ImportanceWeights weights) {
  check(sequences);
  const at::Tensor logs_BT = log_ratios(sequences).detach();
  switch (weights) {
    case ImportanceWeights::none:
      break;
    case ImportanceWeights::single_step:
      return logs_BT.exp();
    case ImportanceWeights::cumulative:
    case ImportanceWeights::exact:
      return logs_BT.cumsum(1).exp();
  }
  return at::ones_like(logs_BT);
}

at::Tensor minillm_losses(const SampledSequences& sequences, const MiniLlmOptions& options) {
  check(options);
  const at::Tensor rewards_BT = minillm_rewards(sequences, options.reward_limit);  // checks the sequences
  const at::Tensor& mask_BT = sequences.mask_BT;
  if (options.single_step) {
    check_like(sequences.single_step_BT, rewards_BT, rewards_BT.scalar_type(), "reverse KL of single steps");
  }
  const at::Tensor weights_BT = minillm_weights(sequences, options.weights);
  const bool exact = options.weights == ImportanceWeights::exact, after = options.single_step;
  const at::Tensor returns_BT =
      minillm_returns(exact ? rewards_BT.mul(weights_BT) : rewards_BT, mask_BT, after, options.length_normalization);
  const at::Tensor student_BT = only_where(sequences.student_BT, mask_BT);
  at::Tensor losses_BT;
  switch (options.weights) {
    case ImportanceWeights::none:
    case ImportanceWeights::exact:
      losses_BT = returns_BT.mul(student_BT).neg();
      break;
    case ImportanceWeights::single_step:
      losses_BT = clipped(returns_BT, log_ratios(sequences).exp(), options).neg();
      break;
    case ImportanceWeights::cumulative:
      losses_BT = returns_BT.mul(weights_BT).mul(student_BT).neg();
      break;
  }
  if (options.single_step) {
    const at::Tensor of_step_BT = exact ? weights_before(log_ratios(sequences).detach()) : weights_BT;
    losses_BT = losses_BT.add(only_where(sequences.single_step_BT, mask_BT).mul(of_step_BT));
  }
  return only_where(losses_BT, mask_BT);
}

}  // namespace pare::distill
