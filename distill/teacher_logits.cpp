#include "distill/teacher_logits.h"

#include <ATen/Parallel.h>
#include <ATen/ScalarOps.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "distill/best_tokens.h"
#include "distill/rows.h"
#include "quant/checked_tensor.h"

namespace pare::distill {
namespace {

constexpr int64_t kRowGrain = 2;  // one row costs as much as two: row_sums
// The rows that a thread truncates at a time. They are few, so that their copies are still in its cache when they are
// read.
constexpr int64_t kPieceRows = 8;
// The copies of a piece's logits: contiguous rows, rows at a temperature, and the terms of sums.
constexpr int64_t kPieceCopies = 3;

std::string number_text(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
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
                              quant::found_text(logits));
}

at::Tensor scaled(const at::Tensor& logits, double temperature) {
  return temperature == 1.0 ? logits : logits.div(temperature);
}

int64_t num_temperatures(const TruncatedLogits& truncated) {
  return static_cast<int64_t>(truncated.temperatures.size());
}

// Throws the error of a row that has no distribution.
template <typename T>
void refuse_row(const T* logits_V, int64_t num_vocabulary, int64_t token) {
  const T* bad = std::find_if(logits_V, logits_V + num_vocabulary, [](T logit) { return !(logit < kInfinity); });
  const std::string which = "teacher logits[" + std::to_string(token);
  if (bad == logits_V + num_vocabulary) {
    throw std::invalid_argument(which + "]: expected a value above -inf, found none");
  }
  throw std::invalid_argument(which + ", " + std::to_string(bad - logits_V) + "] is " + number_text(*bad) +
                              "; expected finite values or -inf");
}

// Truncates pieces of rows into rows of the result, on any thread. Intermediate values stay in its cache.
template <typename T>
class PieceTruncation {
 public:
  PieceTruncation(const at::Tensor& logits_TV, TruncatedLogits& result, at::Tensor* log_sums_T)
      : logits_TV_(logits_TV), result_(result), log_sums_T_(log_sums_T) {}

  // Truncates the tokens [begin, end). Returns the first that has no distribution, at which it stops, or end.
  int64_t truncate(int64_t begin, int64_t end) const {
    const int64_t piece_rows = std::min(kPieceRows, end - begin), num_vocabulary = logits_TV_.size(1);
    const at::TensorOptions options = at::TensorOptions().dtype(c10::CppTypeToScalarType<T>());
    at::Tensor work = at::empty({piece_rows, num_vocabulary}, options), divided;
    for (int64_t first = begin; first < end; first += piece_rows) {
      const int64_t num_rows = std::min(piece_rows, end - first);
      const at::Tensor logits = logits_TV_.narrow(0, first, num_rows).to(options).contiguous();
      at::Tensor ids = at::empty({num_rows, num_best()}, at::kLong);
      for (int64_t row = 0; row < num_rows; ++row) {
        const T* logits_V = logits.const_data_ptr<T>() + row * num_vocabulary;
        if (!has_distribution(logits_V, num_vocabulary)) return first + row;
        best_of_row(logits_V, num_vocabulary, num_best(), ids.mutable_data_ptr<int64_t>() + row * num_best());
      }
      at::Tensor work_RV = work.narrow(0, 0, num_rows);
      truncate_piece(logits, ids, first, work_RV, divided);
    }
    return end;
  }

 private:
  int64_t num_kept() const { return result_.ids_TK.size(1); }
  bool has_tail() const { return num_kept() < result_.num_vocabulary; }
  // It is one more than are kept: the largest token of the tail follows them.
  int64_t num_best() const { return num_kept() + has_tail(); }

