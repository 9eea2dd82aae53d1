#include "runtime/cpu/integer_linear.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace pare {
namespace {

// Below this many multiply-adds a second thread costs more than it saves.
constexpr int64_t kMinParallelProducts = int64_t{1} << 18;

int32_t dot(const int8_t* a, const int8_t* b, int64_t size) {
  int32_t sum = 0;
  for (int64_t k = 0; k < size; ++k) sum += static_cast<int32_t>(a[k]) * static_cast<int32_t>(b[k]);
  return sum;
}

int32_t sum_of(const int8_t* codes, int64_t size) {
  int32_t sum = 0;
  for (int64_t k = 0; k < size; ++k) sum += codes[k];
  return sum;
}

}  // namespace

bool IntegerLinear::takes(std::span<const LinearWeights> parts) {
  return std::all_of(parts.begin(), parts.end(), [](const LinearWeights& part) {
    const auto* weight = std::get_if<QuantizedWeight>(&part.weight);
    return part.input.type == InputType::int8 && weight != nullptr && weight->code_type == CodeType::integer;
  });
}

IntegerLinear::IntegerLinear(std::span<const LinearWeights> parts, int num_threads)
    : num_threads_(num_threads),
      num_in_(parts.front().num_in()),
      stride_(LinearInput::code_stride(num_in_)),
      input_(parts.front().input) {
  if (num_in_ > kMaxIntegerColumns) {
    throw std::invalid_argument("linear '" + parts.front().name + "': expected at most " +
                                std::to_string(kMaxIntegerColumns) + " inputs with 8-bit activations, found " +
                                std::to_string(num_in_));
  }
  for (const LinearWeights& weights : parts) append(weights);
}

void IntegerLinear::append(const LinearWeights& weights) {
  const auto& weight = std::get<QuantizedWeight>(weights.weight);
  validate(weight, weights.name);
  Part part;
  part.name = "w" + std::to_string(weight.bits);
  if (weight.group_size != kPerChannel) part.name += "g" + std::to_string(weight.group_size);
  if (!weight.symmetric) part.name += "z";
  part.first_out = num_out_;
  part.num_out = weight.num_out;
  const int center = 1 << (weight.bits - 1);

  std::vector<int32_t> column_of_k(static_cast<size_t>(num_in_));
  for (int64_t i = 0; i < num_in_; ++i) column_of_k[i] = static_cast<int32_t>(i);
  std::stable_sort(column_of_k.begin(), column_of_k.end(),
                   [&](int32_t a, int32_t b) { return weight.group(a) < weight.group(b); });
  part.group_begin.assign(static_cast<size_t>(weight.num_groups() + 1), 0);
  for (int64_t i = 0; i < num_in_; ++i) ++part.group_begin[weight.group(i) + 1];
  for (size_t g = 1; g < part.group_begin.size(); ++g) part.group_begin[g] += part.group_begin[g - 1];

  part.scales_OG = weight.scales_OG;
  for (const uint8_t zero : weight.zeros_OG) part.zeros_OG.push_back(zero - center);
  part.sums_OG.resize(part.scales_OG.size());
  part.codes = allocate_aligned(part.num_out * stride_);
  auto* const codes = reinterpret_cast<int8_t*>(part.codes.get());
  for (int64_t out = 0; out < part.num_out; ++out) {
    int8_t* const row = codes + out * stride_;
    for (int64_t k = 0; k < num_in_; ++k) {
      row[k] = static_cast<int8_t>(weight.codes_OI[out * num_in_ + column_of_k[k]] - center);
    }
    for (int64_t g = 0; g < part.num_groups(); ++g) {
      part.sums_OG[out * part.num_groups() + g] =
          sum_of(row + part.group_begin[g], part.group_begin[g + 1] - part.group_begin[g]);
    }
  }
  if (!std::is_sorted(column_of_k.begin(), column_of_k.end())) part.column_of_k = std::move(column_of_k);
  part.outlier_weight_OJ = weights.outlier_weight_OJ;
  num_out_ += part.num_out;
  bias_O_.insert(bias_O_.end(), weights.bias_O.begin(), weights.bias_O.end());
  bias_O_.resize(static_cast<size_t>(num_out_), 0.0f);
  parts_.push_back(std::move(part));
}

int64_t IntegerLinear::resident_bytes() const {
  int64_t bytes = static_cast<int64_t>(bias_O_.size()) * 4;
  for (const Part& part : parts_) {
    const size_t words = part.scales_OG.size() + part.zeros_OG.size() + part.sums_OG.size() + part.column_of_k.size() +
                         part.outlier_weight_OJ.size();
    bytes += part.num_out * stride_ + static_cast<int64_t>(words) * 4;
  }
  return bytes;
}

std::string IntegerLinear::kernel_name() const {
  std::string names;
  for (const Part& part : parts_) {
    if (names.find(part.name) == std::string::npos) names += (names.empty() ? "" : "+") + part.name;
  }
  return "matmul_" + names + "_" + input_format_name(input_) + "_plain";
}

// W[out, column_of_k[k]] as dequantize() gives it.
float IntegerLinear::weight(const Part& part, int64_t out, int64_t k) const {
  const auto after = std::upper_bound(part.group_begin.begin(), part.group_begin.end(), k);
  const int64_t index = out * part.num_groups() + (after - part.group_begin.begin() - 1);
  const int code = reinterpret_cast<const int8_t*>(part.codes.get())[out * stride_ + k];
  return part.scales_OG[index] * static_cast<float>(code - (part.zeros_OG.empty() ? 0 : part.zeros_OG[index]));
}

