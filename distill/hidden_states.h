// How far a student's hidden states are from its teacher's: what each block can learn from without the blocks behind
// it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace pare {

// ||student - teacher||^2 / ||teacher||^2 of each row, [R] float32 or float64 as the student's [R, D], with gradient by
// it; a teacher's row of zeros gives 0. As SquareHead (Kurtic et al., arXiv 2310.06927, section 2: the squared distance
// behind every block over the teacher's mean square), but over each token's own: the few tokens whose norm is a hundred
// times that of the others (a text's first) would decide the mean alone.
// Throws std::invalid_argument for other shapes and types than [R, D] of the student's type for both.
at::Tensor hidden_distances(const at::Tensor& student_RD, const at::Tensor& teacher_RD);

// The block of a teacher of num_teacher blocks whose output that of a student's block is compared with: the last block
// that as large a share of the model has passed. Throws std::invalid_argument for numbers below 1 or an index outside.
int64_t teacher_block(int64_t student_block, int64_t num_student, int64_t num_teacher);

}  // namespace pare
