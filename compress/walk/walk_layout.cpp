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
int64_t windows_per_group(int64_t num_windows, int64_t num_tokens, int num_workers) {
  const int64_t chunk = chunk_windows(num_tokens);
  const int64_t chunks = (num_workers + chunk - 1) / chunk;
  return std::min(num_windows, chunk * chunks);
}

// A block of tokens packs a layer's weights once. In blocks of 512 that is some 3 % of a product, of 128 four times as
// much, while all workers hold what their blocks make.
constexpr int64_t kMostTokens = 512, kLeastTokens = 128, kTokensOfAllWorkers = 4096;

int64_t tokens_of_block(int num_workers) {
  int64_t tokens = kMostTokens;
  while (tokens > kLeastTokens && tokens * num_workers > kTokensOfAllWorkers) tokens /= 2;
  return tokens;
}

}  // namespace

WalkLayout::WalkLayout(const runtime::ModelDescription& model, int64_t num_windows, int64_t num_tokens, Spill spill,
                       int workers, bool with_original, bool keeps_block_inputs, bool rounds_whole_sequences)
    : num_workers(workers),
      group_windows(windows_per_group(num_windows, num_tokens, workers)),
      token_block(tokens_of_block(workers)),
      hidden{num_windows, num_tokens, model.hidden_size, spill == Spill::all},
      inputs{num_windows, num_tokens, widest_input(model), spill != Spill::none},
      group_x(group_windows * num_tokens * widest_made_input(model)),
      worker_bytes_(rounds_whole_sequences
                        ? BlockFunctions::forward_bytes(model, num_tokens)
                        : BlockFunctions::walk_bytes(model, num_tokens, token_block, with_original)) {
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

std::vector<int> WalkLayout::possible_workers(int64_t num_tokens, int num_threads) {
  const int64_t chunk = chunk_windows(num_tokens);
  std::vector<int> workers = {num_threads};
  for (int64_t chunks = (num_threads - 1) / chunk; chunks > 0; chunks /= 2) {
    workers.push_back(static_cast<int>(chunks * chunk));
  }
  return workers;
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
