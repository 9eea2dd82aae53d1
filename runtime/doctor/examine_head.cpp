#include "runtime/doctor/examine_head.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/doctor/code_evidence.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTieKey = "tie_word_embeddings";

std::vector<float> floats_of(const TensorView& view) {
  std::vector<float> values(static_cast<size_t>(view.num_elements()));
  convert_to_float(view.dtype, view.data, values);
  return values;
}

// The key of a whole model stands in a section, where a repair does not look for it.
void set_tie(const Patient& patient, bool value, Repair& repair) {
  if (patient.model->is_text_part) return;
  repair.does = std::string("say ") + kTieKey + ": " + (value ? "true" : "false");
  repair.settings.push_back({kConfigName, [value](Json& config) { config[kTieKey] = value; }});
}

void compare_tied(const Patient& patient, const std::vector<std::string>& tensors, std::vector<Finding>& findings) {
  const ModelDescription& model = *patient.model;
  std::vector<std::string> equal, different;
  double num_bytes = 0.0;
  for (const std::string& name : tensors) {
    const TensorView own = patient.table.tensor(name);
    const std::string part = name.substr(model.head.name.size());
    const bool is_equal = patient.table.find(model.embedding_name + part) != nullptr &&
                          are_equal(own, patient.table.tensor(model.embedding_name + part));
    (is_equal ? equal : different).push_back(patient.stored_name(name));
    if (is_equal) num_bytes += static_cast<double>(own.data.size());
  }
  if (different.empty()) {
    findings.push_back({.illness = Illness::head_doubled,
                        .certainty = Certainty::information,
                        .concerned = equal,
                        .what = "the head is tied to the embedding and stored a second time, with equal bytes",
                        .figures = {{"bytes", num_bytes}},
                        .advice = "leave the head's tensors out",
                        .repair = {.does = "leave the head's second copy out", .dropped = equal}});
    return;
  }
  Finding finding{.illness = Illness::head_differs,
                  .concerned = different,
                  .what =
                      "tie_word_embeddings is true, and the head has a weight of its own: programs differ in which "
                      "they take",
                  .advice = "say tie_word_embeddings: false"};
  const std::string head = model.head.name + ".weight", embedding = model.embedding_name + ".weight";
  const TensorView *const own = patient.table.find(head), *const shared = patient.table.find(embedding);
  const bool are_comparable = own != nullptr && shared != nullptr && is_float_dtype(own->dtype) &&
                              is_float_dtype(shared->dtype) && own->shape == shared->shape;
  if (are_comparable) {
    finding.figures.push_back({"relative_difference", relative_difference(floats_of(patient.table.tensor(head)),
                                                                          floats_of(patient.table.tensor(embedding)))});
  }
  set_tie(patient, false, finding.repair);
  findings.push_back(std::move(finding));
}

}  // namespace

void examine_head(const Patient& patient, std::vector<Finding>& findings) {
  if (!patient.model || !patient.has_table || patient.model->head.name.empty()) return;
  const ModelDescription& model = *patient.model;
  std::vector<std::string> tensors;
  for (const std::string& name : patient.table.names()) {
    if (name.starts_with(model.head.name + ".")) tensors.push_back(name);
  }
  if (model.tied_head) {
    if (!tensors.empty()) compare_tied(patient, tensors, findings);
    return;
  }
  const std::string head = model.head.name + ".weight", embedding = model.embedding_name + ".weight";
  const TensorView *const own = patient.table.find(head), *const shared = patient.table.find(embedding);
  if (tensors.empty()) {
    Finding finding{
        .illness = Illness::head_missing,
        .concerned = {patient.stored_name(model.head.name) + ".weight"},
        .what = "tie_word_embeddings is false, and no file holds a head: programs go on with random weights",
        .advice = "say tie_word_embeddings: true, if the head shares the embedding's weight"};
    if (shared != nullptr) set_tie(patient, true, finding.repair);
    findings.push_back(std::move(finding));
  } else if (own != nullptr && shared != nullptr &&
             are_equal(patient.table.tensor(head), patient.table.tensor(embedding))) {
    findings.push_back({.illness = Illness::head_equal,
                        .certainty = Certainty::information,
                        .concerned = {patient.stored_name(model.head.name) + ".weight"},
                        .what = "tie_word_embeddings is false, and head and embedding have equal bytes",
                        .figures = {{"bytes", static_cast<double>(patient.table.tensor(head).data.size())}},
                        .advice = "tie_word_embeddings: true would say the same without the second copy"});
  }
}

}  // namespace pare::runtime