  void truncate_piece(const at::Tensor& logits_RV, const at::Tensor& best_ids, int64_t first, at::Tensor& work_RV,
                      at::Tensor& divided) const {
    const int64_t num_rows = logits_RV.size(0);
    const at::Tensor ids_RK = best_ids.narrow(1, 0, num_kept()), none;
    result_.ids_TK.narrow(0, first, num_rows).copy_(ids_RK);
    at::_log_softmax_out(work_RV, logits_RV, 1, /*half_to_float=*/false);
    result_.log_probs_TK.narrow(0, first, num_rows).copy_(work_RV.gather(1, ids_RK));
    at::Tensor sums_R;  // at temperature 1
    for (int64_t n = 0; n < num_temperatures(result_); ++n) {
      const double temperature = result_.temperatures[n];
      at::Tensor scaled_RV = logits_RV;
      if (temperature != 1.0) {
        if (!divided.defined()) divided = at::empty_like(logits_RV);
        scaled_RV = divided.narrow(0, 0, num_rows);
        at::div_out(scaled_RV, logits_RV, at::native::wrapped_scalar_tensor(temperature));
      }
      // Division keeps the order, so the largest of all and of the tail stay where they were.
      const at::Tensor best = scaled_RV.gather(1, best_ids);
      const at::Tensor all_R = log_sum_exp_of_others(scaled_RV, best.narrow(1, 0, 1), none, work_RV);
      if (temperature == 1.0) sums_R = all_R;
      at::Tensor tail_R = result_.log_tails_TN.narrow(0, first, num_rows).select(1, n);
      if (!has_tail()) {
        tail_R.fill_(-kInfinity);
        continue;
      }
      const at::Tensor rest_R = log_sum_exp_of_others(scaled_RV, best.narrow(1, num_kept(), 1), ids_RK, work_RV);
      // It is the logarithm of a share, which rounding may leave above 0.
      tail_R.copy_(rest_R.sub(all_R).clamp_max(0.0));
    }
    if (log_sums_T_ == nullptr) return;
    if (!sums_R.defined()) {
      sums_R = log_sum_exp_of_others(logits_RV, logits_RV.gather(1, best_ids.narrow(1, 0, 1)), none, work_RV);
    }
    log_sums_T_->narrow(0, first, num_rows).copy_(sums_R);
  }

