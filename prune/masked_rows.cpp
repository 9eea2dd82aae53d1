#include "prune/masked_rows.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>

#include <algorithm>

namespace pare::prune {
namespace {

double dot(const float* a_I, const float* b_I, int64_t num_in) {
  double sum = 0.0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < num_in; ++i) sum += static_cast<double>(a_I[i]) * b_I[i];
  return sum;
}

// One row's state between steps.
struct Progress {
  double square = 0.0;  // |gradient|^2
  double trace = 0.0;   // the trace of the row's error under Hn
  bool done = false;
};

}  // namespace

at::Tensor normalized_rows(const at::Tensor& weight_OI, const NormalizedHessian& hessian, int64_t first_row,
                           int64_t num_rows) {
  return weight_OI.narrow(0, first_row, num_rows).mul(hessian.root_I);
}

// With E = T - Z, the gradient is G = mask(E Hn). A step of a = |G|^2 / (P Hn P^T) along P lowers the trace by a |G|^2
// (Hestenes and Stiefel 1952).
void conjugate_gradients(MaskedRows& rows, const at::Tensor& normalized_II, int num_steps, double tolerance) {
  const int64_t num_rows = rows.num_rows, num_in = rows.num_in;
  if (num_steps == 0) return;
  const at::Tensor error_RI = rows.target_RI.sub(rows.solution_RI);
  at::Tensor gradient_RI = at::mm(error_RI, normalized_II);
  float* gradients = gradient_RI.mutable_data_ptr<float>();
  float* solutions = rows.solution_RI.mutable_data_ptr<float>();
  std::vector<Progress> progress_R(num_rows);
  for (int64_t r = 0; r < num_rows; ++r) {
    float* gradient_I = gradients + r * num_in;
    const char* kept_I = rows.kept_RI.data() + r * num_in;
    Progress& row = progress_R[r];
    row.trace = dot(gradient_I, error_RI.const_data_ptr<float>() + r * num_in, num_in);
    for (int64_t i = 0; i < num_in; ++i) gradient_I[i] = kept_I[i] ? gradient_I[i] : 0.0f;
    row.square = dot(gradient_I, gradient_I, num_in);
    row.done = !(row.square > 0.0);
  }
  at::Tensor direction_RI = gradient_RI.clone(), product_RI = at::empty_like(gradient_RI);
  float* directions = direction_RI.mutable_data_ptr<float>();
  for (int step = 0; step < num_steps; ++step) {
    if (std::all_of(progress_R.begin(), progress_R.end(), [](const Progress& row) { return row.done; })) return;
    at::mm_out(product_RI, direction_RI, normalized_II);
    const float* products = product_RI.const_data_ptr<float>();
    for (int64_t r = 0; r < num_rows; ++r) {
      Progress& row = progress_R[r];
      if (row.done) continue;
      const float* product_I = products + r * num_in;
      float* direction_I = directions + r * num_in;
      float* gradient_I = gradients + r * num_in;
      float* solution_I = solutions + r * num_in;
      const char* kept_I = rows.kept_RI.data() + r * num_in;
      const double curvature = dot(product_I, direction_I, num_in);
      if (!(curvature > 0.0)) {  // H does not see this direction
        row.done = true;
        continue;
      }
      const float length = static_cast<float>(row.square / curvature);
#pragma omp simd
      for (int64_t i = 0; i < num_in; ++i) {
        solution_I[i] += length * direction_I[i];
        gradient_I[i] -= kept_I[i] ? length * product_I[i] : 0.0f;
      }
      const double gain = row.square / curvature * row.square, square = dot(gradient_I, gradient_I, num_in);
      row.trace -= gain;
      row.done = !(gain > tolerance * row.trace) || square == 0.0;
      const float share = static_cast<float>(square / row.square);
      row.square = square;
#pragma omp simd
      for (int64_t i = 0; i < num_in; ++i) direction_I[i] = gradient_I[i] + share * direction_I[i];
    }
  }
}

void store_rows(const MaskedRows& rows, const NormalizedHessian& hessian, const at::Tensor& own_OI, int64_t first_row,
                at::Tensor& out_OI) {
  const float* roots = hessian.root_I.const_data_ptr<float>();
  for (int64_t r = 0; r < rows.num_rows; ++r) {
    const float* solution_I = rows.solution_RI.const_data_ptr<float>() + r * rows.num_in;
    const float* own_I = own_OI.const_data_ptr<float>() + (first_row + r) * rows.num_in;
    float* out_I = out_OI.mutable_data_ptr<float>() + (first_row + r) * rows.num_in;
    const char* kept_I = rows.kept_RI.data() + r * rows.num_in;
    for (int64_t i = 0; i < rows.num_in; ++i) {
      out_I[i] = !kept_I[i] ? 0.0f : roots[i] == 0.0f ? own_I[i] : solution_I[i] / roots[i];
    }
  }
}

}  // namespace pare::prune
