// Measures how far a student's hidden states are from its teacher's. Each block can learn from this without the later
// blocks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace pare::distill {

// Returns ||student - teacher||^2 / ||teacher||^2 of each row, [R], of the student's type (float32 or float64), with
// gradient with respect to the student's [R, D]. A teacher's row of zeros gives 0. SquareHead (Kurtic et al., arXiv
// 2310.06927, section 2) divides the squared distance after every block by the teacher's mean square. Here each token
// is divided by its own. Otherwise the few tokens whose norm is a hundred times that of the others (a text's first)
// would decide the mean alone.
// Throws std::invalid_argument unless both are [R, D] of the student's type.
at::Tensor hidden_distances(const at::Tensor& student_RD, const at::Tensor& teacher_RD);

// Returns the block of a teacher of num_teacher blocks whose output a student's block is compared with. It is the first
// block after which at least the same share of the blocks has passed. Throws std::invalid_argument for numbers below 1
// or an index outside.
int64_t teacher_block(int64_t student_block, int64_t num_student, int64_t num_teacher);

}  // namespace pare::distill
