#include "runtime/model/mixture_description.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace pare::runtime {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxExperts = 1024;                   // per block
constexpr int64_t kMaxExpertsInAll = int64_t{1} << 17;  // over all blocks

std::vector<bool> blocks_by_step(const ConfigSection& config, int64_t num_blocks) {
  const int64_t step = config.integer_or("decoder_sparse_step", 1, 1, kMaxTokens);
  std::vector<bool> is_mixture;
  for (int64_t b = 0; b < num_blocks; ++b) is_mixture.push_back((b + 1) % step == 0);
  const Json* dense = config.find("mlp_only_layers");
  if (dense == nullptr) return is_mixture;
  if (!dense->is_array()) config.fail("mlp_only_layers", "a list of layer numbers");
  for (const Json& layer : *dense) {
    // transformers tolerates numbers of layers that do not exist.
    if (!layer.is_number_unsigned()) config.fail("mlp_only_layers", "a list of layer numbers");
    const auto index = layer.get<uint64_t>();
    if (index < is_mixture.size()) is_mixture[static_cast<size_t>(index)] = false;
  }
  return is_mixture;
}

std::vector<bool> mixture_blocks(const ConfigSection& config, const MixtureTraits& traits, int64_t num_blocks) {
  if (traits.blocks == MixtureBlocks::by_step) return blocks_by_step(config, num_blocks);
  int64_t first = 0, last = num_blocks - 1, interval = 1;
  if (traits.blocks == MixtureBlocks::behind_the_first) {
    first = config.integer_or("first_k_dense_replace", traits.default_first_blocks, 0, kMaxTokens);
  } else if (traits.blocks == MixtureBlocks::in_a_range) {
    first = config.integer_or("moe_layer_start_index", traits.default_first_blocks, 0, kMaxTokens);
    interval = config.integer_or("moe_layer_interval", 1, 1, kMaxTokens);
    const int64_t end = config.integer_or("moe_layer_end_index", -1, -1, kMaxTokens);
    if (end >= 0) last = end;
  }
  std::vector<bool> is_mixture;
  for (int64_t b = 0; b < num_blocks; ++b) is_mixture.push_back(b >= first && b <= last && (b + 1) % interval == 0);
  return is_mixture;
}

// Groups of experts; num_experts counts the routed ones.
void read_groups(const ConfigSection& config, const MixtureTraits& traits, int64_t num_experts,
                 RoutingDescription& routing) {
  if (traits.groups_key.empty()) return;
  if (!traits.group_method_key.empty()) {
    const std::string method = config.string_or(traits.group_method_key, "greedy");
    if (method == "greedy") return;
    if (method != "group_limited_greedy") config.fail(traits.group_method_key, "greedy or group_limited_greedy");
  }
  routing.num_group_scores = traits.num_group_scores;
  routing.num_groups = config.integer_or(traits.groups_key, traits.default_groups, 1, kMaxExpertGroups);
  if (routing.num_groups == 1) return;
  if (num_experts % routing.num_groups != 0 || num_experts / routing.num_groups < 2) {
    config.fail(traits.groups_key, "groups of two experts or more, all of one size, of the " +
                                       std::to_string(num_experts) + " that there are");
  }
  routing.groups_per_token =
      config.integer_or(traits.groups_per_token_key, traits.default_groups_per_token, 1, routing.num_groups);
  if (routing.groups_per_token > routing.num_groups) {  // the default
    config.fail(traits.groups_per_token_key, "a whole number from 1 to " + std::to_string(routing.num_groups) +
                                                 ", as it is " + std::to_string(routing.groups_per_token) +
                                                 " where the key is missing");
  }
  if (routing.groups_per_token * (num_experts / routing.num_groups) < routing.experts_per_token) {
    config.fail(traits.groups_per_token_key, "groups that hold a token's " + std::to_string(routing.experts_per_token) +
                                                 " experts (" + std::string(traits.per_token_key) + ")");
  }
}

// Returns the shared expert's width; 0: there is none.
int64_t shared_size(const ConfigSection& config, const MixtureTraits& traits, int64_t expert_size) {
  const SharedExpertTraits& shared = traits.shared;
  if (shared.module.empty()) return 0;
  if (!shared.size_key.empty()) return config.integer(shared.size_key, 1, kMaxFeedForward);
  const int64_t most = kMaxFeedForward / expert_size;
  return expert_size * (shared.default_count > 0 ? config.integer_or(shared.count_key, shared.default_count, 0, most)
                                                 : config.integer(shared.count_key, 0, most));
}

}  // namespace

std::optional<MixtureOptions> describe_mixtures(const ConfigSection& config, const DecoderFamily& family,
                                                int64_t num_blocks) {
  if (!family.mixture) return std::nullopt;
  MixtureOptions mixture = {.traits = *family.mixture};
  const MixtureTraits& traits = mixture.traits;
  const std::string_view count = config.has("num_local_experts") ? "num_local_experts" : traits.older_count_key;
  mixture.num_experts = config.integer(count, 1, std::min(kMaxExperts, kMaxExpertsInAll / num_blocks));
  mixture.feed_forward_size = config.integer(traits.size_key, 1, kMaxFeedForward);
  RoutingDescription& routing = mixture.routing;
  routing.experts_per_token = config.integer(traits.per_token_key, 1, mixture.num_experts);
  routing.normalizes_top_weights =
      traits.normalizing_key.empty() || config.boolean_or(traits.normalizing_key, traits.default_normalizing);
  routing.scores = traits.has_sigmoid_scores ? RouterScores::sigmoid : RouterScores::softmax;
  routing.smallest_sum =
      static_cast<float>(config.number_or(traits.smallest_sum_key, traits.default_smallest_sum, 0.0, 1.0));
  routing.weight_factor =
      static_cast<float>(config.number_or(traits.factor_key, traits.default_factor, 0.0, kMaxFactor));
  read_groups(config, traits, mixture.num_experts, routing);
  mixture.shared_size = shared_size(config, traits, mixture.feed_forward_size);
  if (mixture.shared_size > 0) {
    ++routing.experts_per_token;
    routing.has_shared = true;
    routing.weighs_shared = !traits.shared.gate.empty();
  }
  mixture.is_mixture = mixture_blocks(config, traits, num_blocks);
  return mixture;
}

void set_mixture(const MixtureOptions& mixture, int64_t width, BlockDescription& block) {
  const MixtureTraits& traits = mixture.traits;
  const std::string module = block.name + "." + std::string(traits.module) + ".";
  block.router = LinearDescription{module + std::string(traits.router), mixture.num_experts, width, traits.has_biases};
  block.routing = mixture.routing;
  block.experts.clear();
  const auto add_expert = [&](const std::string& name, int64_t inner) {
    const std::string expert = module + name + ".";
    block.experts.push_back({{expert + std::string(traits.gate), inner, width, traits.has_biases},
                             {expert + std::string(traits.up), inner, width, traits.has_biases},
                             {expert + std::string(traits.down), width, inner, traits.has_biases}});
  };
  for (int64_t e = 0; e < mixture.num_experts; ++e) {
    add_expert("experts." + std::to_string(e), mixture.feed_forward_size);
  }
  if (!traits.correction.empty()) {
    block.correction = VectorDescription{module + std::string(traits.correction), mixture.num_experts};
  }
  if (!block.routing.has_shared) return;
  add_expert(std::string(traits.shared.module), mixture.shared_size);
  if (block.routing.weighs_shared) {
    block.shared_gate = LinearDescription{module + std::string(traits.shared.gate), 1, width, false};
  }
}

}  // namespace pare::runtime
