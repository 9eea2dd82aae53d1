#include "distill/teacher_logits.h"

#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "distill/rows.h"
#include "quant/checked_tensor.h"

namespace pare {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kRowGrain = 1;

std::string number_text(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

std::string found_text(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.toString() + " of shape " + shape_text(tensor) : std::string("none");
}

bool is_positive(double temperature) {
  return temperature > 0.0 && std::isfinite(temperature);
}

void check_positive(double temperature) {
  if (is_positive(temperature)) return;
  throw std::invalid_argument("temperature: expected a positive number, found " + number_text(temperature));
}

void check_logits(const at::Tensor& logits, const std::string& whose) {
  if (logits.defined() && logits.dim() == 2 && logits.is_floating_point() && logits.numel() > 0) return;
  throw std::invalid_argument(whose + " logits: expected a floating-point matrix [tokens, vocabulary], found " +
                              found_text(logits));
}

at::Tensor scaled(const at::Tensor& logits, double temperature) {
  return temperature == 1.0 ? logits : logits.div(temperature);
}

// The tokens of one row with the largest logits, in descending order; ties by the lower id.
template <typename T>
void best_of_row(const T* logits_V, int64_t num_vocabulary, int64_t num_kept, int64_t* ids_K) {
  std::vector<T> sorted(logits_V, logits_V + num_vocabulary);
  std::nth_element(sorted.begin(), sorted.begin() + (num_kept - 1), sorted.end(), std::greater<>());
  const T threshold = sorted[num_kept - 1];
  int64_t num_above =
      std::count_if(sorted.begin(), sorted.begin() + num_kept, [&](T logit) { return logit > threshold; });
  int64_t num_equal = num_kept - num_above;
  int64_t* next = ids_K;
  for (int64_t id = 0; id < num_vocabulary; ++id) {
    if (logits_V[id] > threshold || (logits_V[id] == threshold && num_equal-- > 0)) *next++ = id;
  }
  std::stable_sort(ids_K, ids_K + num_kept, [&](int64_t a, int64_t b) { return logits_V[a] > logits_V[b]; });
}

template <typename T>
at::Tensor best_ids(const at::Tensor& logits_TV, int64_t num_kept) {
  const int64_t num_tokens = logits_TV.size(0), num_vocabulary = logits_TV.size(1);
  at::Tensor ids_TK = at::empty({num_tokens, num_kept}, at::kLong);
  const T* logits = logits_TV.const_data_ptr<T>();
  int64_t* ids = ids_TK.mutable_data_ptr<int64_t>();
  at::parallel_for(0, num_tokens, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      best_of_row(logits + token * num_vocabulary, num_vocabulary, num_kept, ids + token * num_kept);
    }
  });
  return ids_TK;
}

template <typename T>
void check_values(const at::Tensor& logits_TV) {
  const int64_t num_vocabulary = logits_TV.size(1);
  const T* logits = logits_TV.const_data_ptr<T>();
  for (int64_t token = 0; token < logits_TV.size(0); ++token) {
    const T* row = logits + token * num_vocabulary;
    const T* bad = std::find_if(row, row + num_vocabulary, [](T logit) { return !(logit < kInfinity); });
    if (bad != row + num_vocabulary) {
      throw std::invalid_argument("teacher logits[" + std::to_string(token) + ", " + std::to_string(bad - row) +
                                  "] is " + number_text(*bad) + "; expected finite values or -inf");
    }
    if (std::all_of(row, row + num_vocabulary, [](T logit) { return logit == -kInfinity; })) {
      throw std::invalid_argument("teacher logits[" + std::to_string(token) +
                                  "]: expected a value above -inf, found none");
    }
  }
}

int64_t num_temperatures(const TruncatedLogits& truncated) {
  return static_cast<int64_t>(truncated.temperatures.size());
}

