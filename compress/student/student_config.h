// A student's config.json from its teacher's.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "compress/recipe/student_options.h"
#include "runtime/model/model_description.h"

namespace pare {

// The teacher's text with the student's sizes: num_hidden_layers, num_attention_heads, num_key_value_heads,
// hidden_size, intermediate_size, and head_dim where the file implied it by other sizes. What says something of single
// layers by their number says it of the kept ones: layer_types (written where the pattern that implied them,
// sliding_window_pattern or max_window_layers, no longer does), lists with an entry for each layer, mlp_only_layers.
// All other keys stay, in their order. `kept` are the teacher's layers that the student's are, ascending.
std::string student_config(const std::string& config_json, const ModelDescription& teacher,
                           const StudentOptions& options, std::span<const int64_t> kept);

}  // namespace pare
