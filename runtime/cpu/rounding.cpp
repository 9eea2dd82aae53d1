#include "runtime/cpu/rounding.h"

#include <algorithm>
#include <cstring>

#include "runtime/backend_checks.h"

namespace pare {
namespace {

void store_grid(const LinearInput& x, int64_t row, const InputGrid& grid) {
  x.scales()[row] = grid.scale;
  x.zeros()[row] = grid.zero;
}

std::span<int8_t> code_row(const LinearInput& x, int64_t row, int64_t width) {
  const int64_t stride = LinearInput::code_stride(width);
  int8_t* const codes = x.codes() + row * stride;
  std::memset(codes + width, 0, static_cast<size_t>(stride - width));
  return {codes, static_cast<size_t>(width)};
}

// A row on a grid that is known: as codes, or as values in x.x().
void round_on_grid(const LinearInput& x, int64_t row, std::span<const float> values, InputGrid grid) {
  const auto width = static_cast<int64_t>(values.size());
  float* const out = x.x() + row * width;
  if (x.as_codes()) {
    input_codes(values, grid, code_row(x, row, width));
    return store_grid(x, row, grid);
  }
  if (x.format().type == InputType::fp8) {
    if (out != values.data()) std::copy(values.begin(), values.end(), out);
    return round_to_fp8({out, values.size()}, grid);
  }
  thread_local std::vector<int8_t> codes;
  codes.resize(values.size());
  input_codes(values, grid, codes);
  for (size_t i = 0; i < values.size(); ++i) out[i] = static_cast<float>(codes[i] - grid.zero) * grid.scale;
}

// A row of LLM.int8. x.x() keeps the outlier columns.
void round_beside_outliers(const LinearInput& x, int64_t row, std::span<float> values,
                           const std::vector<int32_t>& columns, float limit) {
  const auto width = static_cast<int64_t>(values.size());
  if (x.as_codes()) return store_grid(x, row, outlier_row_codes(values, columns, limit, code_row(x, row, width)));
  thread_local std::vector<int8_t> codes;
  codes.resize(values.size());
  const InputGrid grid = outlier_row_codes(values, columns, limit, codes);
  size_t next = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (next < columns.size() && static_cast<size_t>(columns[next]) == i) {
      ++next;
    } else {
      values[i] = static_cast<float>(codes[i]) * grid.scale;
    }
  }
}

}  // namespace

bool rounds_each_row(const LinearInput& x) {
  return x.format().is_rowwise() && !x.format().has_outliers();
}

void round_row(const LinearInput& x, int64_t row, const float* values, int64_t width) {
  const std::span<const float> row_values(values, static_cast<size_t>(width));
  const bool is_fixed = x.format().range == InputRange::fixed;
  round_on_grid(x, row, row_values, input_grid(x.format(), is_fixed ? InputExtremes{} : input_extremes(row_values)));
}

void round_rows(LinearInput& x, int64_t num_rows, int64_t width, int num_threads) {
  const InputFormat& format = x.format();
  if (format.is_plain()) return;
  if (rounds_each_row(x)) {
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_threads > 1)
    for (int64_t r = 0; r < num_rows; ++r) round_row(x, r, x.x() + r * width, width);
    return;
  }
  check_sequences(x, num_rows);
  const auto row_of = [&](int64_t row) { return std::span(x.x() + row * width, static_cast<size_t>(width)); };
  const Sequence all = {.first_row = 0, .num_rows = num_rows};
  const auto sequences = format.is_rowwise() ? std::span(&all, 1) : x.sequences();
  x.outlier_columns().resize(sequences.size());
  std::vector<InputExtremes> extremes(static_cast<size_t>(num_rows));
  for (size_t s = 0; s < sequences.size(); ++s) {
    const int64_t first = sequences[s].first_row, end = first + sequences[s].num_rows;
    const std::span<const float> values(x.x() + first * width, static_cast<size_t>((end - first) * width));
    if (format.has_outliers()) {
      std::vector<int32_t>& columns = x.outlier_columns()[s];
      columns = outlier_columns(format, values, width);
      const float limit = outlier_limit(format, values);
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_threads > 1)
      for (int64_t r = first; r < end; ++r) round_beside_outliers(x, r, row_of(r), columns, limit);
      continue;
    }
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_threads > 1)
    for (int64_t r = first; r < end; ++r) extremes[r] = input_extremes(row_of(r));
    InputExtremes joined;
    for (int64_t r = first; r < end; ++r) joined = join(joined, extremes[r]);
    const InputGrid grid = input_grid(format, joined);
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_threads > 1)
    for (int64_t r = first; r < end; ++r) round_on_grid(x, r, row_of(r), grid);
  }
}

}  // namespace pare
