// The four inputs of a block and the linears that read each: what calibration, plans and passes count in.
//
//   decoder                                                 encoder
//   attention_input      norm(hidden)        q, k, v        hidden
//   attention_output     attention(q, k, v)  o
//   feed_forward_input   norm(hidden)        gate, up       hidden          up
//   feed_forward_output  act(gate) * up      down           act(up)         down
//
// In a mixture each expert has the two feed-forward stages for itself.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/encoder_description.h"
#include "runtime/model/model_description.h"

namespace pare {

struct Stage {
  enum Kind { attention_input, attention_output, feed_forward_input, feed_forward_output };
  static constexpr int64_t kNoExpert = -1;
  Kind kind = attention_input;
  int64_t expert = kNoExpert;  // of a mixture's feed-forward stages: whose

  constexpr Stage(Kind stage_kind, int64_t stage_expert = kNoExpert) : kind(stage_kind), expert(stage_expert) {}
  bool operator==(const Stage&) const = default;
  // The place in block_stages.
  explicit constexpr operator size_t() const {
    return static_cast<size_t>(kind) + (expert > 0 ? 2 * static_cast<size_t>(expert) : 0);
  }
};
// Of a dense block.
inline constexpr std::array<Stage, 4> kStages = {Stage::attention_input, Stage::attention_output,
                                                 Stage::feed_forward_input, Stage::feed_forward_output};
// In the order in which a token meets them; a mixture's experts one after the other.
std::vector<Stage> block_stages(const BlockDescription& block);
std::string stage_name(Stage stage);  // "feed-forward input", "feed-forward input of expert 3"

// The linears that read the stage's input, in order.
// Throws std::invalid_argument for a feed-forward stage that names no expert of a mixture, or one of a dense block.
std::vector<LinearDescription> stage_layers(const BlockDescription& block, Stage stage);
std::vector<LinearDescription> stage_layers(const EncoderBlockDescription& block, Stage stage);

// Whether what produces the stage's input is a linear (v, up), and not a norm.
bool folds_into_linear(Stage stage);

// Which part of all tokens reaches the stage, on average.
double token_share(const BlockDescription& block, Stage stage);

// Width I of the stage's input.
int64_t stage_width(const BlockDescription& block, Stage stage);

// Activations beside the stages' inputs whose rounding alone is measured, with the names that the study of BERT gives
// them (Bondarenko et al., arXiv 2109.12948, section 4): the hidden state before the first block, what softmax reads
// and makes, what attention adds to the hidden state, and the hidden state behind a block.
enum class ActivationSite { embedding_sum, softmax_input, softmax_output, attention_output, residual_sum };
inline constexpr std::array<ActivationSite, 5> kActivationSites = {
    ActivationSite::embedding_sum, ActivationSite::softmax_input, ActivationSite::softmax_output,
    ActivationSite::attention_output, ActivationSite::residual_sum};
std::string_view site_name(ActivationSite site);  // "softmax input"

}  // namespace pare
