#include "runtime/engine/backend_checks.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace pare::runtime {
namespace {

void require(bool condition, const char* operation, const std::string& message) {
  if (!condition) throw std::invalid_argument(std::string(operation) + ": " + message);
}

}  // namespace

void check_ids(std::span<const int32_t> ids_R, int64_t vocabulary_size, const char* operation) {
  for (size_t r = 0; r < ids_R.size(); ++r) {
    require(ids_R[r] >= 0 && ids_R[r] < vocabulary_size, operation,
            "row " + std::to_string(r) + ": expected a token id in [0, " + std::to_string(vocabulary_size) +
                "), found " + std::to_string(ids_R[r]));
  }
}

void check_norm(const PackedNorm* norm, int64_t width, const char* operation) {
  require(norm == nullptr || norm->gain_D.size() == width, operation,
          "expected a norm of width " + std::to_string(width) + ", found " +
              std::to_string(norm == nullptr ? 0 : norm->gain_D.size()));
  require(norm == nullptr || norm->bias_D.size() == 0 || norm->bias_D.size() == width, operation,
          "expected a norm's bias of width " + std::to_string(width) + ", found " +
              std::to_string(norm == nullptr ? 0 : norm->bias_D.size()));
}

void check_columns(int64_t row_width, int64_t first, const PackedNorm& norm) {
  require(first >= 0 && norm.gain_D.size() <= row_width - first, "norm_columns",
          "expected a norm of at most " + std::to_string(row_width - first) + " columns, found " +
              std::to_string(norm.gain_D.size()));
}

void check_ungated(Activation activation) {
  require(activation != Activation::clamped_swiglu, "activate_ungated",
          "expected an activation without a gate, found clamped_swiglu");
}

void check_parts_of_row(int64_t row_width, const ColumnParts& columns) {
  require(columns.first >= 0 && columns.width > 0 && columns.count > 0 && columns.stride >= columns.width &&
              columns.end() <= row_width,
          "take_columns",
          "expected parts within rows of " + std::to_string(row_width) + " columns, found " +
              std::to_string(columns.count) + " of " + std::to_string(columns.width) + " columns from " +
              std::to_string(columns.first) + " on, " + std::to_string(columns.stride) + " apart");
}

void check_latents(const LatentRows& rows, const LatentShape& shape) {
  require(shape.num_heads > 0 && shape.num_rotated > 0 && shape.num_rotated < shape.head_size && shape.value_size > 0 &&
              shape.value_size <= shape.head_size && rows.q_stride >= shape.num_heads * shape.head_size &&
              rows.rotated_stride >= shape.num_rotated,
          "join_latents",
          "expected heads whose values and rotated channels fit them, found heads of " +
              std::to_string(shape.head_size) + " with " + std::to_string(shape.num_rotated) +
              " rotated channels and values of " + std::to_string(shape.value_size));
}

void check_positions(std::span<const int32_t> positions_R, int64_t first_position, int64_t num_rows) {
  for (size_t r = 0; r < positions_R.size(); ++r) {
    require(positions_R[r] >= 0 && positions_R[r] + first_position < num_rows, "add_positions",
            "row " + std::to_string(r) + ": expected a position in [0, " + std::to_string(num_rows - first_position) +
                "), found " + std::to_string(positions_R[r]));
  }
}

void check_layer_norm(const PackedLayerNorm& norm, int64_t width) {
  require(norm.gain_D.size() == width && norm.bias_D.size() == width, "add_layer_norm",
          "expected gain and bias of width " + std::to_string(width) + ", found " + std::to_string(norm.gain_D.size()) +
              " and " + std::to_string(norm.bias_D.size()));
}

void check_mean_rows(const Sequences& sequences) {
  for (size_t s = 0; s < sequences.table.size(); ++s) {
    const Sequence& sequence = sequences.table[s];
    require(
        sequence.num_rows > 0 && sequence.first_row >= 0, "mean_rows",
        "sequence " + std::to_string(s) + ": expected at least one row, found " + std::to_string(sequence.num_rows));
  }
}