void check_shapes(const TruncatedLogits& truncated) {
  const at::Tensor& ids = truncated.ids_TK;
  if (!ids.defined() || ids.dim() != 2 || ids.numel() == 0 ||
      (ids.scalar_type() != at::kLong && ids.scalar_type() != at::kInt)) {
    throw std::invalid_argument("truncated teacher's ids: expected an int32 or int64 matrix [tokens, K], found " +
                                found_text(ids));
  }
  if (ids.size(1) > truncated.num_vocabulary) {
    throw std::invalid_argument("truncated teacher: expected at most " + std::to_string(truncated.num_vocabulary) +
                                " ids a token, the size of its vocabulary, found " + std::to_string(ids.size(1)));
  }
  const at::Tensor &log_probs = truncated.log_probs_TK, &tails = truncated.log_tails_TN;
  if (!log_probs.defined() || log_probs.sizes() != ids.sizes() || !log_probs.is_floating_point()) {
    throw std::invalid_argument("truncated teacher's log-probabilities: expected floating point of the shape " +
                                shape_text(ids) + " of its ids, found " + found_text(log_probs));
  }
  if (truncated.temperatures.empty() ||
      !std::all_of(truncated.temperatures.begin(), truncated.temperatures.end(), is_positive)) {
    throw std::invalid_argument("truncated teacher's temperatures: expected positive numbers, found " +
                                std::string(truncated.temperatures.empty() ? "none" : "another"));
  }
  if (!tails.defined() || !tails.is_floating_point() || tails.dim() != 2 || tails.size(0) != ids.size(0) ||
      tails.size(1) != num_temperatures(truncated)) {
    throw std::invalid_argument("truncated teacher's tails: expected floating point of shape [" +
                                std::to_string(ids.size(0)) + ", " + std::to_string(num_temperatures(truncated)) +
                                "], one for each token and temperature, found " + found_text(tails));
  }
}

void check_values(const TruncatedLogits& truncated) {
  const at::Tensor &ids = truncated.ids_TK, &log_probs = truncated.log_probs_TK;
  const int64_t least = ids.min().item<int64_t>(), largest = ids.max().item<int64_t>();
  if (least < 0 || largest >= truncated.num_vocabulary) {
    throw std::invalid_argument("truncated teacher's ids: expected 0 .. " +
                                std::to_string(truncated.num_vocabulary - 1) + ", found " +
                                std::to_string(least < 0 ? least : largest));
  }
  const int64_t num_kept = ids.size(1);
  if (num_kept > 1) {
    const at::Tensor sorted = std::get<0>(ids.sort(1));
    if (sorted.narrow(1, 1, num_kept - 1).eq(sorted.narrow(1, 0, num_kept - 1)).any().item<bool>()) {
      throw std::invalid_argument("truncated teacher's ids: expected different ones for a token, found one twice");
    }
    const at::Tensor earlier = log_probs.narrow(1, 0, num_kept - 1), later = log_probs.narrow(1, 1, num_kept - 1);
    if (!earlier.ge(later).all().item<bool>()) {
      throw std::invalid_argument(
          "truncated teacher's log-probabilities: expected each row in descending order, found another order or NaN");
    }
  }
  if (!log_probs.select(1, 0).abs().lt(kInfinity).all().item<bool>()) {
    throw std::invalid_argument(
        "truncated teacher's log-probabilities: expected the largest of each token to be finite, found another");
  }
  if (num_kept < truncated.num_vocabulary && !truncated.log_tails_TN.le(0.0).all().item<bool>()) {
    throw std::invalid_argument("truncated teacher's tails: expected logarithms of masses, at most 0, found " +
                                number_text(truncated.log_tails_TN.max().item<double>()));
  }
}

}  // namespace

