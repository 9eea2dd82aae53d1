#include "runtime/export/gguf_read_back.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace pare::runtime {
namespace {

std::string text_of(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

class Comparison {
 public:
  std::vector<DescriptionDifference> found;

  void number(const std::string& fact, double expected, double read, double tolerance = 1e-5) {
    if (std::abs(expected - read) > tolerance * std::max(std::abs(expected), std::abs(read))) {
      found.push_back({fact, text_of(expected), text_of(read)});
    }
  }
  void numbers(const std::string& fact, const std::vector<float>& expected, const std::vector<float>& read) {
    number(fact + " (how many)", static_cast<double>(expected.size()), static_cast<double>(read.size()));
    for (size_t i = 0; i < std::min(expected.size(), read.size()); ++i) {
      const size_t before = found.size();
      number(fact + " (number " + std::to_string(i) + ")", expected[i], read[i], 2e-4);
      if (found.size() != before) return;
    }
  }
  void norm(const std::string& fact, const NormDescription& expected, const NormDescription& read) {
    number(fact + " (whether there is one)", expected.exists(), read.exists());
    if (!expected.exists() || !read.exists()) return;
    number(fact + " (epsilon)", expected.epsilon, read.epsilon);
    number(fact + " (whether it takes the mean off)", expected.centers, read.centers);
    number(fact + " (whether it has a bias)", expected.has_bias, read.has_bias);
  }
};

// A window that no text fills is none.
int64_t window_of(const BlockDescription& block, const ModelDescription& model) {
  return block.sliding_window >= model.context_length ? 0 : block.sliding_window;
}

void compare_blocks(const ModelDescription& model, const ModelDescription& read, size_t b, Comparison& comparison) {
  const BlockDescription &own = model.blocks[b], &other = read.blocks[b];
  const std::string of = "block " + std::to_string(b) + ": ";
  comparison.number(of + "whether its halves are parallel", own.is_parallel, other.is_parallel);
  comparison.norm(of + "the norm before attention", own.attention_norm, other.attention_norm);
  comparison.norm(of + "the norm before the feed-forward", own.feed_forward_norm, other.feed_forward_norm);
  comparison.norm(of + "the norm of q", own.q_norm.value_or(NormDescription()),
                  other.q_norm.value_or(NormDescription()));
  comparison.numbers(of + "RoPE's frequencies", own.rope.inverse_frequencies, other.rope.inverse_frequencies);
  comparison.numbers(of + "RoPE's frequencies in long texts", own.rope.long_inverse_frequencies,
                     other.rope.long_inverse_frequencies);
  comparison.number(of + "RoPE's factor of attention", own.rope.attention_factor, other.rope.attention_factor);
  comparison.number(of + "which channels RoPE pairs", 0.0, own.rope.channels_K != other.rope.channels_K);
  const int64_t window = window_of(own, model), read_window = window_of(other, read);
  if (window != read_window) {
    comparison.found.push_back(
        {of + "the window of attention", std::to_string(window), std::to_string(read_window), true});
  }
  comparison.number(of + "how many experts it has", static_cast<double>(own.experts.size()),
                    static_cast<double>(other.experts.size()));
  if (!own.is_mixture() || !other.is_mixture()) return;
  const RoutingDescription &routing = own.routing, &read_routing = other.routing;
  comparison.number(of + "how many experts a token goes to", static_cast<double>(routing.experts_per_token),
                    static_cast<double>(read_routing.experts_per_token));
  comparison.number(of + "whether experts' weights are divided by their sum", routing.normalizes_top_weights,
                    read_routing.normalizes_top_weights);
  comparison.number(of + "how experts are scored", static_cast<double>(routing.scores),
                    static_cast<double>(read_routing.scores));
  comparison.number(of + "the factor of experts' weights", routing.weight_factor, read_routing.weight_factor);
  comparison.number(of + "groups of experts", static_cast<double>(routing.num_groups),
                    static_cast<double>(read_routing.num_groups));
  comparison.number(of + "groups of experts that a token goes to", static_cast<double>(routing.groups_per_token),
                    static_cast<double>(read_routing.groups_per_token));
  comparison.number(of + "how many scores make a group's", routing.num_group_scores, read_routing.num_group_scores);
}

}  // namespace

std::vector<DescriptionDifference> differences(const ModelDescription& expected, const ModelDescription& found) {
  Comparison comparison;
  const auto size = [&](const std::string& fact, int64_t own, int64_t read) {
    comparison.number(fact, static_cast<double>(own), static_cast<double>(read), 0.0);
  };
  size("the width", expected.hidden_size, found.hidden_size);
  size("the number of blocks", static_cast<int64_t>(expected.blocks.size()), static_cast<int64_t>(found.blocks.size()));
  size("the number of heads", expected.num_heads, found.num_heads);
  size("the number of heads of k", expected.num_kv_heads, found.num_kv_heads);
  size("the size of a head", expected.head_size, found.head_size);
  size("the size of a head of v", expected.value_size, found.value_size);
  size("the vocabulary", expected.vocabulary_size, found.vocabulary_size);
  size("the context", expected.context_length, found.context_length);
  size("the activation", static_cast<int64_t>(expected.activation), static_cast<int64_t>(found.activation));
  size("whether the head is tied", expected.tied_head, found.tied_head);
  size("the row of the first position", expected.first_position, found.first_position);
  comparison.numbers("how scores fall with the distance", expected.alibi_slopes_H, found.alibi_slopes_H);
  constexpr double kBf16 = 1.0 / 128;
  comparison.number("the factor of the embedding", expected.embedding_scale, found.embedding_scale, kBf16);
  comparison.number("the factor of residuals", expected.residual_scale, found.residual_scale);
  comparison.number("the factor of logits", expected.logit_scale, found.logit_scale);
  comparison.number("the factor of attention's scores", expected.attention_scale, found.attention_scale);
  comparison.number("the cap of attention's scores", expected.attention_softcap, found.attention_softcap);
  comparison.number("the cap of logits", expected.logit_softcap, found.logit_softcap);
  comparison.norm("the norm of the embedding", expected.embedding_norm, found.embedding_norm);
  comparison.norm("the last norm", expected.final_norm, found.final_norm);
  for (size_t b = 0; b < std::min(expected.blocks.size(), found.blocks.size()); ++b) {
    compare_blocks(expected, found, b, comparison);
  }
  return comparison.found;
}

}  // namespace pare::runtime
