#include "compress/artifact/layer_record.h"

#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>

#include "runtime/system/json_text.h"
#include "runtime/system/sha256.h"

namespace pare::compress {
namespace {

using Json = nlohmann::ordered_json;

std::span<const std::byte> bytes_of(const auto& values) {
  return std::as_bytes(std::span(values));
}

Json value_json(const runtime::FieldValue& value) {
  return std::visit(
      [](const auto& v) -> Json {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::optional<double>>) {
          return v ? Json(*v) : Json();
        } else {
          return v;
        }
      },
      value);
}

// Returns the value in `json`, of the kind that `expected` holds.
runtime::FieldValue read_value(const Json& json, const runtime::FieldValue& expected) {
  return std::visit(
      [&](const auto& kind) -> runtime::FieldValue {
        using T = std::decay_t<decltype(kind)>;
        if constexpr (std::is_same_v<T, std::optional<double>>) {
          return json.is_null() ? T() : T(json.get<double>());
        } else {
          return json.get<T>();
        }
      },
      expected);
}

}  // namespace

std::string to_json(const LayerRecord& record) {
  LayerRecord copy = record;
  Json json = Json::object();
  for (const runtime::NamedField& field : runtime::field_values(copy)) json[field.name] = value_json(field.value);
  return runtime::json_text(json);
}

LayerRecord parse_record(const std::string& text) {
  LayerRecord record;
  std::vector<runtime::NamedField> fields = runtime::field_values(record);
  try {
    const Json json = runtime::parse_ordered_json(text, "a layer's record");
    for (runtime::NamedField& field : fields) field.value = read_value(json.at(field.name), field.value);
  } catch (const runtime::BadJson& error) {
    throw std::invalid_argument(error.what());
  } catch (const Json::exception& error) {
    throw std::invalid_argument("a layer's record is damaged: " + std::string(error.what()));
  }
  runtime::assign_fields(fields, record);
  return record;
}

std::string content_hash(const runtime::StoredLinear& linear) {
  const runtime::QuantizedWeight& weight = linear.weight;
  const runtime::InputFormat& input = linear.input;
  runtime::Sha256 hash;
  const std::string header =
      std::to_string(weight.num_out) + "x" + std::to_string(weight.num_in) + " bits " + std::to_string(weight.bits) +
      " group " + std::to_string(weight.group_size) + (weight.symmetric ? " symmetric " : " asymmetric ") +
      std::string(runtime::dtype_name(weight.scale_dtype)) +
      (weight.code->is_integer() ? "" : " " + std::string(weight.code->name)) + " input " +
      // Hashes stay what they were when plain inputs had this name.
      (input.is_plain() ? "a16" : runtime::input_format_name(input)) + " " +
      std::to_string(static_cast<int>(input.outliers)) + " zero " + std::to_string(input.zero) +
      // Nor do they change by properties that few linears have.
      (weight.pattern.is_dense() ? "" : " pattern " + runtime::pattern_name(weight.pattern)) +
      (linear.dense_OI.empty() ? "" : " dense " + std::string(runtime::dtype_name(linear.dense_dtype)));
  hash.update(std::as_bytes(std::span(header)));
  hash.update(bytes_of(weight.codes_OI));
  hash.update(bytes_of(weight.scales_OG));
  hash.update(bytes_of(weight.zeros_OG));
  hash.update(bytes_of(weight.group_of_I));
  if (weight.code->has_tensor_scale) hash.update(bytes_of(std::array{weight.tensor_scale}));
  const std::array<float, 2> numbers = {input.scale, input.outlier_threshold};
  hash.update(bytes_of(numbers));
  hash.update(bytes_of(input.outlier_columns));
  hash.update(bytes_of(linear.outlier_weight_OJ));
  hash.update(bytes_of(linear.dense_OI));
  return hash.hex();
}

}  // namespace pare::compress
