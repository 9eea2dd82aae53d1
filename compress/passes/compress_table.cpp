#include "compress/passes/compress_table.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <chrono>

#include "compress/passes/squared_error.h"
#include "quant/rtn.h"
#include "runtime/system/progress.h"

namespace pare::compress {
namespace {

constexpr int64_t kTableRows = 4096;  // rows that are in float32 at a time

}  // namespace

CompressedLayer compress_table(const TablePlan& table, const runtime::LinearWeights& source) {
  const auto start = std::chrono::steady_clock::now();
  CompressedLayer result;
  runtime::QuantizedWeight& weight = result.stored.weight;
  SquaredError error;
  const int64_t num_out = source.num_out(), num_in = source.num_in();
  std::vector<float> rows;
  for (int64_t first = 0; first < num_out; first += kTableRows) {
    const int64_t num_rows = std::min(kTableRows, num_out - first);
    rows.resize(static_cast<size_t>(num_rows * num_in));
    runtime::weight_rows(source, first, num_rows, rows);
    const runtime::QuantizedWeight part =
        quant::rtn(at::from_blob(rows.data(), {num_rows, num_in}, at::kFloat), at::Tensor(), table.grid);
    error.add(rows, runtime::dequantize(part), nullptr, num_in);
    if (first == 0) weight = part;
    if (first == 0) weight.codes_OI.reserve(static_cast<size_t>(num_out * num_in));
    if (first > 0) {
      weight.codes_OI.insert(weight.codes_OI.end(), part.codes_OI.begin(), part.codes_OI.end());
      weight.scales_OG.insert(weight.scales_OG.end(), part.scales_OG.begin(), part.scales_OG.end());
    }
  }
  weight.num_out = num_out;
  LayerRecord& record = result.record;
  record.name = table.linear.name;
  record.num_out = table.linear.num_out;
  record.num_in = table.linear.num_in;
  record.is_linear = table.is_linear;
  record.method = "rtn";
  record.scheme = table.scheme;
  record.scale_dtype = weight.scale_dtype;
  record.relative_error = error.relative();
  record.seconds = runtime::seconds_since(start);
  return result;
}

}  // namespace pare::compress
