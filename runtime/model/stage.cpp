#include "runtime/model/stage.h"

#include <stdexcept>

namespace pare::runtime {
namespace {

const FeedForwardDescription& feed_forward_of(const BlockDescription& block, Stage stage) {
  if (!block.is_mixture() && stage.expert == Stage::kNoExpert) return block.experts.front();
  if (block.is_mixture() && stage.expert >= 0 && stage.expert < static_cast<int64_t>(block.experts.size())) {
    return block.experts[static_cast<size_t>(stage.expert)];
  }
  throw std::invalid_argument(block.name + (block.is_mixture() ? ": a mixture of " : ": a dense block, ") +
                              std::to_string(block.experts.size()) + " experts; it has no " + stage_name(stage));
}

}  // namespace

std::vector<Stage> block_stages(const BlockDescription& block) {
  std::vector<Stage> stages = {Stage::attention_input};
  if (block.latent && block.latent->q_a) stages.emplace_back(Stage::query_latent);
  if (block.latent) stages.emplace_back(Stage::key_value_latent);
  stages.emplace_back(Stage::attention_output);
  if (!block.is_mixture()) {
    stages.insert(stages.end(), {Stage::feed_forward_input, Stage::feed_forward_output});
    return stages;
  }
  for (int64_t e = 0; e < static_cast<int64_t>(block.experts.size()); ++e) {
    stages.insert(stages.end(), {{Stage::feed_forward_input, e}, {Stage::feed_forward_output, e}});
  }
  return stages;
}

std::string stage_name(Stage stage) {
  constexpr std::array kNames = {"attention input",     "attention output", "feed-forward input",
                                 "feed-forward output", "query latent",     "key-value latent"};
  return kNames.at(stage.kind) + (stage.expert == Stage::kNoExpert ? "" : " of expert " + std::to_string(stage.expert));
}

std::string_view site_name(ActivationSite site) {
  switch (site) {
    case ActivationSite::embedding_sum:
      return "sum of embeddings";
    case ActivationSite::softmax_input:
      return "softmax input";
    case ActivationSite::softmax_output:
      return "softmax output";
    case ActivationSite::attention_output:
      return "self-attention output";
    case ActivationSite::residual_sum:
      return "residual sum after the feed-forward";
  }
  throw std::invalid_argument("no such site");
}

std::vector<LinearDescription> stage_layers(const BlockDescription& block, Stage stage) {
  switch (stage.kind) {
    case Stage::attention_input:
      return block.attention_readers();
    case Stage::attention_output:
      return {block.o};
    case Stage::feed_forward_input:
      return feed_forward_of(block, stage).readers();
    case Stage::query_latent:
      if (block.latent && block.latent->q_a) return {block.q};
      break;
    case Stage::key_value_latent:
      if (block.latent) return {block.latent->kv_b};
      break;
    case Stage::feed_forward_output:
      return {feed_forward_of(block, stage).down};
  }
  throw std::invalid_argument(block.name + ": it has no " + stage_name(stage));
}

std::vector<LinearDescription> stage_layers(const EncoderBlockDescription& block, Stage stage) {
  switch (stage.kind) {
    case Stage::attention_input:
      return block.attention_readers();
    case Stage::attention_output:
      return {block.o};
    case Stage::feed_forward_input:
      return block.feed_forward.readers();
    case Stage::feed_forward_output:
      return {block.feed_forward.down};
    case Stage::query_latent:
    case Stage::key_value_latent:
      break;
  }
  throw std::invalid_argument("no such stage");
}

const NormDescription& stage_norm(const BlockDescription& block, Stage stage) {
  switch (stage.kind) {
    case Stage::attention_input:
      return block.attention_norm;
    case Stage::feed_forward_input:
      return block.feed_forward_norm;
    case Stage::query_latent:
      if (block.latent) return block.latent->q_norm;
      break;
    case Stage::key_value_latent:
      if (block.latent) return block.latent->kv_norm;
      break;
    case Stage::attention_output:
    case Stage::feed_forward_output:
      break;
  }
  throw std::invalid_argument(block.name + ": no norm stands before the " + stage_name(stage) + " alone");
}

bool folds_into_linear(Stage stage) {
  return stage.kind == Stage::attention_output || stage.kind == Stage::feed_forward_output;
}

double token_share(const BlockDescription& block, Stage stage) {
  if (stage.expert == Stage::kNoExpert) return 1.0;
  if (stage.expert >= block.num_routed()) return 1.0;
  return static_cast<double>(block.routing.routed_per_token()) / static_cast<double>(block.num_routed());
}

int64_t stage_width(const BlockDescription& block, Stage stage) {
  return stage_layers(block, stage).front().num_in;
}

}  // namespace pare::runtime
