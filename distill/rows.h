// Operations on rows of logarithms that give the same bits for any number of threads, with gradients.
#pragma once

#include <ATen/core/Tensor.h>

namespace pare {

// The logarithm that a mass of exactly 0 counts with: of 2^-149, the least positive float32. A logarithm that is finite
// counts as it is, however small.
inline constexpr double kLogOfNoMass = -103.27892990343185;

// The sums of a matrix's rows: [R, N], float32 or float64, to [R].
//
// What it relies on: ATen splits a sum over one dimension among threads by outputs, each of which one thread sums in an
// order that follows from N. A single output alone is cut into parts by the number of threads; so a single row gets a
// second one of zeros.
//
// Of what works element by element exp, log, log1p and expm1 give an element the same bits wherever it stands, as
// arithmetic does; logaddexp, sigmoid and softplus do not (what is left of a thread's part after whole vectors goes
// through other functions) and are not used. log_softmax and its gradient work row by row.
at::Tensor row_sums(const at::Tensor& matrix_RN);

// log sum exp of each row, [R, N] to [R]: -inf for a row that is all -inf, which has a gradient of 0. +inf and NaN give
// NaN.
at::Tensor log_sum_exp_of_rows(const at::Tensor& matrix_RN);

// The same bits without gradient, for whoever knows each row's largest value, [R, 1]. Where left_out_RK is defined, it
// is of the other columns, and largest_R1 too. work_RN is written over, so that no matrix is made.
at::Tensor log_sum_exp_of_others(const at::Tensor& matrix_RN, const at::Tensor& largest_R1,
                                 const at::Tensor& left_out_RK, at::Tensor& work_RN);

// log(1 - e^x) for x <= 0, accurate at both ends; without gradient. Values of 0 count as -2^-24.
at::Tensor log_of_rest(const at::Tensor& logs);

// The same with kLogOfNoMass for -inf, where the gradient is 0.
at::Tensor finite_logs(const at::Tensor& logs);

// log((1 - share) e^a + share e^b) of one shape; share 0 .. 1. Where both are -inf it is -inf, and its
// gradient is not a number.
at::Tensor log_of_mixture(const at::Tensor& a, const at::Tensor& b, double share);

}  // namespace pare
