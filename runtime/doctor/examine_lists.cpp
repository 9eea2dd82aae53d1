#include "runtime/doctor/examine_lists.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/containers/compressed_tensors.h"
#include "runtime/containers/container_table.h"
#include "runtime/containers/gptq.h"
#include "runtime/containers/pare_gguf.h"
#include "runtime/containers/pare_sparse24.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array kCodeSuffixes = {kGptqWeightSuffix, kPackedSuffix, kGgufBlocksSuffix, kSparseValuesSuffix};

// The key of quantization_config that lists layers without codes, by quant_method.
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kListKeys = {
    {{"awq", "modules_to_not_convert"},
     {"fp8", "modules_to_not_convert"},
     {"bitsandbytes", "llm_int8_skip_modules"},
     {"compressed-tensors", "ignore"},
     {"gptq", "dynamic"}}};
constexpr const char* kExcept = "-:";

std::string list_key(const Json& quantization) {
  const auto method = quantization.find("quant_method");
  if (method == quantization.end() || !method->is_string()) return "";
  const auto row =
      std::ranges::find(kListKeys, method->get<std::string>(), [](const auto& r) { return std::string(r.first); });
  return row == kListKeys.end() ? "" : std::string(row->second);
}

// A rule of GPTQModel that leaves exactly this module out.
std::string except_rule(const std::string& module) {
  std::string pattern = std::string(kExcept) + "^";
  for (const char c : module) pattern += (c == '.' ? "\\" : "") + std::string(1, c);
  return pattern + "$";
}

// The list of one configuration, whatever its form: names, or rules of GPTQModel.
class UnquantizedList {
 public:
  explicit UnquantizedList(Json quantization) : quantization_(std::move(quantization)), key_(list_key(quantization_)) {}
  bool is_known() const { return !key_.empty(); }

  // Takes out the entries that name one of the modules with codes, and adds the modules without.
  Json corrected(const std::vector<std::string>& coded, const std::vector<std::string>& dense) const {
    Json result = quantization_;
    Json& list = result[key_];
    if (is_of_rules()) {
      Json kept = Json::object();
      for (const std::string& module : dense) kept[except_rule(module)] = Json::object();
      if (list.is_object()) {
        for (const auto& [rule, change] : list.items()) {
          if (!rule.starts_with(kExcept) || !names_any(Json{{rule, change}}, coded)) kept[rule] = change;
        }
      }
      list = std::move(kept);
      return result;
    }
    Json kept = Json::array();
    if (list.is_array()) {
      for (const Json& entry : list) {
        if (!names_any(Json::array({entry}), coded)) kept.push_back(entry);
      }
    }
    for (const std::string& module : dense) {
      if (std::ranges::find(kept, Json(module)) == kept.end()) kept.push_back(module);
    }
    list = kept.empty() && key_ != "ignore" ? Json() : kept;
    return result;
  }

 private:
  bool is_of_rules() const { return key_ == "dynamic"; }

  // Asks the container's own reader, with nothing else on the list.
  bool names_any(const Json& only, const std::vector<std::string>& modules) const {
    Json alone = quantization_;
    alone[key_] = only;
    bool names = false;
    failure_of([&] {
      const std::string text = json_text(Json{{"quantization_config", alone}});
      const std::optional<Quantization> read = read_quantization_config(text, "quantization_config");
      for (const std::string& module : modules) names |= !Claims::expects_codes(*read->config, module, "Linear");
    });
    return names;
  }

  Json quantization_;
  std::string key_;
};

struct Contradictions {
  std::vector<std::string> coded;  // listed as unquantized, by the names in the files
  std::vector<std::string> dense;  // not listed
};

// Returns the change that mends both; none where the form of the list is not known.
Repair correction(const Patient& patient, const Contradictions& found) {
  Repair repair;
  failure_of([&] {
    const Json config = parse_ordered_json(patient.config_json, kConfigName);
    const UnquantizedList list(config.at("quantization_config"));
    if (!list.is_known()) return;
    Json corrected = list.corrected(found.coded, found.dense);
    // Read again: a correction that does not help is none.
    const std::string text = json_text(Json{{"quantization_config", corrected}});
    const std::optional<Quantization> read = read_quantization_config(text, "quantization_config");
    for (const std::string& module : found.coded) {
      if (!Claims::expects_codes(*read->config, module, "Linear")) return;
    }
    for (const std::string& module : found.dense) {
      if (Claims::expects_codes(*read->config, module, "Linear")) return;
    }
    repair.does = "list the layers without codes, and no others, as not quantized";
    repair.settings.push_back({kConfigName, [found](Json& settings) {
                                 Json& quantization = settings["quantization_config"];
                                 quantization = UnquantizedList(quantization).corrected(found.coded, found.dense);
                               }});
  });
  return repair;
}