TruncatedLogits truncate_logits(const at::Tensor& logits_TV, int64_t num_kept,
                                const std::vector<double>& temperatures) {
  check_logits(logits_TV, "teacher");
  if (!logits_TV.device().is_cpu()) throw std::invalid_argument("teacher logits: expected them in host memory");
  const bool wide = logits_TV.scalar_type() == at::kDouble;
  const at::Tensor logits = logits_TV.detach().to(wide ? at::kDouble : at::kFloat).contiguous();
  const int64_t num_vocabulary = logits.size(1);
  if (num_kept < 1 || num_kept > num_vocabulary) {
    throw std::invalid_argument("truncated teacher: expected 1 .. " + std::to_string(num_vocabulary) +
                                " kept tokens, found " + std::to_string(num_kept));
  }
  if (temperatures.empty()) {
    throw std::invalid_argument("truncated teacher's temperatures: expected at least one, found none");
  }
  for (const double temperature : temperatures) check_positive(temperature);
  wide ? check_values<double>(logits) : check_values<float>(logits);

  TruncatedLogits result{.num_vocabulary = num_vocabulary, .temperatures = temperatures};
  result.ids_TK = wide ? best_ids<double>(logits, num_kept) : best_ids<float>(logits, num_kept);
  result.log_probs_TK = logits.log_softmax(1).gather(1, result.ids_TK);
  std::vector<at::Tensor> tails;
  for (const double temperature : temperatures) {
    const at::Tensor all = scaled(logits, temperature);
    const at::Tensor rest = log_sum_exp_of_rows(all.scatter(1, result.ids_TK, -kInfinity));
    // The logarithm of a share: rounding may leave it above 0.
    tails.push_back(rest.sub(log_sum_exp_of_rows(all)).clamp_max(0.0));
  }
  result.log_tails_TN = at::stack(tails, 1);
  return result;
}

TeacherLogits::TeacherLogits(const at::Tensor& logits_TV) {
  check_logits(logits_TV, "teacher");
  logits_TV_ = logits_TV.detach();
}

TeacherLogits::TeacherLogits(TruncatedLogits truncated) : truncated_(std::move(truncated)) {
  check_shapes(truncated_);
  check_values(truncated_);
  truncated_.ids_TK = truncated_.ids_TK.to(at::kLong);
  truncated_.log_probs_TK = truncated_.log_probs_TK.detach();
  truncated_.log_tails_TN = truncated_.log_tails_TN.detach();
}

int64_t TeacherLogits::num_tokens() const {
  return is_truncated() ? truncated_.ids_TK.size(0) : logits_TV_.size(0);
}

int64_t TeacherLogits::num_vocabulary() const {
  return is_truncated() ? truncated_.num_vocabulary : logits_TV_.size(1);
}

int64_t TeacherLogits::num_kept() const {
  return is_truncated() ? truncated_.ids_TK.size(1) : logits_TV_.size(1);
}

int64_t TeacherLogits::num_outcomes() const {
  return num_kept() + has_tail();
}

void TeacherLogits::check_temperature(double temperature) const {
  check_positive(temperature);
  if (!has_tail()) return;
  const std::vector<double>& known = truncated_.temperatures;
  if (std::find(known.begin(), known.end(), temperature) != known.end()) return;
  std::string list;
  for (const double one : known) list += (list.empty() ? "" : ", ") + number_text(one);
  throw std::invalid_argument("temperature " + number_text(temperature) + " of a truncated teacher: expected one of " +
                              list +
                              ", for which the mass of its tail was recorded; at another one the tail cannot be "
                              "derived from the tokens that were kept: record it, or choose a listed one");
}

at::Tensor TeacherLogits::log_probs(double temperature, at::ScalarType type) const {
  check_temperature(temperature);
  if (!is_truncated()) return scaled(logits_TV_.to(type), temperature).log_softmax(1);
  const at::Tensor kept_TK = scaled(truncated_.log_probs_TK.to(type), temperature).log_softmax(1);
  if (!has_tail()) return kept_TK;
  const std::vector<double>& known = truncated_.temperatures;
  const int64_t column = std::find(known.begin(), known.end(), temperature) - known.begin();
  const at::Tensor tail_T1 = truncated_.log_tails_TN.narrow(1, column, 1).to(type);
  return at::cat({kept_TK.add(log_of_rest(tail_T1)), tail_T1}, 1);
}