// [O, J]: the columns' own 16-bit weights where the part has them, else the dequantized ones.
std::vector<float> IntegerLinear::outlier_weights(const Part& part, const std::vector<int32_t>& columns) const {
  if (columns.empty() || !part.outlier_weight_OJ.empty()) return part.outlier_weight_OJ;
  std::vector<int64_t> positions(columns.begin(), columns.end());
  if (!part.column_of_k.empty()) {
    std::vector<int64_t> k_of_column(static_cast<size_t>(num_in_));
    for (int64_t k = 0; k < num_in_; ++k) k_of_column[part.column_of_k[k]] = k;
    for (int64_t& position : positions) position = k_of_column[position];
  }
  std::vector<float> weights_OJ;
  weights_OJ.reserve(static_cast<size_t>(part.num_out) * columns.size());
  for (int64_t out = 0; out < part.num_out; ++out) {
    for (const int64_t k : positions) weights_OJ.push_back(weight(part, out, k));
  }
  return weights_OJ;
}

void IntegerLinear::multiply(const LinearInput& x, int64_t num_rows, float* y_RO) const {
  const bool in_parallel = omp_in_parallel();
  const int most = in_parallel ? 1 : num_threads_ > 0 ? num_threads_ : omp_get_max_threads();
  const int threads = num_rows * num_out_ * num_in_ < kMinParallelProducts ? 1 : most;
  std::vector<Rows> ranges;
  if (input_.is_rowwise()) {
    ranges.push_back({0, num_rows, &input_.outlier_columns});
  } else if (!input_.has_outliers()) {
    ranges.push_back({0, num_rows, nullptr});
  } else {
    for (size_t s = 0; s < x.sequences().size(); ++s) {
      ranges.push_back({x.sequences()[s].first_row, x.sequences()[s].num_rows, &x.outlier_columns()[s]});
    }
  }
  for (const Rows& rows : ranges) {
    for (const Part& part : parts_) multiply_part(part, x, rows, threads, y_RO);
  }
}

void IntegerLinear::multiply_part(const Part& part, const LinearInput& x, const Rows& rows, int threads,
                                  float* y_RO) const {
  const int64_t num_groups = part.num_groups();
  const auto num_outliers = rows.outliers == nullptr ? int64_t{0} : static_cast<int64_t>(rows.outliers->size());
  const std::vector<float> outlier_weights_OJ =
      num_outliers == 0 ? std::vector<float>() : outlier_weights(part, *rows.outliers);
  const int8_t* codes = x.codes() + rows.first * stride_;
  AlignedBytes permuted;
  if (!part.column_of_k.empty()) {
    permuted = allocate_aligned(rows.num * stride_);
    auto* const out = reinterpret_cast<int8_t*>(permuted.get());
    for (int64_t r = 0; r < rows.num; ++r) {
      for (int64_t k = 0; k < num_in_; ++k) out[r * stride_ + k] = codes[r * stride_ + part.column_of_k[k]];
    }
    codes = out;
  }
  std::vector<float> outliers_RJ(static_cast<size_t>(rows.num * num_outliers));
  for (int64_t i = 0; i < rows.num * num_outliers; ++i) {
    outliers_RJ[i] = x.x()[(rows.first + i / num_outliers) * num_in_ + (*rows.outliers)[i % num_outliers]];
  }
  std::vector<int32_t> x_sums_RG;  // of the codes of each row's groups
  if (!part.zeros_OG.empty()) {
    for (int64_t r = 0; r < rows.num; ++r) {
      for (int64_t g = 0; g < num_groups; ++g) {
        x_sums_RG.push_back(
            sum_of(codes + r * stride_ + part.group_begin[g], part.group_begin[g + 1] - part.group_begin[g]));
      }
    }
  }

  const auto* const weight_codes = reinterpret_cast<const int8_t*>(part.codes.get());
  const int64_t num_tasks = (part.num_out + 15) / 16;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
  for (int64_t task = 0; task < num_tasks; ++task) {
    for (int64_t r = 0; r < rows.num; ++r) {
      const int64_t row = rows.first + r;
      const int64_t x_zero = input_.symmetric ? 0 : x.zeros()[row];
      for (int64_t out = 16 * task; out < std::min(16 * task + 16, part.num_out); ++out) {
        float total = 0.0f;
        for (int64_t g = 0; g < num_groups; ++g) {
          const int64_t begin = part.group_begin[g], size = part.group_begin[g + 1] - begin;
          // sum (x - zx)(c - zc) = sum x c - zx sum c - zc (sum x - size zx)
          int64_t sum = dot(codes + r * stride_ + begin, weight_codes + out * stride_ + begin, size);
          sum -= x_zero * part.sums_OG[out * num_groups + g];
          if (!part.zeros_OG.empty()) {
            sum -= part.zeros_OG[out * num_groups + g] * (x_sums_RG[r * num_groups + g] - size * x_zero);
          }
          total = std::fma(static_cast<float>(sum), part.scales_OG[out * num_groups + g], total);
        }
        float start = bias_O_[part.first_out + out];
        for (int64_t j = 0; j < num_outliers; ++j) {
          start = std::fma(outliers_RJ[r * num_outliers + j], outlier_weights_OJ[out * num_outliers + j], start);
        }
        y_RO[row * num_out_ + part.first_out + out] = std::fma(total, x.scales()[row], start);
      }
    }
  }
}

}  // namespace pare
