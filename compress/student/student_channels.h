// Which of the teacher's layers, heads and channels a student is made of, and what becomes of its norms' gains.
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

namespace pare {

struct StudentNorm {
  std::vector<float> gain_D;        // of the teacher, layers averaged, with the unit offset added
  std::vector<float> student_gain;  // likewise of the student
};

struct StudentBlock {
  int64_t kept = 0;            // the teacher's layer, whose kind it is
  std::vector<int64_t> run{};  // the layers whose mean it is; the kept one alone where layers are copied
  HeadGroups heads{};
  ChannelGroups feed_forward{};
  StudentNorm attention_norm{}, feed_forward_norm{};
  StudentNorm post_attention_norm{}, post_feed_forward_norm{};  // where the block has them
};

// What reads the stream behind a norm sums the groups, with the gains that differ within one as sum_of_gained says.
struct StudentChannels {
  std::vector<StudentBlock> blocks;
  ChannelGroups hidden;
  StudentNorm final_norm;
  double embedding_factor = 1.0;  // of the table, where the family scales embeddings by its width
};

// The teacher's weights of a run of layers, one at a time.
class TeacherWeights {
 public:
  explicit TeacherWeights(const Checkpoint& teacher) : teacher_(teacher) {}
  // float32, a copy: the mean over `run` of the tensors that are called so below their blocks
  // ("self_attn.q_proj.weight" for "model.layers.3.self_attn.q_proj.weight").
  at::Tensor mean(const std::vector<int64_t>& run, const std::string& below_block) const;
  at::Tensor read(const std::string& tensor) const;

 private:
  const Checkpoint& teacher_;
};

// Whether the teacher's text is to be measured for these options.
bool needs_measure(const StudentOptions& options, bool has_calibration);

// measure: null without a calibration. embedding_factor: the teacher's embedding scale by the student's.
StudentChannels choose_channels(const Checkpoint& teacher, const StudentOptions& options, const TeacherMeasure* measure,
                                double embedding_factor);
// The layers alone.
std::vector<int64_t> choose_layers(const ModelDescription& teacher, const StudentOptions& options,
                                   const TeacherMeasure* measure);

}  // namespace pare
