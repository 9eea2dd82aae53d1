#include "runtime/doctor/examine_files.h"

#include <algorithm>

namespace pare::runtime {

void examine_index(const Patient& patient, const std::function<bool(const std::string& tensor)>& needed,
                   std::vector<Finding>& findings) {
  if (patient.file_of_tensor.empty()) return;
  const std::string anew = "write the index anew, from what the files hold";
  const auto is_open = [&](const std::string& file) {
    return std::ranges::any_of(patient.paths, [&](const auto& path) { return path.filename() == file; });
  };
  std::vector<std::string> missing, elsewhere, unlisted;
  for (const auto& [tensor, file] : patient.file_of_tensor) {
    if (!is_open(file)) continue;  // said of the file
    const auto found = patient.tensors.find(tensor);
    if (found == patient.tensors.end()) {
      missing.push_back(tensor);
    } else if (patient.paths[found->second.file].filename() != file) {
      elsewhere.push_back(tensor);
    }
  }
  double num_bytes = 0.0;
  for (const auto& [tensor, stored] : patient.tensors) {
    num_bytes += static_cast<double>(stored.view->data.size());
    if (!patient.file_of_tensor.contains(tensor)) unlisted.push_back(tensor);
  }
  if (!missing.empty()) {
    const auto num_needed = std::ranges::count_if(missing, needed);
    findings.push_back({.illness = Illness::index_missing_tensor,
                        .certainty = num_needed > 0 ? Certainty::certain : Certainty::information,
                        .concerned = missing,
                        .what = std::string(kIndexName) + " names " + count_text(missing.size(), "tensor") +
                                " that no file holds, " + std::to_string(num_needed) + " of which the model needs",
                        .figures = {{"tensors", static_cast<double>(missing.size())},
                                    {"tensors_needed", static_cast<double>(num_needed)}},
                        .advice = num_needed > 0 ? "fetch index and files of the same revision" : anew,
                        .repair = {.does = num_needed > 0 ? "" : anew}});
  }
  if (!elsewhere.empty()) {
    findings.push_back({.illness = Illness::index_missing_tensor,
                        .certainty = Certainty::likely,
                        .concerned = elsewhere,
                        .what = std::string(kIndexName) + " names another file for " +
                                count_text(elsewhere.size(), "tensor") + " than the one that holds them",
                        .figures = {{"tensors", static_cast<double>(elsewhere.size())}},
                        .advice = anew,
                        .repair = {.does = anew}});
  }
  if (!unlisted.empty()) {
    findings.push_back({.illness = Illness::index_unlisted_tensor,
                        .certainty = Certainty::likely,
                        .concerned = unlisted,
                        .what = "files hold " + count_text(unlisted.size(), "tensor") + " that " + kIndexName +
                                " does not name: readers that go by it do without them",
                        .figures = {{"tensors", static_cast<double>(unlisted.size())}},
                        .advice = anew,
                        .repair = {.does = anew}});
  }
  const bool has_all_files =
      std::ranges::all_of(patient.file_of_tensor, [&](const auto& e) { return is_open(e.second); });
  const bool is_odd = !patient.odd_total_size.empty();
  if (is_odd && has_all_files) {
    findings.push_back({.illness = Illness::index_total_size,
                        .certainty = Certainty::information,
                        .concerned = {kIndexName},
                        .what = "total_size is no number: expected the bytes of the tensors, found " +
                                patient.odd_total_size.substr(0, 100),
                        .figures = {{"bytes_of_tensors", num_bytes}},
                        .advice = anew,
                        .repair = {.does = anew}});
  }
  if (patient.total_size >= 0.0 && patient.total_size != num_bytes && has_all_files) {
    findings.push_back({.illness = Illness::index_total_size,
                        .certainty = Certainty::information,
                        .concerned = {kIndexName},
                        .what = "total_size is not the size of the tensors",
                        .figures = {{"total_size", patient.total_size}, {"bytes_of_tensors", num_bytes}},
                        .advice = anew,
                        .repair = {.does = anew}});
  }
}

}  // namespace pare::runtime
