#include "runtime/cpu/attention.h"

#include <algorithm>
#include <vector>

#include "runtime/system/aligned_memory.h"
#include "runtime/system/first_exception.h"

namespace pare::runtime {
namespace {

// The queries (tokens times heads of a group) of one tile. They are enough to use each loaded key and value many times,
// and few enough that the tile's scores stay in the L1 or L2 cache. On every instruction set they are whole panels.
constexpr int64_t kTileQueries = 96;

// Below this many multiplications, waking other threads costs more than it saves.
constexpr int64_t kMinParallelWork = 1 << 16;

struct Task {
  AttentionTile tile;
  int64_t begin_key = 0;  // for a partial task
  int64_t end_key = 0;
  int64_t partial = -1;  // index of the task's first partial in the scratch; -1: a whole tile
};

// The partials of one token and kv head.
struct Join {
  float* out;
  const float* sinks;
  int64_t first_partial;
  int64_t num_partials;
};

struct Plan {
  std::vector<Task> tasks;
  std::vector<Join> joins;
  int64_t num_partials = 0;
  int64_t cost = 0;  // multiplications
};

AttentionTile tile_of(const float* q_RHK, const KvLayer& cache, const Sequence& sequence, const AttentionShape& shape,
                      int64_t kv_head, int64_t first_token, int64_t num_tokens, float* x_RHK) {
  const int64_t heads_per_group = shape.num_heads / shape.num_kv_heads;
  const int64_t query_offset =
      ((sequence.first_row + first_token) * shape.num_heads + kv_head * heads_per_group) * shape.head_size;
  const int64_t place = cache.place(sequence.first_slot, kv_head);
  const auto rows = [&](const float* floats, const uint16_t* bf16, const int8_t* codes, const KvGrid* grids) {
    static_assert(sizeof(KvGrid) == 2 * sizeof(float));
    const int64_t first = place * shape.head_size;
    if (codes != nullptr) return KvRows{.codes = codes + first, .grids = &grids[place].scale};
    if (bf16 != nullptr) return KvRows{.bf16 = bf16 + first};
    return KvRows{.floats = floats + first};
  };
  return {.queries = q_RHK + query_offset,
          .query_stride = shape.num_heads * shape.head_size,
          .keys = rows(cache.keys, cache.key_bf16, cache.key_codes, cache.key_grids),
          .values = rows(cache.values, cache.value_bf16, cache.value_codes, cache.value_grids),
          .head_size = shape.head_size,
          .heads_per_group = heads_per_group,
          .first_position = sequence.num_past + first_token,
          .num_tokens = num_tokens,
          .window = shape.sliding_window,
          .num_keys = shape.causal ? 0 : sequence.num_past + sequence.num_rows,
          .scale = shape.scale,
          .softcap = shape.softcap,
          .slopes = shape.slopes_H != nullptr ? shape.slopes_H + kv_head * heads_per_group : nullptr,
          .sinks = shape.sinks_H != nullptr ? shape.sinks_H + kv_head * heads_per_group : nullptr,
          .distances = shape.distances_HN != nullptr
                           ? shape.distances_HN + kv_head * heads_per_group * (2 * shape.reach + 1)
                           : nullptr,
          .reach = shape.reach,
          .rounds_weights = shape.products_in_8_bits,
          .out = x_RHK + query_offset};
}

// The first key that the token at `position` sees.
int64_t first_key(const AttentionShape& shape, int64_t position) {
  return shape.sliding_window > 0 ? std::max<int64_t>(0, position - shape.sliding_window + 1) : 0;
}

// The key behind the last one that the token at `position` sees.
int64_t end_key(const AttentionShape& shape, const Sequence& sequence, int64_t position) {
  if (shape.causal) return position + 1;
  const int64_t end = sequence.num_past + sequence.num_rows;
  return shape.sliding_window > 0 ? std::min(end, position + shape.sliding_window) : end;
}

void plan_sequence(const float* q_RHK, const KvLayer& cache, const Sequence& sequence, const AttentionShape& shape,
                   float* x_RHK, Plan& plan) {
  const int64_t heads_per_group = shape.num_heads / shape.num_kv_heads;
  const int64_t tile_tokens = std::max<int64_t>(1, kTileQueries / heads_per_group);
  for (int64_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
    const auto make_task = [&](int64_t first, int64_t num_tokens, int64_t begin_key, int64_t end_key) {
      Task task;
      task.tile = tile_of(q_RHK, cache, sequence, shape, kv_head, first, num_tokens, x_RHK);
      task.begin_key = begin_key;
      task.end_key = end_key;
      plan.cost += (end_key - begin_key) * num_tokens * heads_per_group * shape.head_size * 2;
      return task;
    };
    // A stretch knows only its own largest weight, but weights are rounded in units of the largest of all keys.
    // Scores of distances are added by tiles alone.
    if (sequence.num_rows == 1 && !shape.products_in_8_bits && shape.distances_HN == nullptr) {
      const int64_t position = sequence.num_past, first_partial = plan.num_partials;
      for (int64_t key = first_key(shape, position); key <= position; key += kPartialKeys) {
        plan.tasks.push_back(make_task(0, 1, key, std::min(key + kPartialKeys, position + 1)));
        plan.tasks.back().partial = plan.num_partials++;
      }
      const AttentionTile& tile = plan.tasks.back().tile;
      plan.joins.push_back({tile.out, tile.sinks, first_partial, plan.num_partials - first_partial});
      continue;
    }
    // The tiles of a head follow each other, so that its keys and values stay in a core's cache. The longest comes
    // first, so that no thread starts a long tile when the others have finished.
    for (int64_t tile = (sequence.num_rows + tile_tokens - 1) / tile_tokens - 1; tile >= 0; --tile) {
      const int64_t first = tile * tile_tokens, num_tokens = std::min(tile_tokens, sequence.num_rows - first);
      const int64_t position = sequence.num_past + first;
      plan.tasks.push_back(make_task(first, num_tokens, first_key(shape, position),
                                     end_key(shape, sequence, position + num_tokens - 1)));
    }
  }
}

}  // namespace

void run_attention(const OpKernels& kernels, const float* q_RHK, const KvLayer& cache,
                   std::span<const Sequence> sequences, const AttentionShape& shape, int num_threads, float* x_RHK) {
  const int64_t heads_per_group = shape.num_heads / shape.num_kv_heads, head_size = shape.head_size;
  Plan plan;
  int64_t max_tokens = 1;
  for (const Sequence& sequence : sequences) {
    plan_sequence(q_RHK, cache, sequence, shape, x_RHK, plan);
  }
  for (const Task& task : plan.tasks) max_tokens = std::max(max_tokens, task.tile.num_tokens);

  const int64_t group_floats = heads_per_group * head_size;
  thread_local Scratch partials;
  float* const weighted = partials.reserve_floats(plan.num_partials * (group_floats + 2 * heads_per_group));
  float* const largest = weighted + plan.num_partials * group_floats;
  float* const sum = largest + plan.num_partials * heads_per_group;
  const auto partial_at = [&](int64_t partial) {
    return AttentionPartial{largest + partial * heads_per_group, sum + partial * heads_per_group,
                            weighted + partial * group_floats};
  };

  const int num_workers = plan.cost < kMinParallelWork ? 1 : num_threads;
  const int64_t scratch_floats = kernels.attention_scratch(max_tokens, heads_per_group, head_size);
  const auto num_tasks = static_cast<int64_t>(plan.tasks.size()), num_joins = static_cast<int64_t>(plan.joins.size());
  FirstException error;
#pragma omp parallel num_threads(num_workers)
  {
    // It is kept from call to call: to allocate and clear it took up to a millisecond a layer with many workers.
    thread_local Scratch scratch;
    float* memory = nullptr;
    error.capture([&] { memory = scratch.reserve_floats(scratch_floats); });
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < num_tasks; ++i) {
      if (error.failed()) continue;
      const Task& task = plan.tasks[i];
      if (task.partial < 0) {
        kernels.attention_tile(task.tile, memory);
      } else {
        kernels.attention_partial(task.tile, task.begin_key, task.end_key, partial_at(task.partial), memory);
      }
    }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < num_joins; ++i) {
      if (error.failed()) continue;
      const Join& join = plan.joins[i];
      kernels.attention_join(partial_at(join.first_partial), join.num_partials, heads_per_group, head_size, join.sinks,
                             join.out);
    }
  }
  error.rethrow();
}

}  // namespace pare::runtime
