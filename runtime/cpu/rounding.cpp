#include "runtime/cpu/rounding.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/engine/backend_checks.h"
#include "runtime/system/aligned_memory.h"
#include "runtime/system/first_exception.h"

namespace pare::runtime {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

void store_grid(const LinearInput& x, int64_t row, const InputGrid& grid) {
  x.scales()[row] = grid.scale;
  x.zeros()[row] = grid.zero;
}

InputExtremes extremes_of(const Int8RowKernels& kernels, const float* values, int64_t width) {
  InputExtremes extremes;
  kernels.extremes(values, width, &extremes.low, &extremes.high);
  return extremes;
}

// Returns the place of a row's codes: in x, or in a scratch if the linear takes values.
int8_t* code_row(const LinearInput& x, int64_t row, int64_t width) {
  if (x.as_codes()) return x.codes() + row * LinearInput::code_stride(width);
  thread_local Scratch scratch;
  return reinterpret_cast<int8_t*>(scratch.reserve(LinearInput::code_stride(width)));
}

// Rounds a row on a known grid, to codes or to values in x.x().
void round_on_grid(const Int8RowKernels& kernels, const LinearInput& x, int64_t row, const float* values, int64_t width,
                   InputGrid grid) {
  float* const out = x.x() + row * width;
  if (x.format().type == InputType::fp8) return kernels.round_to_fp8(values, width, grid.scale, out);
  if (x.format().type == InputType::nvfp4) return kernels.round_to_nvfp4(values, width, grid.scale, out);
  int8_t* const codes = code_row(x, row, width);
  if (!kernels.codes(values, width, grid.scale, static_cast<float>(grid.zero), codes,
                     LinearInput::code_stride(width))) {
    grid = {kNaN, 0};
  }
  if (x.as_codes()) return store_grid(x, row, grid);
  for (int64_t i = 0; i < width; ++i) out[i] = static_cast<float>(codes[i] - grid.zero) * grid.scale;
}

// Rounds a row of LLM.int8 in x.x(), which keeps the outlier columns: outlier_row_codes() on vectors. The values that
// stay in floating point (every value of a listed column, otherwise those that reach the limit) are zero while the rest
// is measured.
void round_beside_outliers(const Int8RowKernels& kernels, const LinearInput& x, int64_t row, int64_t width,
                           const std::vector<int32_t>& columns, float limit) {
  float* const values = x.x() + row * width;
  thread_local std::vector<float> kept;
  kept.resize(columns.size());
  bool is_nan = std::isnan(limit);
  for (size_t j = 0; j < columns.size(); ++j) {
    float& value = values[columns[j]];
    kept[j] = value;
    is_nan = is_nan || std::isnan(value);
    if (std::isinf(limit) || std::abs(value) >= limit) value = 0.0f;
  }
  const InputExtremes extremes = extremes_of(kernels, values, width);
  for (size_t j = 0; j < columns.size(); ++j) values[columns[j]] = kept[j];
  const InputGrid grid = is_nan ? InputGrid{kNaN, 0} : outlier_row_grid(x.format(), extremes);
  const float factor = outlier_row_factor(std::max(-extremes.low, extremes.high));
  const int64_t stride = LinearInput::code_stride(width);
  int8_t* const codes = code_row(x, row, width);
  if (std::isnan(grid.scale) || (x.format().symmetric && factor == 0.0f)) {
    std::memset(codes, 0, static_cast<size_t>(stride));
  } else if (x.format().symmetric) {
    kernels.codes_by_factor(values, width, factor, codes, stride);
  } else {
    kernels.codes(values, width, grid.scale, static_cast<float>(grid.zero), codes, stride);
  }
  for (const int32_t column : columns) codes[column] = static_cast<int8_t>(grid.zero);
  if (x.as_codes()) return store_grid(x, row, grid);
  for (int64_t i = 0; i < width; ++i) values[i] = static_cast<float>(codes[i] - grid.zero) * grid.scale;
  for (size_t j = 0; j < columns.size(); ++j) values[columns[j]] = kept[j];
}

// Computes outlier_limit() for the rows [first, end) of x.x().
float find_outlier_limit(const LinearInput& x, int64_t first, int64_t end, int64_t width, int num_threads) {
  std::vector<double> squares_T(static_cast<size_t>(end - first), 0.0);
  if (x.format().outliers == OutlierRule::relative) {
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_threads > 1)
    for (int64_t r = first; r < end; ++r) {
      squares_T[r - first] = sum_of_squares({x.x() + r * width, static_cast<size_t>(width)});
    }
  }
  return outlier_limit(x.format(), squares_T, width);
}