  const at::Tensor& logits_TV_;
  TruncatedLogits& result_;
  at::Tensor* log_sums_T_;
};

template <typename T>
void truncate_rows(const at::Tensor& logits_TV, TruncatedLogits& result, at::Tensor* log_sums_T) {
  const PieceTruncation<T> pieces(logits_TV, result, log_sums_T);
  const int64_t num_tokens = logits_TV.size(0);
  std::vector<uint8_t> is_bad(num_tokens, 0);
  at::parallel_for(0, num_tokens, kRowGrain, [&](int64_t begin, int64_t end) {
    const int64_t stop = pieces.truncate(begin, end);
    if (stop < end) is_bad[stop] = 1;
  });
  const int64_t bad = std::find(is_bad.begin(), is_bad.end(), 1) - is_bad.begin();
  if (bad == num_tokens) return;
  const at::Tensor bad_V = logits_TV[bad].to(c10::CppTypeToScalarType<T>()).contiguous();
  refuse_row(bad_V.const_data_ptr<T>(), bad_V.numel(), bad);
}

void check_shapes(const TruncatedLogits& truncated) {
  const at::Tensor& ids = truncated.ids_TK;
  if (!ids.defined() || ids.dim() != 2 || ids.numel() == 0 ||
      (ids.scalar_type() != at::kLong && ids.scalar_type() != at::kInt)) {
    throw std::invalid_argument("truncated teacher's ids: expected an int32 or int64 matrix [tokens, K], found " +
                                quant::found_text(ids));
  }
  if (ids.size(1) > truncated.num_vocabulary) {
    throw std::invalid_argument("truncated teacher: expected at most " + std::to_string(truncated.num_vocabulary) +
                                " ids a token, the size of its vocabulary, found " + std::to_string(ids.size(1)));
  }
  const at::Tensor &log_probs = truncated.log_probs_TK, &tails = truncated.log_tails_TN;
  if (!log_probs.defined() || log_probs.sizes() != ids.sizes() || !log_probs.is_floating_point()) {
    throw std::invalid_argument("truncated teacher's log-probabilities: expected floating point of the shape " +
                                quant::shape_text(ids) + " of its ids, found " + quant::found_text(log_probs));
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
                                "], one for each token and temperature, found " + quant::found_text(tails));
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

TruncatedLogits truncate_logits(const at::Tensor& logits_TV, int64_t num_kept, const std::vector<double>& temperatures,
                                at::Tensor* log_sums_T) {
  check_logits(logits_TV, "teacher");
  if (!logits_TV.device().is_cpu()) throw std::invalid_argument("teacher logits: expected them in host memory");
  const int64_t num_tokens = logits_TV.size(0), num_vocabulary = logits_TV.size(1);
  if (num_kept < 1 || num_kept > num_vocabulary) {
    throw std::invalid_argument("truncated teacher: expected 1 .. " + std::to_string(num_vocabulary) +
                                " kept tokens, found " + std::to_string(num_kept));
  }
  if (temperatures.empty()) {
    throw std::invalid_argument("truncated teacher's temperatures: expected at least one, found none");
  }
  for (const double temperature : temperatures) check_positive(temperature);

  const bool wide = logits_TV.scalar_type() == at::kDouble;
  const at::TensorOptions options = at::TensorOptions().dtype(wide ? at::kDouble : at::kFloat);
  TruncatedLogits result{.num_vocabulary = num_vocabulary,
                         .ids_TK = at::empty({num_tokens, num_kept}, at::kLong),
                         .log_probs_TK = at::empty({num_tokens, num_kept}, options),
                         .temperatures = temperatures,
                         .log_tails_TN = at::empty({num_tokens, static_cast<int64_t>(temperatures.size())}, options)};
  if (log_sums_T != nullptr) *log_sums_T = at::empty({num_tokens}, options);
  const at::Tensor logits = logits_TV.detach();
  wide ? truncate_rows<double>(logits, result, log_sums_T) : truncate_rows<float>(logits, result, log_sums_T);
  return result;
}

int64_t truncation_bytes(int64_t num_tokens, int64_t num_vocabulary, int num_threads) {
  const int64_t num_rows = std::min(num_tokens, kPieceRows * num_threads);
  return kPieceCopies * num_rows * num_vocabulary * static_cast<int64_t>(sizeof(float));
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

void TeacherLogits::check_student(const at::Tensor& student_TV) const {
  check_logits(student_TV, "student");
  if (student_TV.scalar_type() != at::kFloat && student_TV.scalar_type() != at::kDouble) {
    throw std::invalid_argument("student logits: expected float32 or float64, found " + student_TV.toString());
  }
  if (student_TV.size(0) != num_tokens() || student_TV.size(1) != num_vocabulary()) {
    throw std::invalid_argument("student logits: expected the shape [" + std::to_string(num_tokens()) + ", " +
                                std::to_string(num_vocabulary()) + "] of the teacher's, found " +
                                quant::shape_text(student_TV));
  }
}

at::Tensor TeacherLogits::student_log_probs(const at::Tensor& student_TV, double temperature) const {
  check_temperature(temperature);
  check_student(student_TV);
  const at::Tensor logits_TV = scaled(student_TV, temperature);
  if (!is_truncated()) return logits_TV.log_softmax(1);
  const at::Tensor kept_TK = logits_TV.gather(1, truncated_.ids_TK);
  if (!has_tail()) return kept_TK.log_softmax(1);
  const at::Tensor tail_T = log_sum_exp_of_rows(logits_TV.scatter(1, truncated_.ids_TK, -kInfinity));
  return at::cat({kept_TK, tail_T.unsqueeze(1)}, 1).log_softmax(1);
}

at::Tensor TeacherLogits::merges(const at::Tensor& ids_T) const {
  if (!has_tail()) return at::zeros_like(ids_T, at::kBool);
  return truncated_.ids_TK.eq(ids_T.unsqueeze(1)).any(1).logical_not();
}

at::Tensor TeacherLogits::student_tail_log_probs(const at::Tensor& student_TV, const at::Tensor& tokens_N,
                                                 const at::Tensor& ids_N) const {
  check_student(student_TV);
  if (!has_tail())
    throw std::invalid_argument("tail of a teacher: expected merged tokens, found a teacher that keeps all tokens");
  const at::Tensor chosen_NV = student_TV.index_select(0, tokens_N);
  const at::Tensor tail_N =
      log_sum_exp_of_rows(chosen_NV.scatter(1, truncated_.ids_TK.index_select(0, tokens_N), -kInfinity));
  const at::Tensor logits_N = chosen_NV.gather(1, ids_N.unsqueeze(1)).squeeze(1);
  const at::Tensor has_mass_N = logits_N.ne(-kInfinity);
  const at::Tensor zeros_N = at::zeros_like(logits_N);
  const at::Tensor logs_N = at::where(has_mass_N, logits_N, zeros_N).sub(at::where(has_mass_N, tail_N, zeros_N));
  return at::where(has_mass_N, logs_N, at::full_like(logs_N, kLogOfNoMass));
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

}  // namespace pare::distill
