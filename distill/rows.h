// Operations with gradients on rows of logarithms. Any number of threads gives the same bits.
#pragma once

#include <ATen/core/Tensor.h>

#include <limits>

namespace pare::distill {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The logarithm that a mass of exactly 0 counts with: that of 2^-149, the least positive float32. A finite logarithm
// counts as it is, however small.
inline constexpr double kLogOfNoMass = -103.27892990343185;

// Returns the sums of a matrix's rows: [R, N], float32 or float64, to [R].
//
// ATen splits a sum over one dimension among threads by outputs. One thread sums each output in an order that follows
// from N. Only a single output is cut into parts by the number of threads, so a single row gets a second one of zeros.
//
// Elementwise exp, log, log1p and expm1 give an element the same bits wherever it stands, as arithmetic does.
// logaddexp, sigmoid and softplus do not: the rest of a thread's part after whole vectors goes through other functions.
// So they are not used. log_softmax and its gradient work row by row.
at::Tensor row_sums(const at::Tensor& matrix_RN);

// Returns log sum exp of each row, [R, N] to [R]. A row that is all -inf gives -inf and has a gradient of 0. +inf and
// NaN give NaN.
at::Tensor log_sum_exp_of_rows(const at::Tensor& matrix_RN);

// Returns the same bits without gradient, for callers that know each row's largest value, [R, 1]. Where left_out_RK is
// defined, these columns are left out of the sum and of largest_R1. work_RN is overwritten, so that no matrix is
// allocated.
at::Tensor log_sum_exp_of_others(const at::Tensor& matrix_RN, const at::Tensor& largest_R1,
                                 const at::Tensor& left_out_RK, at::Tensor& work_RN);

// Returns log(1 - e^x) for x <= 0, accurate at both ends, without gradient. Values of 0 count as -2^-24.
at::Tensor log_of_rest(const at::Tensor& logs);

// Returns the logarithms with kLogOfNoMass in place of -inf, where the gradient is 0.
at::Tensor finite_logs(const at::Tensor& logs);

// Returns log((1 - share) e^a + share e^b) for a and b of one shape and share 0 .. 1. Where both are -inf it is -inf,
// and its gradient is NaN.
at::Tensor log_of_mixture(const at::Tensor& a, const at::Tensor& b, double share);

}  // namespace pare::distill
