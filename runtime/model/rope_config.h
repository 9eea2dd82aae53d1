// config.json -> the rotations of a decoder's blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/families/families.h"
#include "runtime/model/config_section.h"
#include "runtime/model/model_description.h"

namespace pare::runtime {

struct RopePair {
  RopeDescription global, local;  // local: the sliding blocks' where they have their own, else the same
};

// The rotations of a family: what its config.json may say, and what it leaves unsaid.
struct RopeTraits {
  RotationTraits rotation = {};
  std::string_view theta_key = "rope_theta";
  double default_theta = 1e4;
  bool has_two = false;             // rope_parameters has a set for each of two types of layers
  std::string_view local_key = {};  // theta of the sliding layers in older files
  double default_local_theta = 1e4;
  static RopeTraits of(const ConfigSection& config, const DecoderFamily& family);
};

// Reads rope_parameters, and rope_scaling, rope_theta and partial_rotary_factor of older files, for heads of head_size
// channels. Throws std::invalid_argument for a scaling that pare does not compute, and for missing, mistyped or
// impossible values.
RopePair describe_ropes(const ConfigSection& config, const RopeTraits& traits, int64_t head_size,
                        int64_t context_length);

// Returns which blocks are rotated at all. windows: of each block, 0 for none. Throws std::invalid_argument for a list
// of another length or with other values than 0 and 1.
std::vector<bool> rotated_blocks(const ConfigSection& config, const RotationTraits& traits,
                                 const std::vector<int64_t>& windows);

// Returns the rotation of heads of num_channels as that of the last channels of wider heads, whose others are not
// rotated. Both sizes are even.
RopeDescription in_last_channels(const RopeDescription& rope, int64_t num_channels, int64_t head_size);

// Returns the factor of attention's scores that a scaling with mscale_all_dim brings to latent attention (transformers'
// yarn_apply_mscale); 1 without.
double latent_temperature(const ConfigSection& config);

}  // namespace pare::runtime
