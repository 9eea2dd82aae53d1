// Scales that blocks of rows and columns share, as files of several containers hold them: a matrix with one number for
// each block, [ceil(O / rows), ceil(I / columns)]. Linears have each number once for every row and group of columns.
// The groups are as wide as a block where blocks divide the inputs. Otherwise they are narrower, so that they do.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/format/container_format.h"
#include "runtime/format/stored_scheme.h"

namespace pare::runtime {

// Returns the group size of a weight with num_in columns: the largest that divides them and a block's.
int64_t group_of_block(const ScaleBlock& block, int64_t num_in);
// Returns the scheme with `block` and the group size of the weight that `find` has under the module's name and
// `suffix`. Without a weight of two dimensions, whose absence check() reports, the group is a block's.
PackScheme scheme_with_block(PackScheme scheme, const ScaleBlock& block, const FindTensor& find,
                             const std::string& module, std::string_view suffix);

// Returns the shape of the matrix.
std::vector<int64_t> block_shape(const ScaleBlock& block, int64_t num_out, int64_t num_in);
// Returns scales_OG of the matrix `scales`, whose shape is block_shape.
std::vector<float> spread_block_scales(std::span<const float> scales, const ScaleBlock& block, int64_t num_out,
                                       int64_t num_in);
// Does the inverse. Throws std::invalid_argument if the scales of one block differ.
std::vector<float> gather_block_scales(const QuantizedWeight& weight, const ScaleBlock& block,
                                       const std::string& module);

}  // namespace pare::runtime
