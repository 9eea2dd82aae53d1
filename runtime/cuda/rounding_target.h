// The rounding of rows for the linears that read them, in the form in which the host tells kernels.
#pragma once

#include <cstdint>

#include "runtime/format/input_format.h"

namespace pare::runtime {

// The part of an InputFormat that kernels need.
struct RoundingView {
  InputType type = InputType::plain;
  InputRange range = InputRange::token;
  bool symmetric = true;
  float scale = 0.0f;  // as in InputFormat
  int32_t zero = 0;
  bool power_of_two_scales = false;
  OutlierRule outliers = OutlierRule::none;
  float outlier_threshold = 0.0f;
  float sparsity_threshold = 0.0f;
};

// The rounding of rows for one linear.
struct RoundingTarget {
  RoundingView format;
  const uint8_t* outlier_columns_I = nullptr;  // for OutlierRule::columns, 1 for each outlier; device memory
  bool as_codes = false;                       // never with outliers

  // True if a row is rounded without other rows and without outliers.
  constexpr bool is_rowwise() const {
    return format.type != InputType::plain && format.outliers == OutlierRule::none &&
           format.range != InputRange::tensor;
  }
  constexpr bool is_of_sequence() const {
    return format.type != InputType::plain && format.outliers == OutlierRule::none &&
           format.range == InputRange::tensor;
  }
};

// The memory of the rows that a linear reads: floats, or codes with a scale and a zero for each row.
struct RoundedRows {
  float* x_RI = nullptr;
  int8_t* codes_RS = nullptr;
  int64_t code_stride = 0;
  float* scales_R = nullptr;
  int32_t* zeros_R = nullptr;
};

}  // namespace pare::runtime
