// A student: a smaller model of the same family whose weights are copies or means of its teacher's, to be trained
// afterwards. Layers are dropped or merged first; heads, the feed-forward's channels and the model's width are then
// reduced in what is left. Each part of that leaves the function as it is where nothing is lost by it: layers that add
// nothing are dropped, channels that are zero; heads or channels that are alike are averaged. One thing stays behind:
// the epsilon of the norms, which a smaller width with larger mean squares would ask to grow with them.
#pragma once

#include <filesystem>

#include "compress/recipe/student_options.h"
#include "runtime/files/npy.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/progress.h"

namespace pare {

// What make_student refuses of the teacher and the options before any work. Throws std::invalid_argument: an encoder; a
// compressed teacher; more of anything than it has; heads that do not divide into kv heads; heads, widths or merged
// layers of a mixture of experts; a width that does not divide the teacher's where channels are averaged.
void check_student(const Checkpoint& teacher, const StudentOptions& options);

// Writes the student into `directory`, which is made where it is not there and must be empty: config.json,
// safetensors in the teacher's types, the teacher's other small files. Tensors pass one at a time. The same bytes for
// the same teacher, options and text, whatever the number of threads.
//
// Layers: student_weights.h says which and what they stand for. Where they are averaged, layers with another window or
// rotary embedding than the kept one have no part in it.
//
// widths importance: head h of a block is worth sum_k e_hk |o[:, hk]|^2, a channel f of the feed-forward
// e_f |down[:, f]|^2, with e the mean squares of these linears' inputs on the calibration; without one
// e_hk = |v[k of h's kv head]|^2 and e_f = |gate_f|^2 |up_f|^2, of rows multiplied by the norm's gains. That is a
// guess: a few channels that are very large on all texts decide, which weights alone do not show. A channel d of the
// model's width is worth the sum over all norms of s_d g_d^2 r_d / sum(...): s its share of the norm's input, g the
// gain, r the energy of its columns in what reads the norm. Without a calibration s is estimated as the mean of its
// shares in all that writes the hidden state: embedding, o and down (a norm behind these: its gains). Activations as
// measures of importance: Minitron (Muralidharan et al., arXiv 2407.14679, section 2.2); there channels are judged by
// norms' outputs alone.
//
// widths average: heads as merge_heads says, channels in contiguous_groups.
//
// Norms over a width of D' instead of D: gains are multiplied by the root of the mean square that is left of the
// input by that of the input, so that what is left comes out as it did: sqrt(sum of the kept channels' s * D / D'), and
// for means the same of the measured ratio, or 1 without a calibration, which is exact where the channels of a group
// are alike. A tied head reads a group's mean as its sum, by the final norm's gain.
//
// calibration: required by choose block_error; else null or windows of which the first kStudentWindows are used.
// Throws what check_student throws, std::invalid_argument for a calibration that is missing or of another vocabulary,
// std::runtime_error for a directory that is not empty, for a teacher's tensor with values that are not finite and for
// what cannot be written; Interrupted. config.json is written last.
void make_student(const Checkpoint& teacher, const StudentOptions& options, const TokenWindows* calibration,
                  const std::filesystem::path& directory, Progress& progress);

}  // namespace pare