// Returns the blocks and layers that a configuration restricts itself to, by the keys in which programs say so.
bool is_outside_of_restriction(const Json& quantization, const std::string& module) {
  if (const auto blocks = quantization.find("block_name_to_quantize"); blocks != quantization.end()) {
    if (blocks->is_string() && !blocks->get<std::string>().empty()) {
      const std::string& list = blocks->get_ref<const std::string&>();
      for (size_t first = 0; first <= list.size();) {
        const size_t end = std::min(list.find(',', first), list.size());
        if (end > first && module.starts_with(list.substr(first, end - first))) return false;
        first = end + 1;
      }
      return true;
    }
  }
  const auto inside = quantization.find("modules_in_block_to_quantize");
  if (inside == quantization.end() || !inside->is_array()) return false;
  for (const Json& names : *inside) {
    for (const Json& name : names.is_array() ? names : Json::array({names})) {
      if (name.is_string() && module.ends_with(name.get<std::string>())) return false;
    }
  }
  return true;
}

std::vector<LinearDescription> linears_of(const Patient& patient) {
  if (patient.encoder) return block_linears(*patient.encoder);
  return patient.model ? block_linears(*patient.model) : std::vector<LinearDescription>();
}

// Returns the modules whose tensors only codes have, by the names in the files.
std::map<std::string, std::string> modules_with_codes(const Patient& patient) {
  std::map<std::string, std::string> found;  // with the suffix
  for (const auto& [name, tensor] : patient.tensors) {
    for (const std::string_view suffix : kCodeSuffixes) {
      if (name.ends_with(suffix)) found.emplace(name.substr(0, name.size() - suffix.size()), suffix);
    }
    const DType dtype = tensor.view->dtype;
    const bool is_coded =  // in bytes, or in MLX's words
        dtype == DType::I8 || dtype == DType::U8 || dtype == DType::F8_E4M3 || dtype == DType::U32;
    if (is_coded && name.ends_with(kPlainSuffix) && tensor.view->shape.size() == 2) {
      found.emplace(name.substr(0, name.size() - kPlainSuffix.size()), kPlainSuffix);
    }
  }
  return found;
}

void examine_forms(const Patient& patient, const std::vector<LinearDescription>& linears,
                   std::vector<Finding>& findings) {
  Finding finding{.illness = Illness::two_forms};
  std::string forms;
  for (const LinearDescription& linear : linears) {
    const ModuleForm form = form_of(patient, linear.name);
    if (form.codes.size() + form.has_floats < 2) continue;
    if (finding.concerned.empty()) {
      for (const std::string& suffix : form.codes) forms += (forms.empty() ? "" : " and ") + suffix.substr(1);
      if (form.has_floats) forms += " and a weight in floats";
    }
    finding.concerned.push_back(patient.stored_name(linear.name));
  }
  if (finding.concerned.empty()) return;
  finding.what = count_text(finding.concerned.size(), "layer") + (finding.concerned.size() == 1 ? " is" : " are") +
                 " stored twice, as '" + finding.concerned.front() + "' with " + forms +
                 ": programs differ in which they read";
  finding.figures = {{"layers", static_cast<double>(finding.concerned.size())}};
  finding.advice = "remove the tensors of the form that quantization_config does not say";
  findings.push_back(std::move(finding));
}

void examine_presence(const Patient& patient, const std::map<std::string, std::string>& coded,
                      std::vector<Finding>& findings) {
  const bool is_read = !patient.config_json.empty();  // of what could not be read nothing is known
  if (is_read && !patient.says_quantized && !coded.empty()) {
    std::vector<std::string> names;
    for (const auto& [name, suffix] : coded) names.push_back(name);
    std::string containers;
    for (const ContainerFormat* container : container_formats()) {
      if (std::ranges::find(container->suffixes(), coded.begin()->second) == container->suffixes().end()) continue;
      containers += (containers.empty() ? "" : ", ") + std::string(container->name());
    }
    findings.push_back(
        {.illness = Illness::unnamed_quantization,
         .concerned = names,
         .what = count_text(names.size(), "layer") + (names.size() == 1 ? " holds" : " hold") + " codes ('" +
                 coded.begin()->first + coded.begin()->second + "'), and config.json has no quantization_config",
         .figures = {{"layers", static_cast<double>(names.size())}},
         .advice =
             "take the quantization_config of the program that wrote them; such tensors are those of " + containers});
  }
  if (patient.quantization && coded.empty() && !patient.tensors.empty()) {
    findings.push_back(
        {.illness = Illness::nothing_quantized,
         .concerned = {kConfigName},
         .what = "quantization_config says '" + std::string(patient.quantization->container->name()) +
                 "', and no layer holds codes",
         .figures = {{"layers", 0.0}},
         .advice = "the model was saved without its codes: quantize again, or remove quantization_config"});
  }
}

}  // namespace

