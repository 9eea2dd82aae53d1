#include "compress/walk/walk_layout.h"

#include <algorithm>

#include "compress/model/decoder_functions.h"
#include "compress/walk/decoder_block.h"
#include "compress/walk/statistics.h"

namespace pare::compress {
namespace {

int64_t routing_bytes(const runtime::ModelDescription& model) {
  int64_t most = 0;
  for (const runtime::BlockDescription& block : model.blocks) most = std::max(most, block.routing.experts_per_token);
  // The experts and their weights, and the tokens of the expert at hand.
  return most * static_cast<int64_t>(sizeof(int64_t) + sizeof(float)) + static_cast<int64_t>(sizeof(int64_t));
}

// Whole chunks of H, and at least a window for every worker.
int64_t windows_per_group(int64_t num_windows, int64_t num_tokens, int num_threads) {
  const int64_t chunk = chunk_windows(num_tokens);
  const int64_t chunks = (num_threads + chunk - 1) / chunk;
  return std::min(num_windows, chunk * chunks);
}

}  // namespace

WalkLayout::WalkLayout(const runtime::ModelDescription& model, int64_t num_windows, int64_t num_tokens, Spill spill,
                       int num_threads, bool with_original, bool keeps_block_inputs, bool rounds_whole_sequences)
    : num_workers(num_threads),
      group_windows(windows_per_group(num_windows, num_tokens, num_threads)),
      hidden{num_windows, num_tokens, model.hidden_size, spill == Spill::all},
      inputs{num_windows, num_tokens, widest_input(model), spill != Spill::none},
      group_x(group_windows * num_tokens * widest_made_input(model)),
      worker_bytes_(rounds_whole_sequences ? BlockFunctions::forward_bytes(model, num_tokens)
                                           : BlockFunctions::walk_bytes(model, num_tokens, with_original)) {
  const StoreShape beside{num_windows, num_tokens, model.hidden_size, spill != Spill::none};
  if (model.has_mixture()) {
    sums = beside;
    routing_bytes_ = num_windows * num_tokens * routing_bytes(model);
  }
  if (keeps_block_inputs) block_inputs = beside;
  if (with_original) {
    const int64_t group_rows = group_windows * num_tokens;
    const int64_t widest = widest_made_input(model);
    original = OriginalLayout{.states = hidden,
                              .group_x = group_rows * std::max(widest, widest_input(model)),
                              .group_missing = group_rows * widest};
  }
}

Footprint WalkLayout::footprint() const {
  Footprint footprint;
  const auto add = [&](const StoreShape& store) {
    (store.spilled ? footprint.spill_bytes : footprint.memory_bytes) += store.size_bytes();
  };
  add(hidden);
  add(inputs);
  if (sums) add(*sums);
  if (block_inputs) add(*block_inputs);
  int64_t num_values = group_x;
  if (original) {
    add(original->states);
    num_values += original->group_x + original->group_missing;
  }
  footprint.memory_bytes +=
      num_values * static_cast<int64_t>(sizeof(float)) + routing_bytes_ + num_workers * worker_bytes_;
  return footprint;
}

}  // namespace pare::compress