void check_shape(const AttentionShape& shape, const char* operation) {
  require(shape.num_heads > 0 && shape.num_kv_heads > 0 && shape.num_heads % shape.num_kv_heads == 0, operation,
          "expected a positive number of kv heads that divides the number of heads, found " +
              std::to_string(shape.num_heads) + " heads and " + std::to_string(shape.num_kv_heads) + " kv heads");
  require(shape.head_size > 0 && shape.head_size % 2 == 0, operation,
          "expected an even head size, found " + std::to_string(shape.head_size));
  require(shape.causal || shape.slopes_H == nullptr, operation,
          "expected no slopes of scores where tokens see later ones");
  require(shape.causal || shape.sinks_H == nullptr, operation, "expected no sinks where tokens see later ones");
  require(!shape.causal || shape.distances_HN == nullptr, operation,
          "expected no scores of distances where tokens do not see later ones");
  require(shape.reach >= 0, operation, "expected no negative reach, found " + std::to_string(shape.reach));
  require(shape.sliding_window >= 0 && shape.softcap >= 0.0f, operation,
          "expected no negative sliding window or soft cap, found " + std::to_string(shape.sliding_window) + " and " +
              std::to_string(shape.softcap));
}

void check_rope_store(const PackedRope& rope, const PackedNorm* q_norm, const PackedNorm* k_norm,
                      const AttentionShape& shape, std::span<const int32_t> positions_R,
                      std::span<const int32_t> slots_R, const KvLayer& cache) {
  constexpr const char* kOperation = "rope_store";
  check_shape(shape, kOperation);
  check_norm(q_norm, shape.head_size, kOperation);
  check_norm(k_norm, shape.head_size, kOperation);
  require(rope.head_size == shape.head_size, kOperation,
          "expected a rope table of head size " + std::to_string(shape.head_size) + ", found " +
              std::to_string(rope.head_size));
  require(positions_R.size() == slots_R.size(), kOperation,
          "expected one slot for each of " + std::to_string(positions_R.size()) + " positions, found " +
              std::to_string(slots_R.size()));
  for (size_t r = 0; r < positions_R.size(); ++r) {
    require(positions_R[r] >= 0 && positions_R[r] < rope.num_positions, kOperation,
            "row " + std::to_string(r) + ": expected a position in [0, " + std::to_string(rope.num_positions) +
                "), found " + std::to_string(positions_R[r]));
    require(slots_R[r] >= 0 && slots_R[r] < cache.num_slots, kOperation,
            "row " + std::to_string(r) + ": expected a slot in [0, " + std::to_string(cache.num_slots) + "), found " +
                std::to_string(slots_R[r]));
  }
}

void check_attention(const KvLayer& cache, const Sequences& sequences, const AttentionShape& shape) {
  constexpr const char* kOperation = "attention";
  check_shape(shape, kOperation);
  require(!shape.products_in_8_bits || cache.is_int8(), kOperation,
          "expected 8-bit keys and values for products in 8 bits, found floats");
  for (size_t s = 0; s < sequences.table.size(); ++s) {
    const Sequence& sequence = sequences.table[s];
    require(sequence.first_row >= 0 && sequence.num_rows >= 0 && sequence.num_past >= 0 && sequence.first_slot >= 0 &&
                sequence.num_past <= cache.num_slots && sequence.num_rows <= cache.num_slots - sequence.num_past &&
                sequence.first_slot <= cache.num_slots - sequence.num_past - sequence.num_rows,
            kOperation,
            "sequence " + std::to_string(s) + ": expected its tokens within " + std::to_string(cache.num_slots) +
                " slots, found " + std::to_string(sequence.num_past) + " past and " +
                std::to_string(sequence.num_rows) + " new ones from slot " + std::to_string(sequence.first_slot) +
                " on (first row " + std::to_string(sequence.first_row) + ")");
  }
}

