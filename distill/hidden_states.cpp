#include "distill/hidden_states.h"

#include <stdexcept>
#include <string>

#include "distill/rows.h"
#include "quant/checked_tensor.h"

namespace pare::distill {

at::Tensor hidden_distances(const at::Tensor& student_RD, const at::Tensor& teacher_RD) {
  const bool fits = student_RD.defined() && teacher_RD.defined() && student_RD.dim() == 2 && student_RD.numel() > 0 &&
                    (student_RD.scalar_type() == at::kFloat || student_RD.scalar_type() == at::kDouble) &&
                    teacher_RD.scalar_type() == student_RD.scalar_type() && teacher_RD.sizes() == student_RD.sizes();
  if (!fits) {
    const auto found = [](const at::Tensor& x) {
      return x.defined() ? x.toString() + " of shape " + quant::shape_text(x) : std::string("none");
    };
    throw std::invalid_argument(
        "hidden states: expected a student's and a teacher's as float32 or float64 matrices of one shape, found " +
        found(student_RD) + " and " + found(teacher_RD));
  }
  const at::Tensor size_R = row_sums(teacher_RD.square());
  return row_sums(student_RD.sub(teacher_RD).square())
      .div(size_R.masked_fill(size_R.eq(0.0), 1.0))
      .masked_fill(size_R.eq(0.0), 0.0);
}

int64_t teacher_block(int64_t student_block, int64_t num_student, int64_t num_teacher) {
  if (num_student < 1 || num_teacher < 1 || student_block < 0 || student_block >= num_student) {
    throw std::invalid_argument("teacher_block: expected a block of 0 .. " + std::to_string(num_student - 1) +
                                " and a teacher of at least 1, found " + std::to_string(student_block) + " and " +
                                std::to_string(num_teacher));
  }
  return ((student_block + 1) * num_teacher + num_student - 1) / num_student - 1;
}

}  // namespace pare::distill