at::Tensor TeacherLogits::student_log_probs(const at::Tensor& student_TV, double temperature) const {
  check_temperature(temperature);
  check_logits(student_TV, "student");
  if (student_TV.scalar_type() != at::kFloat && student_TV.scalar_type() != at::kDouble) {
    throw std::invalid_argument("student logits: expected float32 or float64, found " + student_TV.toString());
  }
  if (student_TV.size(0) != num_tokens() || student_TV.size(1) != num_vocabulary()) {
    throw std::invalid_argument("student logits: expected the shape [" + std::to_string(num_tokens()) + ", " +
                                std::to_string(num_vocabulary()) + "] of the teacher's, found " +
                                shape_text(student_TV));
  }
  const at::Tensor logits_TV = scaled(student_TV, temperature);
  if (!is_truncated()) return logits_TV.log_softmax(1);
  const at::Tensor kept_TK = logits_TV.gather(1, truncated_.ids_TK);
  if (!has_tail()) return kept_TK.log_softmax(1);
  const at::Tensor tail_T = log_sum_exp_of_rows(logits_TV.scatter(1, truncated_.ids_TK, -kInfinity));
  return at::cat({kept_TK, tail_T.unsqueeze(1)}, 1).log_softmax(1);
}

TeacherLogits TeacherLogits::tokens(int64_t first, int64_t count) const {
  if (first < 0 || count < 1 || first + count > num_tokens()) {
    throw std::invalid_argument("tokens of a teacher: expected a range within 0 .. " + std::to_string(num_tokens()) +
                                ", found " + std::to_string(first) + " .. " + std::to_string(first + count));
  }
  TeacherLogits part = *this;
  if (!is_truncated()) {
    part.logits_TV_ = logits_TV_.narrow(0, first, count);
  } else {
    for (at::Tensor TruncatedLogits::*member :
         {&TruncatedLogits::ids_TK, &TruncatedLogits::log_probs_TK, &TruncatedLogits::log_tails_TN}) {
      part.truncated_.*member = (truncated_.*member).narrow(0, first, count);
    }
  }
  return part;
}

TeacherLogits TeacherLogits::truncated(int64_t num_kept, double temperature) const {
  if (!is_truncated()) {
    TruncatedLogits best = truncate_logits(logits_TV_.to(at::kCPU), num_kept, {temperature});
    for (at::Tensor* tensor : {&best.ids_TK, &best.log_probs_TK, &best.log_tails_TN}) {
      *tensor = tensor->to(logits_TV_.device());
    }
    return TeacherLogits(std::move(best));
  }
  check_temperature(temperature);
  const int64_t num_known = truncated_.ids_TK.size(1);
  if (num_kept < 1 || num_kept > num_known) {
    throw std::invalid_argument("truncated teacher: expected 1 .. " + std::to_string(num_known) +
                                " kept tokens, as many as it holds, found " + std::to_string(num_kept));
  }
  if (num_kept == num_known) return *this;
  const bool wide = truncated_.log_probs_TK.scalar_type() == at::kDouble;
  const at::Tensor all = log_probs(temperature, wide ? at::kDouble : at::kFloat);
  const at::Tensor tail_T = log_sum_exp_of_rows(all.narrow(1, num_kept, all.size(1) - num_kept)).clamp_max(0.0);
  return TeacherLogits(TruncatedLogits{.num_vocabulary = truncated_.num_vocabulary,
                                       .ids_TK = truncated_.ids_TK.narrow(1, 0, num_kept),
                                       .log_probs_TK = truncated_.log_probs_TK.narrow(1, 0, num_kept),
                                       .temperatures = {temperature},
                                       .log_tails_TN = tail_T.unsqueeze(1)});
}

}  // namespace pare