// Computes outlier_columns() for the rows [first, end) of x.x().
std::vector<int32_t> find_outlier_columns(const Int8RowKernels& kernels, const LinearInput& x, int64_t first,
                                          int64_t end, int64_t width, float limit, int num_threads) {
  if (x.format().outliers == OutlierRule::columns) return x.format().outlier_columns;
  std::vector<int32_t> columns;
  if (!(limit > 0.0f)) return columns;  // all x are 0, or one is NaN
  std::vector<float> largest_I(static_cast<size_t>(width), 0.0f);
  FirstException error;
#pragma omp parallel num_threads(num_threads) if (num_threads > 1)
  {
    std::vector<float> largest;
    error.capture([&] { largest.resize(static_cast<size_t>(width), 0.0f); });
#pragma omp for schedule(static) nowait
    for (int64_t r = first; r < end; ++r) {
      if (!error.failed()) kernels.raise_to_magnitudes(x.x() + r * width, width, largest.data());
    }
#pragma omp critical
    if (!error.failed()) kernels.raise_to_magnitudes(largest.data(), width, largest_I.data());
  }
  error.rethrow();
  for (int64_t i = 0; i < width; ++i) {
    if (largest_I[i] >= limit) columns.push_back(static_cast<int32_t>(i));
  }
  return columns;
}

}  // namespace

bool rounds_each_row(const LinearInput& x) {
  return x.format().is_rowwise() && !x.format().has_outliers();
}

void round_row(const Int8RowKernels& kernels, const LinearInput& x, int64_t row, const float* values, int64_t width) {
  if (x.format().range == InputRange::block) {  // of fp8
    for (int64_t first = 0; first < width; first += kFp8Block) {
      const int64_t size = std::min(kFp8Block, width - first);
      const InputGrid grid = input_grid(x.format(), extremes_of(kernels, values + first, size));
      kernels.round_to_fp8(values + first, size, grid.scale, x.x() + row * width + first);
    }
    return;
  }
  const bool is_fixed = x.format().has_stored_scale();
  const InputExtremes extremes = is_fixed ? InputExtremes{} : extremes_of(kernels, values, width);
  round_on_grid(kernels, x, row, values, width, input_grid(x.format(), extremes));
}

void round_rows(const Int8RowKernels& kernels, LinearInput& x, int64_t num_rows, int64_t width, int num_threads) {
  const InputFormat& format = x.format();
  if (format.is_plain()) return;
  FirstException error;
  if (rounds_each_row(x)) {
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_threads > 1)
    for (int64_t r = 0; r < num_rows; ++r) {
      error.capture([&] { round_row(kernels, x, r, x.x() + r * width, width); });
    }
    return error.rethrow();
  }
  check_sequences(x, num_rows);
  const Sequence all = {.first_row = 0, .num_rows = num_rows};
  const auto sequences = format.is_rowwise() ? std::span(&all, 1) : x.sequences().table;
  std::vector<std::vector<int32_t>>* noted = nullptr;
  if (format.has_outliers()) {
    if (dynamic_cast<OutlierNotes*>(x.notes().get()) == nullptr) x.notes() = std::make_unique<OutlierNotes>();
    noted = &static_cast<OutlierNotes&>(*x.notes()).columns_of_sequence;
    noted->resize(sequences.size());
  }
  std::vector<InputExtremes> extremes(static_cast<size_t>(num_rows));
  for (size_t s = 0; s < sequences.size(); ++s) {
    const int64_t first = sequences[s].first_row, end = first + sequences[s].num_rows;
    if (format.has_outliers()) {
      const float limit = find_outlier_limit(x, first, end, width, num_threads);
      std::vector<int32_t>& columns = (*noted)[s];
      columns = find_outlier_columns(kernels, x, first, end, width, limit, num_threads);
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_threads > 1)
      for (int64_t r = first; r < end; ++r) {
        error.capture([&] { round_beside_outliers(kernels, x, r, width, columns, limit); });
      }
      error.rethrow();
      continue;
    }
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_threads > 1)
    for (int64_t r = first; r < end; ++r) extremes[r] = extremes_of(kernels, x.x() + r * width, width);
    InputExtremes joined;
    for (int64_t r = first; r < end; ++r) joined = join(joined, extremes[r]);
    const InputGrid grid = input_grid(format, joined);
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_threads > 1)
    for (int64_t r = first; r < end; ++r) {
      error.capture([&] { round_on_grid(kernels, x, r, x.x() + r * width, width, grid); });
    }
    error.rethrow();
  }
}

}  // namespace pare::runtime
