// A container that pare does not have. Adding one takes this file and one row, register_container(). It stores one
// tensor "rows" of bytes for each linear: per output row the codes, then the float32 scales of its groups.
#pragma once

#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/containers/container_table.h"

namespace pare {
using namespace runtime;

inline constexpr std::string_view kRowsSuffix = ".rows";

class RowConfig final : public ContainerConfig {
 public:
  explicit RowConfig(PackScheme scheme) : scheme_(std::move(scheme)) {}
  std::optional<PackScheme> scheme_of(const std::string& module, std::string_view,
                                      const FindTensor& find) const override {
    if (!has_quantized_tensor(find, module, kRowsSuffix, /*is_named_unquantized=*/false)) return std::nullopt;
    return scheme_;
  }

 private:
  PackScheme scheme_;
};

class RowContainer final : public ContainerFormat {
 public:
  std::string_view name() const override { return "test-rows"; }
  std::string_view method() const override { return "rows"; }
  std::span<const std::string_view> suffixes() const override { return {&kRowsSuffix, 1}; }
  DType scale_dtype(DType) const override { return DType::F32; }
  PackScheme adapted(PackScheme wanted) const override {
    wanted.container = name();
    if (wanted.act_order == StoredActOrder::weight) wanted.act_order = StoredActOrder::none;
    return wanted;
  }
  void check(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
             const std::string& module) const override {
    const std::string tensor = module + std::string(kRowsSuffix);
    require_tensor(find(tensor), tensor, DType::U8, {num_out, num_in + 4 * scheme.num_groups(num_in)});
  }
  StoredLinear load(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                    const std::string& module) const override {
    check(find, scheme, num_out, num_in, module);
    StoredLinear linear;
    QuantizedWeight& weight = linear.weight;
    weight.num_out = num_out;
    weight.num_in = num_in;
    weight.bits = scheme.bits;
    weight.group_size = scheme.group_size;
    weight.scale_dtype = DType::F32;
    const auto num_groups = static_cast<size_t>(weight.num_groups());
    weight.codes_OI.resize(static_cast<size_t>(num_out * num_in));
    weight.scales_OG.resize(static_cast<size_t>(num_out) * num_groups);
    const std::byte* bytes = find(module + std::string(kRowsSuffix))->data.data();
    for (int64_t row = 0; row < num_out; ++row) {
      std::memcpy(weight.codes_OI.data() + row * num_in, bytes, static_cast<size_t>(num_in));
      bytes += num_in;
      std::memcpy(weight.scales_OG.data() + static_cast<size_t>(row) * num_groups, bytes, 4 * num_groups);
      bytes += 4 * num_groups;
    }
    validate(weight, module);
    return linear;
  }
  std::unique_ptr<ContainerConfig> read_config(const std::string& json, const std::string& where) const override {
    const auto config = nlohmann::json::parse(json);
    if (!config.contains("bits")) throw std::invalid_argument("'" + where + "': expected 'bits'");
    return std::make_unique<RowConfig>(adapted({.bits = config.at("bits"), .group_size = config.at("group_size")}));
  }

 private:
  std::string why_not(const PackScheme& scheme) const override {
    if (scheme.is_dense() || !scheme.is_integer() || !scheme.symmetric || scheme.per_tensor ||
        scheme.act_order == StoredActOrder::group || !scheme.input.is_plain()) {
      return "test-rows holds symmetric integers and 16-bit inputs";
    }
    return "";
  }
  std::string why_not_together(std::span<const StoredModule> modules) const override {
    return difference_of(modules, "test-rows says one scheme");
  }
  int64_t size_bytes(const PackScheme& scheme, int64_t num_out, int64_t num_in, const StoredExtent&) const override {
    return num_out * (num_in + 4 * scheme.num_groups(num_in));
  }
  std::vector<OwnedTensor> pack(const StoredLinear& linear, const PackScheme&,
                                const std::string& module) const override {
    const QuantizedWeight& weight = linear.weight;
    const auto num_groups = static_cast<size_t>(weight.num_groups()), width = static_cast<size_t>(weight.num_in);
    std::vector<uint8_t> bytes(static_cast<size_t>(weight.num_out) * (width + 4 * num_groups));
    uint8_t* next = bytes.data();
    for (size_t row = 0; row < static_cast<size_t>(weight.num_out); ++row) {
      std::memcpy(next, weight.codes_OI.data() + row * width, width);
      next += width;
      std::memcpy(next, weight.scales_OG.data() + row * num_groups, 4 * num_groups);
      next += 4 * num_groups;
    }
    const std::vector<int64_t> shape = {weight.num_out, static_cast<int64_t>(width + 4 * num_groups)};
    std::vector<OwnedTensor> tensors;
    tensors.push_back(make_tensor<uint8_t>(module + std::string(kRowsSuffix), DType::U8, shape, bytes));
    return tensors;
  }
  std::string write_config(std::span<const StoredModule> modules, std::span<const std::string>) const override {
    const PackScheme& scheme = modules.front().scheme;
    return nlohmann::json{{"quant_method", method()}, {"bits", scheme.bits}, {"group_size", scheme.group_size}}.dump();
  }
};

inline const RowContainer& row_container() {
  static const RowContainer container;
  return container;
}

}  // namespace pare
