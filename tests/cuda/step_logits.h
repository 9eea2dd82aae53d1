// Decoding token by token, for comparisons of backends that record steps with those that do not.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine/transformer.h"

namespace pare {

inline std::vector<int32_t> some_ids(int64_t num_ids, int64_t vocabulary_size) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < num_ids; ++i) ids.push_back(static_cast<int32_t>((7 * i + 3) % vocabulary_size));
  return ids;
}

// Feeds the first num_prompt tokens together and the others one by one. Returns the logits of all but the prompt.
inline std::vector<float> step_logits(runtime::Transformer::Session& session, std::span<const int32_t> ids,
                                      size_t num_prompt) {
  session.feed(ids.first(num_prompt));
  std::vector<float> all;
  for (const int32_t& id : ids.subspan(num_prompt)) {
    const std::span<const float> row = session.feed({&id, 1});
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

}  // namespace pare