ModuleForm form_of(const Patient& patient, const std::string& module) {
  ModuleForm form;
  const FindTensor find = patient.find_described();
  for (const std::string_view suffix : kCodeSuffixes) {
    if (find(module + std::string(suffix)) != nullptr) form.codes.emplace_back(suffix);
  }
  const TensorView* const plain = find(module + std::string(kPlainSuffix));
  if (plain == nullptr) return form;
  form.has_floats = is_float_dtype(plain->dtype) || plain->dtype == DType::F64;
  if (!form.has_floats) form.codes.emplace_back(kPlainSuffix);
  return form;
}

void examine_lists(const Patient& patient, const Claims& claims, std::vector<Finding>& findings,
                   std::set<std::string>& explained) {
  std::vector<LinearDescription> linears = linears_of(patient);
  const std::map<std::string, std::string> coded = modules_with_codes(patient);
  examine_forms(patient, linears, findings);
  examine_presence(patient, coded, findings);
  if (!patient.quantization || coded.empty()) return;

  std::set<std::string> left_alone;
  if (patient.model) {
    for (const BlockDescription& block : patient.model->blocks) {
      for (const LinearDescription& router : block.routers()) left_alone.insert(router.name);
    }
    if (!patient.model->tied_head) {
      left_alone.insert(patient.model->head.name);
      linears.push_back(patient.model->head);
    }
  }
  Contradictions found;
  for (const auto& [stored, suffix] : coded) {
    const std::string described = patient.described_name(stored);
    const bool is_table = patient.model && (described == patient.model->embedding_name ||
                                            described == patient.model->position_table.name);
    if (claims.expects_codes(described, is_table ? "Embedding" : "Linear") == false) found.coded.push_back(stored);
  }
  Json quantization;
  failure_of([&] { quantization = parse_ordered_json(patient.config_json, kConfigName).at("quantization_config"); });
  for (const LinearDescription& linear : linears) {
    const ModuleForm form = form_of(patient, linear.name);
    if (!form.has_floats || !form.codes.empty() || claims.expects_codes(linear.name, "Linear") != true) continue;
    const std::string stored = patient.stored_name(linear.name);
    // The description's floats may be what a reader makes of codes, as of MLX's with free biases.
    if (coded.contains(stored)) continue;
    // Engines leave routers and the head alone, whatever a configuration says that has one scheme for all layers.
    if (list_key(quantization) != "ignore" && left_alone.contains(linear.name)) continue;
    if (is_outside_of_restriction(quantization, linear.name) && is_outside_of_restriction(quantization, stored))
      continue;
    found.dense.push_back(stored);
  }
  explained.insert(found.coded.begin(), found.coded.end());
  explained.insert(found.dense.begin(), found.dense.end());
  if (!found.coded.empty()) {
    findings.push_back({.illness = Illness::list_names_codes,
                        .concerned = found.coded,
                        .what = "quantization_config lists " + count_text(found.coded.size(), "layer") +
                                " as not quantized, and " + (found.coded.size() == 1 ? "its" : "their") +
                                " tensors are codes",
                        .figures = {{"layers", static_cast<double>(found.coded.size())},
                                    {"layers_with_codes", static_cast<double>(coded.size())}},
                        .advice = "take them off the list",
                        .repair = correction(patient, found)});
  }
  if (!found.dense.empty()) {
    const bool is_strict = list_key(quantization) == "ignore";
    findings.push_back({.illness = Illness::list_lacks_dense,
                        .certainty = is_strict ? Certainty::certain : Certainty::likely,
                        .concerned = found.dense,
                        .what = "quantization_config says that " + count_text(found.dense.size(), "layer") +
                                (found.dense.size() == 1 ? " is quantized, and its" : " are quantized, and their") +
                                " tensors are floats: engines look for codes there",
                        .figures = {{"layers", static_cast<double>(found.dense.size())},
                                    {"layers_with_codes", static_cast<double>(coded.size())}},
                        .advice = "list them as not quantized",
                        .repair = correction(patient, found)});
  }
}

}  // namespace pare::runtime
