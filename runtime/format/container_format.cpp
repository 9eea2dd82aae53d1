#include "runtime/format/container_format.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace pare::runtime {
namespace {

std::string description(int bits, int64_t group_size, bool symmetric) {
  return std::to_string(bits) + " bits in groups of " + std::to_string(group_size) +
         (symmetric ? ", symmetric" : ", asymmetric");
}

// Returns a view of dense_OI.
DenseWeight packed_dense(const StoredLinear& linear) {
  return {.num_out = linear.weight.num_out,
          .num_in = linear.weight.num_in,
          .dtype = linear.dense_dtype,
          .data = linear.dense_OI,
          .pattern = linear.weight.pattern};
}

[[noreturn]] void fail_agreement(const std::string& module, const std::string& what) {
  throw std::invalid_argument("module '" + module + "': " + what + "; the weight and its scheme must agree");
}

void require(const Acceptance& acceptance, const std::string& name) {
  if (!acceptance) throw std::invalid_argument(name + ": " + acceptance.reason);
}

}  // namespace

nlohmann::json parse_config_text(const std::string& json, const std::string& where) {
  try {
    return parse_json(json, "quantization_config");
  } catch (const BadJson& error) {
    throw std::invalid_argument("'" + where + "': " + error.what());
  }
}

void require_agreement(const StoredLinear& linear, const PackScheme& scheme, const std::string& module) {
  if (input_scheme(linear.input) != scheme.input) {
    fail_agreement(module, "two different input activations: expected " + input_format_name(scheme.input) + ", found " +
                               input_format_name(linear.input) + " (or another threshold)");
  }
  const QuantizedWeight& weight = linear.weight;
  if (weight.pattern != scheme.pattern) {
    fail_agreement(module,
                   "expected the pattern " + pattern_name(scheme.pattern) + ", found " + pattern_name(weight.pattern));
  }
  if (scheme.is_dense()) {
    if (!weight.codes_OI.empty()) fail_agreement(module, "expected a dense weight, found codes");
    if (!scheme.has_own_tensor()) return validate(packed_dense(linear), module);
    if (!linear.dense_OI.empty())
      fail_agreement(module, "expected a dense weight in a tensor of its own, found values");
    return;
  }
  if (!linear.dense_OI.empty()) fail_agreement(module, "expected codes, found dense values");
  validate(weight, module);
  if (weight.code != scheme.code) {
    fail_agreement(module, "expected codes of the kind " + std::string(scheme.code->name) + ", found " +
                               std::string(weight.code->name));
  }
  if (weight.bits != scheme.bits || weight.group_size != scheme.group_size || weight.symmetric != scheme.symmetric) {
    fail_agreement(module, "expected " + description(scheme.bits, scheme.group_size, scheme.symmetric) + ", found " +
                               description(weight.bits, weight.group_size, weight.symmetric));
  }
  if (weight.group_of_I.empty() != (scheme.act_order != StoredActOrder::group)) {
    fail_agreement(module, "group_of_I and the act-order \"group\" go together");
  }
}

std::string difference_of(std::span<const StoredModule> modules, const std::string& because) {
  for (const StoredModule& module : modules) {
    if (!module.is_linear) return because + "; '" + module.name + "' is an embedding";
    if (module.scheme == modules.front().scheme) continue;
    return because + "; modules '" + modules.front().name + "' and '" + module.name + "' differ";
  }
  return {};
}

bool has_quantized_tensor(const FindTensor& find, const std::string& module, std::string_view suffix,
                          bool is_named_unquantized) {
  const std::string name = module + std::string(suffix);
  if (find(name) == nullptr) return false;
  if (is_named_unquantized) {
    throw std::runtime_error("tensor '" + name +
                             "': unexpected: the quantization_config of config.json lists this module among those that "
                             "are not quantized");
  }
  return true;
}

std::vector<std::string> ContainerFormat::unread_by(Engine, const PackScheme&) const {
  return {"the container " + std::string(name()) + " is pare's own"};
}

