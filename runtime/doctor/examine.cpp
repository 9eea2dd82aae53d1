#include "runtime/doctor/examine.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/doctor/examine_exchanged.h"
#include "runtime/doctor/examine_files.h"
#include "runtime/doctor/examine_gguf.h"
#include "runtime/doctor/examine_head.h"
#include "runtime/doctor/examine_lists.h"
#include "runtime/doctor/examine_model.h"
#include "runtime/doctor/examine_tokens.h"
#include "runtime/doctor/examine_values.h"
#include "runtime/import/model_directory.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/visible_text.h"

namespace pare::runtime {
namespace {

constexpr size_t kNamesShown = 3;

std::string figure_text(const Evidence& figure) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.6g", figure.value);
  return figure.name + " " + text;
}

// Whatever no finding explains must be found by who opens the model.
void open_as_readers_do(const Patient& patient, std::vector<Finding>& findings) {
  const std::string failure = failure_of([&] { Checkpoint::open(patient.directory).check_values(); });
  if (failure.empty()) return;
  findings.push_back({.illness = Illness::layer_refused,
                      .what = "the model cannot be opened: " + failure,
                      .advice = "see the message"});
}

Examination examine_checkpoint(const std::filesystem::path& directory, const ExamineOptions& options) {
  Examination result{.path = directory, .kind = "checkpoint", .container = {}, .findings = {}, .patient = {}};
  std::vector<Finding>& findings = result.findings;
  result.patient = admit(directory, findings);
  const Patient& patient = *result.patient;
  result.num_tensors = static_cast<int64_t>(patient.tensors.size());
  if (patient.quantization) result.container = patient.quantization->container->name();

  const Needs needs(patient);
  const Claims claims(patient);
  const bool has_original = options.original && patient.has_table;
  const auto num_items = static_cast<int64_t>(patient.tensors.size() + needs.linears().size() * (has_original ? 2 : 1) +
                                              packed_names(patient).size());
  int64_t num_done = 0;
  const auto step = [&] {
    throw_if_interrupted();
    if (options.progress) options.progress(++num_done, num_items);
  };
  if (options.progress) options.progress(0, num_items);

  std::set<std::string> explained;
  examine_lists(patient, claims, findings, explained);
  examine_shapes(patient, claims, findings, explained);
  examine_packed(patient, claims, options.original, findings, explained, step);
  examine_values(patient, findings, explained, step);
  if (patient.has_table) examine_model(patient, needs, claims, findings, explained, step);
  if (has_original) examine_exchanged(patient, needs, options.original, findings, step);
  examine_head(patient, findings);
  examine_tokens(patient, findings);
  examine_index(
      patient, [&](const std::string& tensor) { return needs.needs(patient.described_name(tensor)); }, findings);
  if (result.is_healthy()) open_as_readers_do(patient, findings);
  patient.inputs.check_unchanged();
  return result;
}

}  // namespace

int64_t Examination::count(Certainty certainty) const {
  return std::ranges::count(findings, certainty, &Finding::certainty);
}

Examination examine(const std::filesystem::path& named, const ExamineOptions& options) {
  const std::filesystem::path path = stored_model(named);
  Examination result;
  if (!std::filesystem::is_directory(path) && path.extension() == ".gguf") {
    result = {.path = path, .kind = "gguf", .container = {}, .findings = {}, .patient = {}};
    result.num_tensors = examine_gguf(path, result.findings, options.progress);
  } else {
    result = examine_checkpoint(path, options);
  }
  std::ranges::stable_sort(result.findings, [](const Finding& a, const Finding& b) {
    return std::pair(a.certainty, a.illness) < std::pair(b.certainty, b.illness);
  });
  return result;
}

std::string to_text(const Examination& examination) {
  std::ostringstream text;
  text << visible_line(examination.path.string()) << ": ";
  const int64_t certain = examination.count(Certainty::certain), likely = examination.count(Certainty::likely),
                information = examination.count(Certainty::information);
  if (examination.is_healthy()) {
    text << "healthy; " << examination.num_tensors << " tensors examined";
  } else {
    text << "ill: " << certain << " certain, " << likely << " likely";
  }
  if (information > 0) text << ", " << information << " for information";
  text << '\n';
  for (const Finding& finding : examination.findings) {
    text << certainty_name(finding.certainty) << ": " << illness_name(finding.illness) << ": "
         << visible_line(finding.what) << '\n';
    if (!finding.concerned.empty()) {
      text << "  concerns  " << visible_line(names_text(finding.concerned, kNamesShown)) << '\n';
    }
    std::string figures;
    for (const Evidence& figure : finding.figures) figures += (figures.empty() ? "" : ", ") + figure_text(figure);
    if (!figures.empty()) text << "  numbers   " << figures << '\n';
    text << "  to do     " << visible_line(finding.advice) << '\n';
    if (finding.repair.is_possible()) text << "  --repair  " << visible_line(finding.repair.does) << '\n';
  }
  return text.str();
}

nlohmann::ordered_json finding_json(const Finding& finding) {
  nlohmann::ordered_json json;
  json["name"] = illness_name(finding.illness);
  json["certainty"] = certainty_name(finding.certainty);
  json["concerned"] = finding.concerned;
  json["what"] = finding.what;
  json["numbers"] = nlohmann::ordered_json::object();
  for (const Evidence& figure : finding.figures) {
    // JSON has no NaN and no infinity.
    if (std::isfinite(figure.value)) {
      json["numbers"][figure.name] = figure.value;
    } else {
      json["numbers"][figure.name] = nullptr;
    }
  }
  json["to_do"] = finding.advice;
  json["repair"] = nullptr;
  if (finding.repair.is_possible()) json["repair"] = finding.repair.does;
  return json;
}

nlohmann::ordered_json examination_json(const Examination& examination) {
  nlohmann::ordered_json json;
  json["path"] = examination.path.string();
  json["kind"] = examination.kind;
  json["container"] = nullptr;
  if (!examination.container.empty()) json["container"] = examination.container;
  json["tensors"] = examination.num_tensors;
  json["healthy"] = examination.is_healthy();
  json["findings"] = nlohmann::ordered_json::array();
  for (const Finding& finding : examination.findings) json["findings"].push_back(finding_json(finding));
  return json;
}

}  // namespace pare::runtime
