// How rows are rounded for the linears that read them, as the host tells kernels.
#pragma once

#include <cstdint>

#include "runtime/format/input_format.h"

namespace pare {

// What a kernel needs of an InputFormat.
struct RoundingView {
  InputType type = InputType::plain;
  InputRange range = InputRange::token;
  bool symmetric = true;
  float scale = 0.0f;  // of a fixed range
  int32_t zero = 0;
  OutlierRule outliers = OutlierRule::none;
  float outlier_threshold = 0.0f;
};

// How rows are rounded for one linear.
struct RoundingTarget {
  RoundingView format;
  const uint8_t* outlier_columns_I = nullptr;  // of OutlierRule::columns: 1 for each; device memory
  bool as_codes = false;                       // never beside outliers

  // Rounded without a look at other rows or beside outliers.
  constexpr bool is_rowwise() const {
    return format.type != InputType::plain && format.outliers == OutlierRule::none &&
           format.range != InputRange::tensor;
  }
  constexpr bool is_of_sequence() const {
    return format.type != InputType::plain && format.outliers == OutlierRule::none &&
           format.range == InputRange::tensor;
  }
};

// Where rows lie that a linear reads: floats, or codes with a scale and a zero for each row.
struct RoundedRows {
  float* x_RI = nullptr;
  int8_t* codes_RS = nullptr;
  int64_t code_stride = 0;
  float* scales_R = nullptr;
  int32_t* zeros_R = nullptr;
};

}  // namespace pare
