// config.json -> the mixtures of experts among a decoder's blocks: which blocks, how many experts of which widths, and
// how tokens are routed. Keys mean what they mean to transformers 5 (model_description.cpp).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/families/families.h"
#include "runtime/model/config_section.h"
#include "runtime/model/model_description.h"

namespace pare::runtime {

// The mixtures among the blocks.
struct MixtureOptions {
  MixtureTraits traits;
  int64_t num_experts = 0;
  int64_t feed_forward_size = 0;  // per expert
  int64_t shared_size = 0;        // of the shared expert; 0: there is none
  RoutingDescription routing = {};
  std::vector<bool> is_mixture = {};  // by block
};

// Returns nothing for a family without mixtures. Throws what ConfigSection throws (key, expected, found), also for
// groups that do not fit the experts and for more experts than a model may have.
std::optional<MixtureOptions> describe_mixtures(const ConfigSection& config, const DecoderFamily& family,
                                                int64_t num_blocks);

// Puts the experts in place of the dense network of a block whose inputs have `width` values.
void set_mixture(const MixtureOptions& mixture, int64_t width, BlockDescription& block);

}  // namespace pare::runtime
