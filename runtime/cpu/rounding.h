// Rounds the rows that an operation of the CPU backend has made, in the format of the linear that reads them.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/cpu/int8_rows.h"
#include "runtime/engine/backend.h"

namespace pare::runtime {

// The notes of round_rows about a format with outliers: for each sequence, the columns that are multiplied in floating
// point.
struct OutlierNotes final : RoundingNotes {
  std::vector<std::vector<int32_t>> columns_of_sequence;
};

// True if an operation may make each row in a scratch of its own and pass it to round_row at once. Otherwise it writes
// plain rows into x.x(), and round_rows follows.
bool rounds_each_row(const LinearInput& x);

// Writes row `row` of x from `values`, which may be x's own row.
void round_row(const Int8RowKernels& kernels, const LinearInput& x, int64_t row, const float* values, int64_t width);

// Rounds num_rows plain rows in x.x(). Any number of threads gives the same bits.
void round_rows(const Int8RowKernels& kernels, LinearInput& x, int64_t num_rows, int64_t width, int num_threads);

}  // namespace pare::runtime
