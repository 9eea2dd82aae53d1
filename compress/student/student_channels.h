// Chooses the teacher's layers, heads and channels from which a student is built, and the gains of its norms.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "compress/recipe/student_options.h"
#include "compress/student/measure.h"
#include "distill/student_weights.h"
#include "runtime/model/checkpoint.h"

namespace pare::compress {

struct StudentNorm {
  std::vector<float> gain_D;        // the teacher's, with layers averaged and the unit offset added
  std::vector<float> student_gain;  // the student's, likewise
};

struct StudentBlock {
  int64_t kept = 0;            // the teacher's layer that the block is derived from
  std::vector<int64_t> run{};  // the layers whose mean it is; only the kept one where layers are copied
  distill::HeadGroups heads{};
  distill::ChannelGroups feed_forward{};
  StudentNorm attention_norm{}, feed_forward_norm{};
  StudentNorm post_attention_norm{}, post_feed_forward_norm{};  // empty unless the block has them
};

// The linears that read the stream after a norm sum the groups, with gains that differ within a group as sum_of_gained
// says.
struct StudentChannels {
  std::vector<StudentBlock> blocks;
  distill::ChannelGroups hidden;
  StudentNorm final_norm;
  double embedding_factor = 1.0;  // multiplies the table, where the family scales embeddings by its width
};

// Reads the teacher's weights of a run of layers, one at a time.
class TeacherWeights {
 public:
  explicit TeacherWeights(const runtime::Checkpoint& teacher) : teacher_(teacher) {}
  // Returns the mean over `run`, in float32 and as a copy, of the tensors that have this name below their blocks
  // ("self_attn.q_proj.weight" for "model.layers.3.self_attn.q_proj.weight").
  at::Tensor mean(const std::vector<int64_t>& run, const std::string& below_block) const;
  at::Tensor read(const std::string& tensor) const;

 private:
  const runtime::Checkpoint& teacher_;
};

// Returns whether the teacher is to be measured on text for these options.
bool needs_measure(const StudentOptions& options, bool has_calibration);

// Chooses all layers, heads and channels. `measure` is null without a calibration. embedding_factor is the teacher's
// embedding scale divided by the student's.
StudentChannels choose_channels(const runtime::Checkpoint& teacher, const StudentOptions& options,
                                const TeacherMeasure* measure, double embedding_factor);
// Chooses the layers alone.
std::vector<int64_t> choose_layers(const runtime::ModelDescription& teacher, const StudentOptions& options,
                                   const TeacherMeasure* measure);

}  // namespace pare::compress
