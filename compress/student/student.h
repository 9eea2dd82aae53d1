// A student is a smaller model of the same family. Its weights are copies or means of its teacher's, and it is trained
// afterwards. Layers are dropped or merged first. Then heads, the feed-forward's channels and the model's width are
// reduced in the layers that are left. Each part leaves the function as it is where nothing is lost by it: when the
// dropped layers add nothing, the dropped channels are zero, or the averaged heads or channels are alike. One thing
// does not follow: the epsilon of the norms. A smaller width with larger mean squares would need a larger epsilon.
#pragma once

#include <filesystem>

#include "compress/recipe/student_options.h"
#include "runtime/files/npy.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/progress.h"

namespace pare::compress {

// Refuses before any work what make_student cannot do with the teacher and the options. Throws std::invalid_argument
// for an encoder, a compressed teacher, and more of anything than the teacher has. It also does so for heads that do
// not divide into kv heads, and for heads, widths or merged layers of a mixture of experts. Where channels are
// averaged, it refuses a width that does not divide the teacher's.
void check_student(const runtime::Checkpoint& teacher, const StudentOptions& options);

// Returns how many blocks stand behind the last one in the files. They predict later tokens.
int64_t num_blocks_behind(const runtime::Checkpoint& teacher);

// Writes the student into `directory`, which is made where it does not exist and must be empty. It writes config.json,
// safetensors in the teacher's types and the teacher's other small files. Tensors pass one at a time. The same teacher,
// options and text give the same bytes, whatever the number of threads.
//
// Layers: student_weights.h says which layers are kept and which ones they stand for. Where layers are averaged, those
// with another window or rotary embedding than the kept one have no part in the mean.
//
// widths importance: the worth of head h of a block is sum_k e_hk |o[:, hk]|^2, and that of channel f of the
// feed-forward is e_f |down[:, f]|^2. e are the mean squares of these linears' inputs on the calibration. Without a
// calibration e_hk = |v[k of h's kv head]|^2 and e_f = |gate_f|^2 |up_f|^2, of rows multiplied by the norm's gains.
// That is a guess: a few channels that are very large on all texts decide, and weights alone do not show them.
// The worth of a channel d of the model's width is the sum over all norms of s_d g_d^2 r_d / sum(...). s is its share
// of the norm's input, g the gain, and r the energy of its columns in the linears that read the norm. Without a
// calibration s is estimated as the mean of its shares in all weights that write the hidden state: embedding, o and
// down (or the gains of a norm after these). Activations are measures of importance in Minitron (Muralidharan et al.,
// arXiv 2407.14679, section 2.2); there the norms' outputs alone judge channels.
//
// widths average: heads are merged as merge_heads says, and channels in contiguous_groups.
//
// Norms over a width of D' instead of D: gains are multiplied by a factor that keeps the outputs of the channels that
// are left. It is the root of the mean square of the remaining input divided by that of the whole input: sqrt(sum of
// the kept channels' s * D / D'). For means it is the root of the measured ratio. Without a calibration it is 1, which
// is exact where the channels of a group are alike. A tied head reads a group's mean as its sum, by the final norm's
// gain.
//
// calibration: required by choose block_error. Otherwise it may be null. The first kStudentWindows of its windows are
// used.
// Throws what check_student throws, std::invalid_argument for a calibration that is missing or of another vocabulary,
// and Interrupted. Throws std::runtime_error for a directory that is not empty, for a teacher's tensor with values that
// are not finite, and for files that cannot be written. config.json is written last.
void make_student(const runtime::Checkpoint& teacher, const StudentOptions& options,
                  const runtime::TokenWindows* calibration, const std::filesystem::path& directory,
                  runtime::Progress& progress);

}  // namespace pare::compress
