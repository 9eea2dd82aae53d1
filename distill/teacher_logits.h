// What a teacher says of T tokens, and what a student says of the same outcomes.
//
// A teacher is known by all its logits, or by its K most probable tokens and the logarithm of what the others have
// together. Then K + 1 outcomes are compared: those tokens and the *tail*, any other token. Merging outcomes lowers
// every divergence of losses.h or leaves it (the data-processing inequality), so a truncated teacher gives a lower
// bound of the loss, 0 for a student that equals it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace pare {

struct TruncatedLogits {
  int64_t num_vocabulary = 0;             // V
  at::Tensor ids_TK = {};                 // int32 or int64, those of a row all different
  at::Tensor log_probs_TK = {};           // floating point, temperature 1, rows in descending order
  std::vector<double> temperatures = {};  // N, each with a column of ...
  at::Tensor log_tails_TN = {};           // ... the logarithm of the mass outside ids_TK; not read where K is V
};

// The num_kept most probable tokens of each row of [T, V] logits, ties by the lower id, with ids as int64; the tail is
// summed over the tokens that it stands for, so that it is as accurate when it is small. float64 logits give float64,
// others float32. -inf is a mass of 0. Any number of threads gives the same bits.
// Throws std::invalid_argument: logits that are not floating point [T, V] with elements in host memory, a NaN or +inf
// or a row of -inf alone (where), num_kept outside 1 .. V, no temperature or one that is not positive and finite.
// log_sums_T: where given, it becomes log_sum_exp_of_rows(logits), of which the work is done in any case.
TruncatedLogits truncate_logits(const at::Tensor& logits_TV, int64_t num_kept, const std::vector<double>& temperatures,
                                at::Tensor* log_sums_T = nullptr);

// What it holds of float32 logits while it works on so many threads, beside what it returns.
int64_t truncation_bytes(int64_t num_tokens, int64_t num_vocabulary, int num_threads);

class TeacherLogits {
 public:
  // All logits: floating point [T, V], finite or -inf. Throws std::invalid_argument for another shape or type.
  explicit TeacherLogits(const at::Tensor& logits_TV);
  // Throws std::invalid_argument for shapes and types that do not fit each other, K outside 1 .. V, an id outside
  // 0 .. V - 1 or twice in a row, a row that is not in descending order, a tail above 0 or NaN, a temperature.
  explicit TeacherLogits(TruncatedLogits truncated);

  int64_t num_tokens() const;
  int64_t num_vocabulary() const;
  bool is_truncated() const { return !logits_TV_.defined(); }
  // V, or K + 1 of a truncated teacher; K where K is V, since no token is left for the tail.
  int64_t num_outcomes() const;
  // V, or K of a truncated teacher.
  int64_t num_kept() const;

  // The logarithms of the outcomes' probabilities at a temperature, [T, num_outcomes] of the given type (float32,
  // float64), without gradient; the tail is the last column. The K tokens get what the tail leaves, in the proportions
  // of p^(1 / temperature): values that were rounded when they were stored still have the sum 1.
  // Throws std::invalid_argument for a temperature that is not positive and finite, or that a truncated teacher does
  // not list: how the tail's tokens share its mass is not known, so that it cannot be derived.
  at::Tensor log_probs(double temperature, at::ScalarType type) const;

  // The student's for the same outcomes, with gradient: float32 or float64 [T, V] logits, finite or -inf, to
  // [T, num_outcomes]. The tail is the log sum exp of its own logits: exact where 1 - sum of the others would be 0.
  // Throws std::invalid_argument for logits of another shape or type, and as log_probs does.
  at::Tensor student_log_probs(const at::Tensor& student_TV, double temperature) const;

  // Whether the tail stands for these tokens, ids_T int64 [T] of 0 .. V - 1: bool [T], all false without a tail.
  at::Tensor merges(const at::Tensor& ids_T) const;
  // Of the chosen rows, tokens_N int64: the student's log-probability at temperature 1 of ids_N, each one that the tail
  // stands for, given that it is one of these, [N] with gradient; kLogOfNoMass, without gradient, of a logit of -inf.
  // student_TV as of student_log_probs, whose errors it throws. Throws std::invalid_argument without a tail.
  at::Tensor student_tail_log_probs(const at::Tensor& student_TV, const at::Tensor& tokens_N,
                                    const at::Tensor& ids_N) const;

  // Of the tokens [first, first + count). Throws std::invalid_argument for a range that does not lie within.
  TeacherLogits tokens(int64_t first, int64_t count) const;

  // The num_kept most probable tokens at the given temperature alone, the others in the tail.
  // Throws std::invalid_argument for num_kept outside 1 .. V, or above the K of a truncated teacher, and as log_probs.
  TeacherLogits truncated(int64_t num_kept, double temperature) const;

 private:
  void check_temperature(double temperature) const;
  void check_student(const at::Tensor& student_TV) const;
  bool has_tail() const { return is_truncated() && truncated_.ids_TK.size(1) < truncated_.num_vocabulary; }

  at::Tensor logits_TV_;       // undefined: truncated_ holds
  TruncatedLogits truncated_;  // ids int64
};

}  // namespace pare
