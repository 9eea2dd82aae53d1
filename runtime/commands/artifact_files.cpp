#include "runtime/commands/artifact_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/files/safetensors.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/sealed_json.h"
#include "runtime/system/sha256.h"
#include "runtime/system/visible_text.h"

namespace pare::runtime {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMakeAnew = "copy the model again from an intact copy, or make it again";

// Returns the SHA-256 by file name.
std::map<std::string, std::string> listed_outputs(const fs::path& manifest, const std::string& text) {
  nlohmann::json json;
  std::string found;
  try {
    json = parse_json(text, manifest.string());
  } catch (const BadJson& error) {
    found = error.what();
  }
  if (!json.is_object() || !json.contains("outputs") || !json["outputs"].is_object()) {
    throw std::runtime_error((found.empty() ? manifest.string() : found) +
                             R"(: expected a JSON object with "outputs": {"file": "sha256"}; it is damaged: )" +
                             kMakeAnew);
  }
  std::map<std::string, std::string> outputs;
  for (const auto& [name, digest] : json["outputs"].items()) {
    // A manifest may list only files of its own folder.
    const fs::path path(name);
    const bool leaves = path.is_absolute() || path.lexically_normal().string().starts_with("..");
    if (!digest.is_string() || leaves) {
      throw std::runtime_error(manifest.string() + ": outputs: '" + name +
                               "': expected a file of the folder and its SHA-256");
    }
    outputs[name] = digest.get<std::string>();
  }
  return outputs;
}

std::string changed(const fs::path& file, const std::string& expected, const std::string& found) {
  return file.string() + ": SHA-256 " + found + ", pare.json has " + expected +
         ": the file was changed or damaged after it was written";
}

// Returns true if the file is there; adds to `problems` if not.
bool check_is_there(const fs::path& directory, const std::string& name, std::vector<std::string>& problems) {
  if (fs::is_regular_file(directory / name)) return true;
  problems.push_back((directory / name).string() + ": listed in pare.json, but missing");
  return false;
}

void check_digest(const fs::path& directory, const std::string& name, const std::string& expected,
                  std::vector<std::string>& problems) {
  if (!check_is_there(directory, name, problems)) return;
  try {
    const std::string found = sha256_file(directory / name);
    if (found != expected) problems.push_back(changed(directory / name, expected, found));
  } catch (const std::runtime_error& error) {  // the others are still checked
    problems.push_back(error.what());
  }
}

Seal check_own_checksum(const fs::path& file, const std::string& text, FileCheck& result) {
  const Seal seal = check_seal(text);
  if (seal == Seal::whole) ++result.num_files;
  if (seal == Seal::none) result.unchecked.push_back(file.filename().string());
  if (seal == Seal::broken) {
    result.problems.push_back(file.string() +
                              ": does not match its own \"sha256\": it was changed or damaged after it was written");
  }
  return seal;
}

void check_report(const fs::path& report, Seal manifest, FileCheck& result) {
  if (!is_there(report)) {
    if (manifest != Seal::none) result.problems.push_back(report.string() + ": missing");
    return;
  }
  const Seal seal = check_own_checksum(report, read_text_file(report), result);
  if (seal != Seal::none || manifest == Seal::none) return;
  result.unchecked.pop_back();  // pare.json has a checksum, so its writer gave this file one too
  result.problems.push_back(report.string() +
                            ": its own \"sha256\" is gone: it was changed or damaged after it was written");
}

// Compares report.html with the SHA-256 that report.json has of it; returns whether it has one.
bool check_page(const fs::path& directory, FileCheck& result) {
  if (!is_there(directory / kReportName)) return false;
  nlohmann::json report;
  try {
    report = parse_json(read_text_file(directory / kReportName), kReportName);
  } catch (const std::runtime_error&) {
    return false;  // its own checksum says so
  }
  if (!report.is_object() || !report.contains(kPageMember) || !report[kPageMember].is_string()) return false;
  check_digest(directory, kReportPageName, report[kPageMember].get<std::string>(), result.problems);
  ++result.num_files;
  return true;
}

// Returns the names, sorted, without those that begin with a dot.
std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (auto entry = fs::recursive_directory_iterator(directory); entry != fs::end(entry); ++entry) {
    if (entry->path().filename().string().starts_with('.')) {
      entry.disable_recursion_pending();
    } else if (!entry->is_directory() || entry->is_symlink()) {
      names.push_back(entry->path().lexically_relative(directory).string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

void require_none(const fs::path& directory, const std::vector<std::string>& problems, const std::string& instead) {
  if (problems.empty()) return;
  std::vector<std::string> lines = damage_lines(directory, problems);
  lines.push_back(kMakeAnew + instead);
  throw ErrorOfLines(lines);
}

}  // namespace

std::vector<std::string> damage_lines(const fs::path& directory, const std::vector<std::string>& problems) {
  std::vector<std::string> lines = {directory.string() + ": damaged, " + std::to_string(problems.size()) +
                                    " problem(s):"};
  for (const std::string& problem : problems) lines.push_back("  " + problem);
  return lines;
}

nlohmann::json manifest_member(const fs::path& directory, const std::string& member) {
  const fs::path manifest = directory / kManifestName;
  if (!fs::is_regular_file(manifest)) return nullptr;
  try {
    const nlohmann::json json = parse_json(read_text_file(manifest), manifest.string());
    return json.is_object() && json.contains(member) ? json.at(member) : nlohmann::json();
  } catch (const std::runtime_error&) {  // it cannot be read, or is not JSON
    return nullptr;
  }
}

FileCheck check_files(const fs::path& directory, WhichFiles which,
                      const std::function<void(int64_t, int64_t)>& progress) {
  FileCheck result;
  const fs::path manifest = directory / kManifestName, report = directory / kReportName;
  result.has_manifest = is_there(manifest);
  if (!result.has_manifest) {
    if (is_there(report)) {
      result.problems.push_back(manifest.string() +
                                ": missing, although every run that writes report.json writes it too");
    }
    return result;
  }
  const std::string text = read_text_file(manifest);
  const Seal seal = check_own_checksum(manifest, text, result);
  const std::map<std::string, std::string> outputs = listed_outputs(manifest, text);
  // A run measures, and writes a report. An export does not.
  const bool has_report = is_there(report) || manifest_member(directory, kExportMember).is_null();
  if (which == WhichFiles::all && has_report) check_report(report, seal, result);
  const bool has_page = which == WhichFiles::all && check_page(directory, result);
  int64_t num_done = 0;
  const auto num_outputs = static_cast<int64_t>(outputs.size());
  if (progress && num_outputs > 0) progress(0, num_outputs);
  for (const auto& [name, digest] : outputs) {
    throw_if_interrupted();
    if (which == WhichFiles::that_describe && fs::path(name).extension() != ".json") {
      check_is_there(directory, name, result.problems);
    } else {
      check_digest(directory, name, digest, result.problems);
      ++result.num_files;
    }
    if (progress) progress(++num_done, num_outputs);
  }
  for (const std::string& name : names_in(directory)) {
    if (outputs.contains(name) || name == kManifestName || name == kReportName) continue;
    if (name == kReportPageName && has_page) continue;
    const std::string extension = fs::path(name).extension().string();
    if (which != WhichFiles::all && extension != ".json" && extension != ".safetensors") continue;
    result.problems.push_back((directory / name).string() +
                              ": pare.json does not list it: it was added after the model was written");
  }
  return result;
}

void require_whole_files(const fs::path& directory, const std::string& instead,
                         const std::function<void(int64_t, int64_t)>& progress) {
  require_none(directory, check_files(directory, WhichFiles::that_are_read, progress).problems, instead);
}

Checkpoint open_described(const fs::path& directory, const std::string& instead,
                          const std::function<void(int64_t, int64_t)>& progress) {
  require_none(directory, check_files(directory, WhichFiles::that_describe).problems, instead);
  try {
    return Checkpoint::open(directory);
  } catch (const std::runtime_error&) {
    require_whole_files(directory, instead, progress);
    throw;  // the files are what was written
  }
}

void require_listed_files(const fs::path& directory) {
  const fs::path manifest = directory / kManifestName;
  if (!is_there(manifest)) return;
  std::vector<std::string> problems;
  for (const auto& [name, digest] : listed_outputs(manifest, read_text_file(manifest))) {
    if (!check_is_there(directory, name, problems) || !name.ends_with(".safetensors")) continue;
    try {
      SafetensorsFile::open(directory / name);
    } catch (const std::runtime_error& error) {
      problems.push_back(error.what());
    }
  }
  require_none(directory, problems, "");
}

void require_listed_hashes(const fs::path& directory, const std::map<std::string, std::string>& hashes) {
  const fs::path manifest = directory / kManifestName;
  if (!is_there(manifest)) return;
  FileCheck result;
  const std::string text = read_text_file(manifest);
  check_own_checksum(manifest, text, result);
  for (const auto& [name, digest] : listed_outputs(manifest, text)) {
    const auto found = hashes.find(name);
    if (found == hashes.end()) check_is_there(directory, name, result.problems);
    if (found == hashes.end() || found->second == digest) continue;
    result.problems.push_back(changed(directory / name, digest, found->second));
  }
  require_none(directory, result.problems, "");
}

void refuse_output_in_artifact(const fs::path& output) {
  std::error_code unknown;
  fs::path place = fs::weakly_canonical(output, unknown);
  if (unknown) place = fs::absolute(output);
  for (fs::path folder = place.parent_path(); folder != folder.parent_path(); folder = folder.parent_path()) {
    if (!is_there(folder / kManifestName)) continue;
    throw std::invalid_argument("'" + output.string() + "' lies in the model's own folder '" + folder.string() +
                                "', which would not be whole then: choose another");
  }
}

}  // namespace pare::runtime
