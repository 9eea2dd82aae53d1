// The most probable tokens of a row.
#pragma once

#include <cstdint>

namespace pare::distill {

// Returns whether a row's logits are those of a distribution: each is finite or -inf, and not all are -inf. T: float,
// double.
template <typename T>
bool has_distribution(const T* logits_V, int64_t num_vocabulary);

// Finds the tokens with the num_kept largest logits, in descending order, ties by the lower id. num_kept: 1 .. V; no
// NaN.
template <typename T>
void best_of_row(const T* logits_V, int64_t num_vocabulary, int64_t num_kept, int64_t* ids_K);

}  // namespace pare::distill
