// Checks RTN and GPTQ against PyTorch in float64. tests/golden/make_quant.py says how quant.json was made.
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "quant/gptq.h"
#include "quant/rtn.h"
#include "tests/places.h"

namespace pare {
using namespace quant;
using namespace runtime;
namespace {

at::Tensor matrix_of(const nlohmann::json& integers, double unit, int64_t num_rows, int64_t num_columns) {
  std::vector<float> values;
  for (const auto& integer : integers) values.push_back(static_cast<float>(integer.get<int>() * unit));
  return at::from_blob(values.data(), {num_rows, num_columns}, at::kFloat).clone();
}

TEST(QuantGolden, CodesScalesAndErrorsAreThoseOfPyTorch) {
  const std::map<std::string, ScaleSearch> searches = {{"minmax", ScaleSearch::minmax},
                                                       {"squared_error", ScaleSearch::squared_error},
                                                       {"hessian_diagonal", ScaleSearch::hessian_diagonal}};
  const std::map<std::string, ActOrder> orders = {
      {"none", ActOrder::none}, {"static_groups", ActOrder::static_groups}, {"group", ActOrder::group}};
  std::ifstream file(std::string(kSourceFolder) + "/tests/golden/quant.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  const int64_t num_out = golden["num_out"], num_in = golden["num_in"];
  const at::Tensor weight = matrix_of(golden["weight"], golden["weight_unit"], num_out, num_in);
  const at::Tensor hessian = matrix_of(golden["hessian"], golden["hessian_unit"], num_in, num_in);
  ASSERT_EQ(golden["cases"].size(), 10u);
  for (const auto& expected : golden["cases"]) {
    const std::string method = expected["method"];
    SCOPED_TRACE(method + " " + expected["bits"].dump() + " bits, act order " + expected["act_order"].dump());
    GptqOptions options;
    options.grid = {expected["bits"], expected["group_size"], expected["symmetric"],
                    searches.at(expected["scale_search"]), parse_dtype(expected["scale_dtype"].get<std::string>())};
    options.act_order = orders.at(expected["act_order"]);
    options.damping = expected["damping"];
    QuantizedWeight found;
    double error = 0.0;
    if (method == "rtn") {
      found = rtn(weight, hessian.diagonal().contiguous(), options.grid);
      std::vector<float> rounded = dequantize(found);
      error = trace_error(weight, at::from_blob(rounded.data(), {num_out, num_in}, at::kFloat), hessian);
    } else {
      GptqResult result = gptq(weight, hessian, options);
      error = result.trace_error;
      found = std::move(result.weight);
    }
    EXPECT_EQ(found.codes_OI, expected["codes"].get<std::vector<uint8_t>>());
    // PyTorch stored them as float64, but they are values of the stored type, so they must be equal.
    EXPECT_EQ(found.scales_OG, expected["scales"].get<std::vector<float>>());
    for (int64_t i = 0; i < static_cast<int64_t>(found.scales_OG.size()); ++i) {
      EXPECT_EQ(found.zero(i / found.num_groups(), i % found.num_groups()), expected["zeros"][i].get<int>());
    }
    for (int64_t i = 0; i < num_in; ++i) EXPECT_EQ(found.group(i), expected["group_of_column"][i].get<int64_t>());
    // The rounded weights are float32 here (relative 2^-24) and float64 there. A difference w - w' is 1/30 of w or more
    // (8 bits: 1/255). With the cancellation in the trace, this leaves a relative error of 1e-4 at worst.
    EXPECT_NEAR(error, expected["trace_error"].get<double>(), 1e-4 * error);
  }
}

// minmax.json holds the codes of compressed-tensors for bf16 and fp16 weights (tests/golden/make_minmax.py).
TEST(QuantGolden, MinMaxCodesAreThoseOfCompressedTensors) {
  std::ifstream file(std::string(kSourceFolder) + "/tests/golden/minmax.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  const int64_t num_out = golden["num_out"], num_in = golden["num_in"];
  ASSERT_EQ(golden["cases"].size(), 6u);
  for (const auto& expected : golden["cases"]) {
    SCOPED_TRACE(expected["dtype"].dump() + " " + expected["bits"].dump() + " bits");
    const DType dtype = parse_dtype(expected["dtype"].get<std::string>());
    std::vector<float> values;
    for (const auto& bits : expected["weight"]) {
      const auto half = static_cast<uint16_t>(bits.get<int>());
      values.push_back(dtype == DType::BF16 ? bf16_to_float(half) : f16_to_float(half));
    }
    const GridOptions options{expected["bits"], golden["group_size"], true, ScaleSearch::minmax, dtype};
    const QuantizedWeight found = rtn(at::from_blob(values.data(), {num_out, num_in}, at::kFloat), {}, options);
    EXPECT_EQ(found.codes_OI, expected["codes"].get<std::vector<uint8_t>>());
    EXPECT_EQ(found.scales_OG, expected["scales"].get<std::vector<float>>());
  }
}

}  // namespace
}  // namespace pare