void check_parts(std::span<const LinearWeights> parts) {
  require(!parts.empty(), "pack", "expected at least one linear, found none");
  const LinearWeights& first = parts.front();
  validate(first.input, first.num_in(), first.name);
  for (const LinearWeights& part : parts) {
    require(part.num_in() == first.num_in(), "pack",
            part.name + ": expected " + std::to_string(first.num_in()) + " inputs as in " + first.name + ", found " +
                std::to_string(part.num_in()));
    require(part.input == first.input, "pack",
            part.name + ": expected an input in the format of " + first.name + " (" + input_format_name(first.input) +
                "), which reads the same rows, found another (" + input_format_name(part.input) +
                "): give them one format, one scale and one list of outlier columns");
    require(part.bias_O.empty() || static_cast<int64_t>(part.bias_O.size()) == part.num_out(), "pack",
            part.name + ": expected a bias of " + std::to_string(part.num_out()) + " values, found " +
                std::to_string(part.bias_O.size()));
    const auto* weight = std::get_if<QuantizedWeight>(&part.weight);
    require(part.outlier_weight_OJ.empty() || (weight != nullptr && weight->code->is_integer() && weight->symmetric),
            "pack", part.name + ": columns in floating point need symmetric integer codes beside them");
    const int64_t num_outliers =
        part.input.outliers == OutlierRule::columns ? static_cast<int64_t>(part.input.outlier_columns.size()) : 0;
    require(part.outlier_weight_OJ.empty() ||
                static_cast<int64_t>(part.outlier_weight_OJ.size()) == part.num_out() * num_outliers,
            "pack",
            part.name + ": expected outlier columns [" + std::to_string(part.num_out()) + ", " +
                std::to_string(num_outliers) + "], found " + std::to_string(part.outlier_weight_OJ.size()) + " values");
  }
}

void check_input(const PackedLinear& packed, const LinearInput& x) {
  require(packed.input() == x.format() && packed.multiplies_codes() == x.as_codes(), "linear",
          packed.kernel_name() + ": expected rows in its format " + input_format_name(packed.input()) + ", found " +
              input_format_name(x.format()));
}

void check_sequences(const LinearInput& x, int64_t num_rows) {
  if (x.format().is_rowwise()) return;
  int64_t row = 0;
  bool in_order = true;
  for (const Sequence& sequence : x.sequences().table) {
    in_order = in_order && sequence.first_row == row;
    row += sequence.num_rows;
  }
  require(in_order && row == num_rows, "rounding",
          "the format " + input_format_name(x.format()) + " looks at whole sequences: expected " +
              std::to_string(num_rows) + " rows in consecutive sequences, found " + std::to_string(row) + " in " +
              std::to_string(x.sequences().table.size()));
}

void check_head(const PackedLinear& head, const char* operation) {
  require(head.input().keeps_values(), operation,
          head.kernel_name() + ": expected a head with plain activations, found " + input_format_name(head.input()));
}

void check_routing(int64_t num_experts, const RoutingDescription& routing) {
  const int64_t num_routed = routing.num_routed(num_experts);
  const int64_t group_size = routing.num_groups < 1 ? 0 : num_routed / routing.num_groups;
  require(routing.routed_per_token() >= 1 && routing.routed_per_token() <= num_routed, "route",
          "expected from 1 to " + std::to_string(num_routed) + " experts per token, found " +
              std::to_string(routing.routed_per_token()));
  require(routing.num_groups == 1 || (group_size >= 2 && group_size * routing.num_groups == num_routed &&
                                      routing.num_groups <= kMaxExpertGroups && routing.groups_per_token >= 1 &&
                                      routing.groups_per_token <= routing.num_groups &&
                                      routing.routed_per_token() <= routing.groups_per_token * group_size),
          "route",
          "expected groups of two experts or more that hold those of a token, found " +
              std::to_string(routing.groups_per_token) + " of " + std::to_string(routing.num_groups) + " groups of " +
              std::to_string(num_routed) + " experts, for " + std::to_string(routing.routed_per_token()));
}

void check_mix(std::span<const int32_t> slots_RK, std::span<const float> weights_RK, int64_t num_rows) {
  require(slots_RK.size() == weights_RK.size() && num_rows >= 0 &&
              (num_rows == 0 ? slots_RK.empty() : slots_RK.size() % static_cast<size_t>(num_rows) == 0),
          "mix",
          "expected as many slots as weights for each of " + std::to_string(num_rows) + " rows, found " +
              std::to_string(slots_RK.size()) + " and " + std::to_string(weights_RK.size()));
}

void check_vocabularies(const PackedLinear& head_p, const PackedLinear& head_q) {
  require(head_p.num_out() == head_q.num_out(), "compare",
          "expected heads of the same vocabulary, found " + std::to_string(head_p.num_out()) + " and " +
              std::to_string(head_q.num_out()) + " tokens");
}

}  // namespace pare::runtime
