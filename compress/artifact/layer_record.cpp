#include "compress/artifact/layer_record.h"

#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>

#include "runtime/system/sha256.h"

namespace pare {
namespace {

using Json = nlohmann::ordered_json;

std::span<const std::byte> bytes_of(const auto& values) {
  return std::as_bytes(std::span(values));
}

// Enumerations by number: these files are read by the same version of pare alone.
Json scheme_json(const PackScheme& scheme) {
  const InputFormat& input = scheme.input;
  return {{"bits", scheme.bits},
          {"group_size", scheme.group_size},
          {"symmetric", scheme.symmetric},
          {"act_order", static_cast<int>(scheme.act_order)},
          {"format", static_cast<int>(scheme.format)},
          {"per_tensor", scheme.per_tensor},
          {"input_type", static_cast<int>(input.type)},
          {"input_range", static_cast<int>(input.range)},
          {"input_symmetric", input.symmetric},
          {"outliers", static_cast<int>(input.outliers)},
          {"outlier_threshold", input.outlier_threshold}};
}

PackScheme parse_scheme(const Json& json) {
  PackScheme scheme;
  scheme.bits = json.at("bits").get<int>();
  scheme.group_size = json.at("group_size").get<int64_t>();
  scheme.symmetric = json.at("symmetric").get<bool>();
  scheme.act_order = static_cast<StoredActOrder>(json.at("act_order").get<int>());
  scheme.format = static_cast<StoredFormat>(json.at("format").get<int>());
  scheme.per_tensor = json.at("per_tensor").get<bool>();
  scheme.input.type = static_cast<InputType>(json.at("input_type").get<int>());
  scheme.input.range = static_cast<InputRange>(json.at("input_range").get<int>());
  scheme.input.symmetric = json.at("input_symmetric").get<bool>();
  scheme.input.outliers = static_cast<OutlierRule>(json.at("outliers").get<int>());
  scheme.input.outlier_threshold = json.at("outlier_threshold").get<float>();
  return scheme;
}

Json record_json(const LayerRecord& record) {
  return {{"name", record.name},
          {"num_out", record.num_out},
          {"num_in", record.num_in},
          {"is_linear", record.is_linear},
          {"method", record.method},
          {"scheme", scheme_json(record.scheme)},
          {"scale_dtype", dtype_name(record.scale_dtype)},
          {"relative_error", record.relative_error},
          {"error_measure", record.error_measure},
          {"output_error", record.output_error},
          {"damping", record.damping},
          {"scaling", record.scaling},
          {"error_before_refinement", record.error_before_refinement},
          {"events", record.events},
          {"sha256", record.sha256},
          {"seconds", record.seconds}};
}

LayerRecord record_from(const Json& json) {
  LayerRecord record;
  record.name = json.at("name").get<std::string>();
  record.num_out = json.at("num_out").get<int64_t>();
  record.num_in = json.at("num_in").get<int64_t>();
  record.is_linear = json.at("is_linear").get<bool>();
  record.method = json.at("method").get<std::string>();
  record.scheme = parse_scheme(json.at("scheme"));
  record.scale_dtype = parse_dtype(json.at("scale_dtype").get<std::string>());
  record.relative_error = json.at("relative_error").get<double>();
  record.error_measure = json.at("error_measure").get<std::string>();
  record.output_error = json.at("output_error").get<double>();
  record.damping = json.at("damping").get<double>();
  record.scaling = json.at("scaling").get<std::string>();
  record.error_before_refinement = json.at("error_before_refinement").get<double>();
  record.events = json.at("events").get<std::vector<std::string>>();
  record.sha256 = json.at("sha256").get<std::string>();
  record.seconds = json.at("seconds").get<double>();
  return record;
}

}  // namespace

std::string content_hash(const StoredLinear& linear) {
  const QuantizedWeight& weight = linear.weight;
  const InputFormat& input = linear.input;
  Sha256 hash;
  const std::string header =
      std::to_string(weight.num_out) + "x" + std::to_string(weight.num_in) + " bits " + std::to_string(weight.bits) +
      " group " + std::to_string(weight.group_size) + (weight.symmetric ? " symmetric " : " asymmetric ") +
      std::string(dtype_name(weight.scale_dtype)) + (weight.code_type == CodeType::fp8 ? " fp8" : "") + " input " +
      input_format_name(input) + " " + std::to_string(static_cast<int>(input.outliers)) + " zero " +
      std::to_string(input.zero);
  hash.update(std::as_bytes(std::span(header)));
  hash.update(bytes_of(weight.codes_OI));
  hash.update(bytes_of(weight.scales_OG));
  hash.update(bytes_of(weight.zeros_OG));
  hash.update(bytes_of(weight.group_of_I));
  const std::array<float, 2> numbers = {input.scale, input.outlier_threshold};
  hash.update(bytes_of(numbers));
  hash.update(bytes_of(input.outlier_columns));
  hash.update(bytes_of(linear.outlier_weight_OJ));
  return hash.hex();
}

std::string to_json(const LayerRecord& record) {
  return record_json(record).dump();
}

LayerRecord parse_record(const std::string& text) {
  try {
    return record_from(Json::parse(text));
  } catch (const Json::exception& error) {
    throw std::invalid_argument("a layer's record is damaged: " + std::string(error.what()));
  }
}

}  // namespace pare
