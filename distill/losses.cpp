#include "distill/losses.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "distill/rows.h"
#include "quant/checked_tensor.h"

namespace pare::distill {
namespace {

void check_integers(const at::Tensor& values_T, int64_t num_tokens, const std::string& name) {
  if (values_T.defined() && values_T.dim() == 1 && values_T.size(0) == num_tokens &&
      values_T.scalar_type() == at::kLong) {
    return;
  }
  throw std::invalid_argument(name + ": expected int64 of shape [" + std::to_string(num_tokens) +
                              "], one for each token, found " + quant::found_text(values_T));
}

void check_numbers(const at::Tensor& values_T, int64_t num_tokens, const std::string& name) {
  if (values_T.defined() && values_T.dim() == 1 && values_T.size(0) == num_tokens && values_T.is_floating_point()) {
    return;
  }
  throw std::invalid_argument(name + ": expected floating point of shape [" + std::to_string(num_tokens) +
                              "], one for each token, found " + quant::found_text(values_T));
}

void check_share(double value, const std::string& name) {
  if (value >= 0.0 && value <= 1.0) return;
  std::ostringstream message;
  message << name << ": expected a number from 0 to 1, found " << value;
  throw std::invalid_argument(message.str());
}

// The outcomes' log-probabilities, [T, outcomes]. The student's have a gradient, the teacher's have none.
struct Outcomes {
  at::Tensor student, teacher;

