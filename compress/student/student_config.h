// Makes a student's config.json from its teacher's.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "compress/recipe/student_options.h"
#include "runtime/model/model_description.h"

namespace pare::compress {

// Returns the teacher's text with the student's sizes: num_hidden_layers, num_attention_heads, num_key_value_heads,
// hidden_size and intermediate_size. head_dim is added where the file implied it by other sizes. Keys that describe
// single layers by their number then describe the kept ones: lists with an entry for each layer, mlp_only_layers, and
// layer_types. The latter is written where the pattern that implied it, sliding_window_pattern or max_window_layers, no
// longer does so. Blocks behind the last one, which predict later tokens, are left out: their number becomes 0.
// All other keys stay, in their order. `kept` are the teacher's layers that the student has, ascending.
std::string student_config(const std::string& config_json, const runtime::ModelDescription& teacher,
                           const StudentOptions& options, std::span<const int64_t> kept);

}  // namespace pare::compress
