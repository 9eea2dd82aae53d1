// A teacher's distributions over T tokens, and a student's probabilities of the same outcomes.
//
// A teacher is known by all its logits, or by its K most probable tokens and the logarithm of the mass of all others
// together. Then K + 1 outcomes are compared: those tokens and the *tail*, which is any other token. Merging outcomes
// never raises a divergence of losses.h (the data-processing inequality). So a truncated teacher gives a lower bound of
// the loss, 0 for a student that equals it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace pare::distill {

struct TruncatedLogits {
  int64_t num_vocabulary = 0;             // V
  at::Tensor ids_TK = {};                 // int32 or int64, without repetition in a row
  at::Tensor log_probs_TK = {};           // floating point, temperature 1, rows in descending order
  std::vector<double> temperatures = {};  // N, each with a column of ...
  at::Tensor log_tails_TN = {};           // ... the logarithm of the mass outside ids_TK; not read where K is V
};

// Returns the num_kept most probable tokens of each row of [T, V] logits, ties by the lower id, with ids as int64. The
// tail is summed over the tokens that it stands for, so that it is also accurate when it is small. float64 logits give
// float64, others give float32. -inf is a mass of 0. Any number of threads gives the same bits. Where log_sums_T is
// given, it becomes log_sum_exp_of_rows(logits), which is computed in any case. Throws std::invalid_argument for logits
// that are not floating point [T, V] with elements in host memory, and for a NaN, +inf or a row of -inf alone (the
// message says where). Throws it also for num_kept outside 1 .. V, for no temperature, and for one that is not positive
// and finite.
TruncatedLogits truncate_logits(const at::Tensor& logits_TV, int64_t num_kept, const std::vector<double>& temperatures,
                                at::Tensor* log_sums_T = nullptr);

// Returns the bytes of float32 logits that truncation holds while it works on num_threads threads, beside its result.
int64_t truncation_bytes(int64_t num_tokens, int64_t num_vocabulary, int num_threads);

class TeacherLogits {
 public:
  // Holds all logits: floating point [T, V], finite or -inf. Throws std::invalid_argument for another shape or type.
  explicit TeacherLogits(const at::Tensor& logits_TV);
  // Throws std::invalid_argument for shapes and types that do not fit each other, K outside 1 .. V, an id outside 0 ..
  // V - 1 or twice in a row, a row that is not in descending order, a tail above 0 or NaN, and a temperature that is
  // not positive and finite.
  explicit TeacherLogits(TruncatedLogits truncated);

  int64_t num_tokens() const;
  int64_t num_vocabulary() const;
  bool is_truncated() const { return !logits_TV_.defined(); }
  // Returns V, or K + 1 for a truncated teacher. Where its K is V, it returns K, since no token is left for the tail.
  int64_t num_outcomes() const;
  // Returns V, or K for a truncated teacher.
  int64_t num_kept() const;

  // Returns the logarithms of the outcomes' probabilities at a temperature, [T, num_outcomes] of the given type
  // (float32, float64), without gradient. The tail is the last column. The K tokens share the rest of the mass in the
  // proportions of p^(1 / temperature). So values that were rounded when they were stored still have the sum 1.
  // Throws std::invalid_argument for a temperature that is not positive and finite, or that a truncated teacher does
  // not list. The tail cannot be derived for another temperature, because it is not known how its tokens share its
  // mass.
  at::Tensor log_probs(double temperature, at::ScalarType type) const;

  // Returns the student's logarithms for the same outcomes, with gradient. The logits are float32 or float64 [T, V],
  // finite or -inf; the result is [T, num_outcomes]. The tail is the log sum exp of its own logits, which is exact
  // where 1 - sum of the others would be 0.
  // Throws std::invalid_argument for logits of another shape or type, and as log_probs does.
  at::Tensor student_log_probs(const at::Tensor& student_TV, double temperature) const;

  // Returns whether the tail stands for each of these tokens, ids_T int64 [T] of 0 .. V - 1. The result is bool [T],
  // all false without a tail.
  at::Tensor merges(const at::Tensor& ids_T) const;
  // Returns the student's log-probability at temperature 1 of each of ids_N in the chosen rows, tokens_N int64, given
  // that the token is in the tail. The tail must stand for each. The result is [N] with gradient. A logit of -inf gives
  // kLogOfNoMass without gradient. student_TV is as in student_log_probs, whose errors it throws. Throws
  // std::invalid_argument without a tail.
  at::Tensor student_tail_log_probs(const at::Tensor& student_TV, const at::Tensor& tokens_N,
                                    const at::Tensor& ids_N) const;

  // Returns the part of the tokens [first, first + count). Throws std::invalid_argument for a range that does not lie
  // within.
  TeacherLogits tokens(int64_t first, int64_t count) const;

  // Returns the num_kept most probable tokens at the given temperature alone, with all others in the tail. Throws
  // std::invalid_argument for num_kept outside 1 .. V, or above the K of a truncated teacher, and as log_probs does.
  TeacherLogits truncated(int64_t num_kept, double temperature) const;

 private:
  void check_temperature(double temperature) const;
  void check_student(const at::Tensor& student_TV) const;
  bool has_tail() const { return is_truncated() && truncated_.ids_TK.size(1) < truncated_.num_vocabulary; }

  at::Tensor logits_TV_;       // undefined where truncated_ is in use
  TruncatedLogits truncated_;  // ids int64
};

}  // namespace pare::distill