  Outcomes(const at::Tensor& student_TV, const TeacherLogits& of_teacher, double temperature)
      : student(of_teacher.student_log_probs(student_TV, temperature)),
        teacher(of_teacher.log_probs(temperature, student_TV.scalar_type())) {}
};

// Returns sum exp(logs) (minuend - subtrahend). The latter two must be finite, so that a mass of 0 adds 0.
at::Tensor expected_difference(const at::Tensor& logs, const at::Tensor& minuend, const at::Tensor& subtrahend) {
  return row_sums(logs.exp().mul(minuend.sub(subtrahend)));
}

at::Tensor divergence(const at::Tensor& of, const at::Tensor& from) {
  return expected_difference(of, finite_logs(of), finite_logs(from));
}

// Returns KL(of || skew of + (1 - skew) other).
at::Tensor skew_divergence(const at::Tensor& of, const at::Tensor& other, double skew) {
  if (skew == 0.0) return divergence(of, other);
  const at::Tensor finite = finite_logs(of);
  return expected_difference(of, finite, log_of_mixture(finite_logs(other), finite, skew));
}

// Returns whether each label is kIgnoredLabel, [T]. Throws std::invalid_argument for types and for a label outside the
// vocabulary.
at::Tensor ignored_labels(const at::Tensor& labels_T, int64_t num_tokens, int64_t num_vocabulary) {
  check_integers(labels_T, num_tokens, "labels");
  const at::Tensor ignored_T = labels_T.eq(kIgnoredLabel);
  const at::Tensor outside_T =
      labels_T.lt(0).logical_or(labels_T.ge(num_vocabulary)).logical_and(ignored_T.logical_not());
  if (outside_T.any().item<bool>()) {
    const int64_t token = outside_T.to(at::kByte).argmax().item<int64_t>();
    throw std::invalid_argument("labels[" + std::to_string(token) + "]: expected 0 .. " +
                                std::to_string(num_vocabulary - 1) + " or " + std::to_string(kIgnoredLabel) +
                                ", found " + std::to_string(labels_T[token].item<int64_t>()));
  }
  return ignored_T;
}

}  // namespace

at::Tensor label_log_probs(const at::Tensor& logits_TV, const at::Tensor& labels_T) {
  if (!logits_TV.defined() || logits_TV.dim() != 2 || logits_TV.numel() == 0 ||
      (logits_TV.scalar_type() != at::kFloat && logits_TV.scalar_type() != at::kDouble)) {
    throw std::invalid_argument("logits: expected a float32 or float64 matrix [tokens, vocabulary], found " +
                                quant::found_text(logits_TV));
  }
  const at::Tensor ignored_T = ignored_labels(labels_T, logits_TV.size(0), logits_TV.size(1));
  const at::Tensor known_T = labels_T.masked_fill(ignored_T, 0);
  const at::Tensor logs_T = logits_TV.log_softmax(1).gather(1, known_T.unsqueeze(1)).squeeze(1);
  return finite_logs(logs_T).masked_fill(ignored_T, 0.0);
}

at::Tensor hard_label_loss(const at::Tensor& student_TV, const at::Tensor& labels_T) {
  return label_log_probs(student_TV, labels_T).neg();
}

at::Tensor soft_label_loss(const at::Tensor& student_TV, const TeacherLogits& teacher, const at::Tensor& labels_T,
                           const SoftLabelOptions& options) {
  const Outcomes logs(student_TV, teacher, options.temperature);
  const at::Tensor soft_T = options.form == SoftForm::divergence
                                ? divergence(logs.teacher, logs.student)
                                : row_sums(logs.teacher.exp().mul(finite_logs(logs.student))).neg();
  const at::Tensor scaled_T = soft_T.mul(options.temperature * options.temperature);
  if (options.label_weight == 0.0) return scaled_T;
  return scaled_T.add(hard_label_loss(student_TV, labels_T), options.label_weight);
}

at::Tensor forward_kl(const at::Tensor& student_TV, const TeacherLogits& teacher, double temperature) {
  const Outcomes logs(student_TV, teacher, temperature);
  return divergence(logs.teacher, logs.student);
}

at::Tensor tail_label_loss(const at::Tensor& student_TV, const TeacherLogits& teacher, const at::Tensor& labels_T) {
  const at::Tensor ignored_T = ignored_labels(labels_T, teacher.num_tokens(), teacher.num_vocabulary());
  const at::Tensor in_tail_T = teacher.merges(labels_T.masked_fill(ignored_T, 0)).logical_and(ignored_T.logical_not());
  const at::Tensor tokens_N = in_tail_T.nonzero().squeeze(1);  // usually few
  const at::Tensor losses_T = at::zeros({teacher.num_tokens()}, student_TV.options().requires_grad(false));
  if (tokens_N.numel() == 0) return losses_T;
  const at::Tensor logs_N = teacher.student_tail_log_probs(student_TV, tokens_N, labels_T.index_select(0, tokens_N));
  return losses_T.index_put({tokens_N}, logs_N.neg());
}

at::Tensor reverse_kl(const at::Tensor& student_TV, const TeacherLogits& teacher, double temperature) {
  const Outcomes logs(student_TV, teacher, temperature);
  return divergence(logs.student, logs.teacher);
}

at::Tensor jensen_shannon(const at::Tensor& student_TV, const TeacherLogits& teacher, double beta, double temperature) {
  check_share(beta, "beta");
  const Outcomes logs(student_TV, teacher, temperature);
  if (beta == 0.0) return divergence(logs.teacher, logs.student);
  if (beta == 1.0) return divergence(logs.student, logs.teacher);
  const at::Tensor student = finite_logs(logs.student), of_teacher = finite_logs(logs.teacher);
  const at::Tensor mixture = log_of_mixture(student, of_teacher, beta);
  return expected_difference(logs.teacher, of_teacher, mixture)
      .mul(beta)
      .add(expected_difference(logs.student, student, mixture), 1.0 - beta);
}

at::Tensor skew_kl(const at::Tensor& student_TV, const TeacherLogits& teacher, double skew, double temperature) {
  check_share(skew, "skew");
  const Outcomes logs(student_TV, teacher, temperature);
  return skew_divergence(logs.teacher, logs.student, skew);
}

at::Tensor skew_reverse_kl(const at::Tensor& student_TV, const TeacherLogits& teacher, double skew,
                           double temperature) {
  check_share(skew, "skew");
  const Outcomes logs(student_TV, teacher, temperature);
  return skew_divergence(logs.student, logs.teacher, skew);
}

at::Tensor total_variation(const at::Tensor& student_TV, const TeacherLogits& teacher, double temperature) {
  const Outcomes logs(student_TV, teacher, temperature);
  return row_sums(logs.student.exp().sub(logs.teacher.exp()).abs()).mul(0.5);
}

at::Tensor slim_weights(const at::Tensor& student_losses_T, const at::Tensor& teacher_losses_T,
                        const at::Tensor& labels_T, const at::Tensor& sequences_T) {
  const int64_t num_tokens = student_losses_T.defined() && student_losses_T.dim() == 1 ? student_losses_T.size(0) : 0;
  check_numbers(student_losses_T, num_tokens, "student's losses");
  check_numbers(teacher_losses_T, num_tokens, "teacher's losses");
  check_integers(labels_T, num_tokens, "labels");
  check_integers(sequences_T, num_tokens, "sequences");
  const auto on_host = [](const at::Tensor& values, at::ScalarType type) {
    return values.detach().to(at::kCPU, type).contiguous();
  };
  const at::Tensor student = on_host(student_losses_T, at::kDouble), teacher = on_host(teacher_losses_T, at::kDouble);
  const at::Tensor labels = on_host(labels_T, at::kLong), sequences = on_host(sequences_T, at::kLong);
  const int64_t* sequence = sequences.const_data_ptr<int64_t>();
  int64_t num_sequences = 0;
  for (int64_t t = 0; t < num_tokens; ++t) {
    if (sequence[t] < 0 || sequence[t] >= num_tokens) {
      throw std::invalid_argument("sequences[" + std::to_string(t) + "]: expected 0 .. " +
                                  std::to_string(num_tokens - 1) + ", found " + std::to_string(sequence[t]));
    }
    num_sequences = std::max(num_sequences, sequence[t] + 1);
  }
  // Both means of a sequence are over the same tokens, so their quotient is that of the sums.
  std::vector<double> student_sum(num_sequences, 0.0), teacher_sum(num_sequences, 0.0);
  for (int64_t t = 0; t < num_tokens; ++t) {
    if (labels.const_data_ptr<int64_t>()[t] == kIgnoredLabel) continue;
    const double of_student = student.const_data_ptr<double>()[t], of_teacher = teacher.const_data_ptr<double>()[t];
    if (!(of_student >= 0.0 && of_teacher >= 0.0 && std::isfinite(of_student + of_teacher))) {
      std::ostringstream message;
      message << "losses of token " << t << ": expected finite cross-entropies of at least 0, found " << of_student
              << " of the student and " << of_teacher << " of the teacher";
      throw std::invalid_argument(message.str());
    }
    student_sum[sequence[t]] += of_student;
    teacher_sum[sequence[t]] += of_teacher;
  }
  at::Tensor weights_T = student.clone();
  double* weights = weights_T.mutable_data_ptr<double>();
  for (int64_t t = 0; t < num_tokens; ++t) {
    const double of_student = student_sum[sequence[t]], of_teacher = teacher_sum[sequence[t]];
    weights[t] = of_student == 0.0 ? 0.0 : of_teacher == 0.0 ? 1.0 : -std::expm1(-of_student / of_teacher);
  }
  return weights_T.to(student_losses_T.device());
}

int64_t num_slim_logits(int64_t num_vocabulary, double share) {
  if (!(share > 0.0 && share <= 1.0)) {
    std::ostringstream message;
    message << "slim_share: expected a number above 0 and at most 1, found " << share;
    throw std::invalid_argument(message.str());
  }
  // The product of a decimal share and a count may lie just above the whole number that is meant.
  const double exact = share * static_cast<double>(num_vocabulary), nearest = std::round(exact);
  const double count = std::abs(exact - nearest) < 1e-9 * exact ? nearest : std::ceil(exact);
  return std::max<int64_t>(1, static_cast<int64_t>(count));
}

at::Tensor slim_loss(const at::Tensor& student_TV, const TeacherLogits& teacher, const at::Tensor& labels_T,
                     const at::Tensor& weights_T, const SlimOptions& options) {
  const int64_t num_kept = num_slim_logits(teacher.num_vocabulary(), options.share);
  check_numbers(weights_T, teacher.num_tokens(), "weights of sequences");
  if (num_kept > teacher.num_kept()) {
    std::ostringstream message;
    message << "slim: expected a teacher with " << num_kept << " logits a token, " << options.share
            << " of its vocabulary of " << teacher.num_vocabulary() << ", found " << teacher.num_kept()
            << ": record more of them or lower slim_share";
    throw std::invalid_argument(message.str());
  }
  const TeacherLogits top = teacher.truncated(num_kept, options.temperature);
  const at::Tensor weighted_T = forward_kl(student_TV, top, options.temperature)
                                    .mul(weights_T.detach().to(student_TV.scalar_type()).mul(options.weight));
  return hard_label_loss(student_TV, labels_T).add(weighted_T);
}

at::Tensor token_losses(const DistillLossOptions& options, const at::Tensor& student_TV, const TeacherLogits& teacher,
                        const at::Tensor& labels_T, const at::Tensor& slim_weights_T) {
  const auto with_tail_label = [&](const at::Tensor& losses_T) {
    if (options.tail_label_weight == 0.0) return losses_T;
    return losses_T.add(tail_label_loss(student_TV, teacher, labels_T), options.tail_label_weight);
  };
  switch (options.loss) {
    case DistillLoss::hard_label:
      return hard_label_loss(student_TV, labels_T);
    case DistillLoss::soft_label:
      return with_tail_label(soft_label_loss(
          student_TV, teacher, labels_T,
          {.temperature = options.temperature, .label_weight = options.label_weight, .form = options.soft_form}));
    case DistillLoss::forward_kl:
      return with_tail_label(forward_kl(student_TV, teacher, options.temperature));
    case DistillLoss::reverse_kl:
      return reverse_kl(student_TV, teacher, options.temperature);
    case DistillLoss::jensen_shannon:
      return jensen_shannon(student_TV, teacher, options.beta, options.temperature);
    case DistillLoss::skew_kl:
      return skew_kl(student_TV, teacher, options.skew, options.temperature);
    case DistillLoss::skew_reverse_kl:
      return skew_reverse_kl(student_TV, teacher, options.skew, options.temperature);
    case DistillLoss::total_variation:
      return total_variation(student_TV, teacher, options.temperature);
    case DistillLoss::slim:
      return slim_loss(
          student_TV, teacher, labels_T, slim_weights_T,
          {.temperature = options.temperature, .share = options.slim_share, .weight = options.slim_weight});
    case DistillLoss::minillm:
      break;
  }
  throw std::invalid_argument("loss " + std::string(runtime::name_of(options.loss)) +
                              ": expected a loss of given tokens; this one needs sequences sampled by the student");
}

at::Tensor mean_loss(const at::Tensor& losses_T, const at::Tensor& labels_T, std::optional<int64_t> num_tokens) {
  const int64_t num_losses = losses_T.defined() && losses_T.dim() == 1 ? losses_T.size(0) : 0;
  check_numbers(losses_T, num_losses, "losses");
  check_integers(labels_T, num_losses, "labels");
  const at::Tensor ignored_T = labels_T.eq(kIgnoredLabel);
  const int64_t num_counted = num_losses - ignored_T.sum().item<int64_t>();
  const int64_t divisor = num_tokens.value_or(num_counted);
  if (divisor < 1) {
    throw std::invalid_argument("mean of losses: expected at least one token with a label, found " +
                                std::to_string(divisor) + " of " + std::to_string(num_losses));
  }
  return row_sums(losses_T.masked_fill(ignored_T, 0.0).unsqueeze(0)).squeeze(0).div(static_cast<double>(divisor));
}

}  // namespace pare::distill
