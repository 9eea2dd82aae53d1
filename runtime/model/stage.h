// The inputs of a block, four of most, and the linears that read each. Calibration, plans and passes work by stages.
//
//   decoder                                                 encoder that normalizes after its sums
//   attention_input      norm(hidden)        q, k, v        hidden          q, k, v
//   attention_output     attention(q, k, v)  o              likewise        o
//   feed_forward_input   norm(hidden)        gate, up       hidden          up
//   feed_forward_output  act(gate) * up      down           act(up)         down
//
// With latent attention (LatentAttention) q_a, or q without it, and kv_a read the attention input, and two stages stand
// behind it:
//
//   query_latent         q_norm(q_a(x))      q              where there is a q_a
//   key_value_latent     kv_norm(kv_a(x))    kv_b
//
// In a mixture each expert has the two feed-forward stages for itself, the shared expert too.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/encoder_description.h"
#include "runtime/model/model_description.h"

namespace pare::runtime {

struct Stage {
  enum Kind {
    attention_input,
    attention_output,
    feed_forward_input,
    feed_forward_output,
    query_latent,
    key_value_latent
  };
  static constexpr int64_t kNoExpert = -1;
  Kind kind = attention_input;
  int64_t expert = kNoExpert;  // in a mixture's feed-forward stages: the expert

  constexpr Stage(Kind stage_kind, int64_t stage_expert = kNoExpert) : kind(stage_kind), expert(stage_expert) {}
  bool operator==(const Stage&) const = default;
  // The place in block_stages of a block without latents.
  explicit constexpr operator size_t() const {
    return static_cast<size_t>(kind) + (expert > 0 ? 2 * static_cast<size_t>(expert) : 0);
  }
};
// The stages of a dense block without latents.
inline constexpr std::array<Stage, 4> kStages = {Stage::attention_input, Stage::attention_output,
                                                 Stage::feed_forward_input, Stage::feed_forward_output};
// Returns the stages in the order in which a token reaches them, a mixture's experts one after the other.
std::vector<Stage> block_stages(const BlockDescription& block);
std::string stage_name(Stage stage);  // "feed-forward input", "feed-forward input of expert 3"

// Returns the linears that read the stage's input, in order.
// Throws std::invalid_argument for a feed-forward stage that names no expert of a mixture, or one of a dense block.
std::vector<LinearDescription> stage_layers(const BlockDescription& block, Stage stage);
std::vector<LinearDescription> stage_layers(const EncoderBlockDescription& block, Stage stage);

// Returns the norm that makes the stage's input, without a name where there is none. Throws std::invalid_argument for a
// stage whose input no norm makes.
const NormDescription& stage_norm(const BlockDescription& block, Stage stage);

// True if a linear (v, up) produces the stage's input, and not a norm.
bool folds_into_linear(Stage stage);

// Returns the share of all tokens that reaches the stage, on average.
double token_share(const BlockDescription& block, Stage stage);

// Returns the width I of the stage's input.
int64_t stage_width(const BlockDescription& block, Stage stage);

// Activations whose rounding is measured alone, in addition to the stages' inputs. They have the names of the study of
// BERT (Bondarenko et al., arXiv 2109.12948, section 4). They are the hidden state before the first block, the input
// and output of softmax, the output of attention that is added to the hidden state, and the hidden state after a block.
enum class ActivationSite { embedding_sum, softmax_input, softmax_output, attention_output, residual_sum };
inline constexpr std::array<ActivationSite, 5> kActivationSites = {
    ActivationSite::embedding_sum, ActivationSite::softmax_input, ActivationSite::softmax_output,
    ActivationSite::attention_output, ActivationSite::residual_sum};
std::string_view site_name(ActivationSite site);  // "softmax input"

}  // namespace pare::runtime