std::vector<std::string> only_with(std::span<const std::string_view> packages, Engine engine) {
  if (!is_transformers(engine)) return {};
  std::string names;
  for (const std::string_view package : packages) names += (names.empty() ? "" : " and ") + std::string(package);
  return {"only with the package" + std::string(packages.size() > 1 ? "s " : " ") + names + " installed"};
}

bool ContainerFormat::packs(const SparsePattern&) const {
  return false;
}

void ContainerFormat::adapt(StoredLinear& linear, const PackScheme& scheme) const {
  linear.weight.pattern = scheme.pattern;
}

DType ContainerFormat::scale_dtype(DType model_dtype) const {
  return model_dtype == DType::F16 ? DType::F16 : DType::BF16;
}

Acceptance ContainerFormat::accepts(const PackScheme& scheme) const {
  const PackScheme stated = adapted(scheme);
  if (!stated.pattern.is_dense() && !packs(stated.pattern)) {
    return {std::string(name()) + " does not pack the pattern " + pattern_name(stated.pattern) +
            ": store its zeros as values" +
            (stated.pattern == kTwoOfFour ? ", or use the container " + std::string(kPareSparse24) : "")};
  }
  return {why_not(stated)};
}

Acceptance ContainerFormat::accepts(const PackScheme& scheme, int64_t num_out, int64_t num_in) const {
  if (num_out <= 0 || num_in <= 0 || !checked_product(std::vector{num_out, num_in})) {
    return {"impossible shape " + shape_text(std::vector{num_out, num_in})};
  }
  if (Acceptance accepted = accepts(scheme); !accepted) return accepted;
  const PackScheme stated = adapted(scheme);
  if (stated.group_size != kPerChannel && (stated.group_size <= 0 || num_in % stated.group_size != 0)) {
    return {"the group size " + std::to_string(stated.group_size) + " does not divide the input width " +
            std::to_string(num_in) + ": use another, or one scale per channel"};
  }
  return {why_not_shape(stated, num_out, num_in)};
}

Acceptance ContainerFormat::accepts_together(std::span<const StoredModule> modules) const {
  for (const StoredModule& module : modules) {
    if (module.scheme.container == name()) continue;
    return {"module '" + module.name + "' is stored in the container " + module.scheme.container + ", others in " +
            std::string(name()) + ": a checkpoint has one container"};
  }
  return {why_not_together(modules)};
}

int64_t ContainerFormat::stored_bytes(const PackScheme& scheme, int64_t num_out, int64_t num_in,
                                      const StoredExtent& extent) const {
  require(accepts(scheme, num_out, num_in), "stored_bytes");
  return size_bytes(adapted(scheme), num_out, num_in, extent);
}

std::vector<OwnedTensor> ContainerFormat::store(const StoredLinear& linear, const PackScheme& scheme,
                                                const std::string& module) const {
  if (scheme.container != name()) {
    throw std::invalid_argument("module '" + module + "': expected the container " + std::string(name()) + ", found " +
                                scheme.container);
  }
  require(accepts(scheme, linear.weight.num_out, linear.weight.num_in), "module '" + module + "'");
  require_agreement(linear, scheme, module);
  return pack(linear, scheme, module);
}

std::string ContainerFormat::config_json(std::span<const StoredModule> modules,
                                         std::span<const std::string> ignore) const {
  if (modules.empty()) throw std::invalid_argument("quantization_config: expected at least one quantized module");
  require(accepts_together(modules), "quantization_config");
  return write_config(modules, ignore);
}

bool ContainerFormat::recognizes(std::string_view quant_method, const std::string&) const {
  return quant_method == method();
}

std::string ContainerFormat::why_not_shape(const PackScheme&, int64_t, int64_t) const {
  return {};
}

std::string ContainerFormat::why_not_together(std::span<const StoredModule>) const {
  return {};
}

}  // namespace pare::runtime
