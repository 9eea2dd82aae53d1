#include "runtime/containers/stored_linear.h"
#include "runtime/containers/container_table.h"

#include <memory>
#include <stdexcept>
#include <utility>

namespace pare::runtime {

std::vector<OwnedTensor> pack_linear(const StoredLinear& linear, const PackScheme& scheme, const std::string& module) {
  return container_format(scheme.container).store(linear, scheme, module);
}

void check_linear(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                  const std::string& module) {
  container_format(scheme.container).check(find, scheme, num_out, num_in, module);
}

StoredLinear unpack_linear(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                           const std::string& module) {
  return container_format(scheme.container).load(find, scheme, num_out, num_in, module);
}

DenseWeight dense_weight(StoredLinear linear) {
  const auto owned = std::make_shared<const std::vector<std::byte>>(std::move(linear.dense_OI));
  return {.num_out = linear.weight.num_out,
          .num_in = linear.weight.num_in,
          .dtype = linear.dense_dtype,
          .data = *owned,
          .pattern = linear.weight.pattern,
          .owned = owned};
}

DenseWeight decoded_weight(const QuantizedWeight& blocks) {
  StoredLinear linear;
  linear.weight.num_out = blocks.num_out;
  linear.weight.num_in = blocks.num_in;
  linear.dense_dtype = DType::F32;
  linear.dense_OI.resize(static_cast<size_t>(blocks.num_out * blocks.num_in) * sizeof(float));
  const std::vector<float> values_OI = dequantize(blocks);
  convert_from_float(DType::F32, values_OI, linear.dense_OI);
  return dense_weight(std::move(linear));
}

std::vector<float> effective_weight(const StoredLinear& linear) {
  std::vector<float> weight_OI;
  if (linear.dense_OI.empty()) {
    weight_OI = dequantize(linear.weight);
  } else {
    weight_OI.resize(linear.dense_OI.size() / dtype_size_bytes(linear.dense_dtype));
    convert_to_float(linear.dense_dtype, linear.dense_OI, weight_OI);
  }
  const std::vector<int32_t>& columns = linear.input.outlier_columns;
  if (linear.outlier_weight_OJ.empty()) return weight_OI;
  for (int64_t row = 0; row < linear.weight.num_out; ++row) {
    const float* const outliers = linear.outlier_weight_OJ.data() + row * static_cast<int64_t>(columns.size());
    for (size_t j = 0; j < columns.size(); ++j) weight_OI[row * linear.weight.num_in + columns[j]] = outliers[j];
  }
  return weight_OI;
}

std::string container_config_json(std::span<const StoredModule> modules, std::span<const std::string> ignore) {
  if (modules.empty()) throw std::invalid_argument("quantization_config: expected at least one quantized module");
  return container_format(modules.front().scheme.container).config_json(modules, ignore);
}

}  // namespace pare::runtime
