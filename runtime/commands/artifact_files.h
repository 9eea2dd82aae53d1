// Checks that the files of a compressed model are what the run that made them wrote. pare.json lists them with their
// SHA-256; pare.json and report.json carry their own (runtime/system/sealed_json.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/model/checkpoint.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {

inline constexpr const char* kManifestName = "pare.json";
inline constexpr const char* kReportName = "report.json";
inline constexpr const char* kExportMember = "export";         // of the pare.json of an exported model
inline constexpr const char* kWrittenMember = "written_as";    // likewise of a run that has written another form
inline constexpr const char* kReportPageName = "report.html";  // made of report.json, which has its SHA-256
inline constexpr const char* kPageMember = "page";             // under this name

// Returns the member of the pare.json in `directory`; null if there is no such file or member, or if it is damaged.
nlohmann::json manifest_member(const std::filesystem::path& directory, const std::string& member);

enum class WhichFiles {
  all,
  that_are_read,  // needed to run the model: without report.json, and of unlisted files only .json and .safetensors
  that_describe   // the same, but only .json files are hashed, which is soon done; the others must only be there
};

struct FileCheck {
  bool has_manifest = false;           // without pare.json there is nothing to compare with
  int64_t num_files = 0;               // with a SHA-256 that was compared
  std::vector<std::string> problems;   // each with file, expected, found; empty: all is well
  std::vector<std::string> unchecked;  // pare.json, report.json of versions that gave them no checksum
};

// Checks that every file that pare.json lists has its SHA-256, and that pare.json and report.json are what was written.
// pare.json must be there if report.json is, and must list all other files. Files whose names begin with a dot, or that
// lie in such a folder, are left out: nobody reads them as the model's. Throws std::runtime_error if pare.json is not a
// JSON object with "outputs" {"file": "sha256"}; Interrupted. `progress` (files done, files) may be empty.
FileCheck check_files(const std::filesystem::path& directory, WhichFiles which,
                      const std::function<void(int64_t, int64_t)>& progress = {});

// Returns the lines of a message about these problems: first the directory, then one problem per line.
std::vector<std::string> damage_lines(const std::filesystem::path& directory, const std::vector<std::string>& problems);

// Throws ErrorOfLines with the problems of the files that are read. It ends in what to do; `instead` adds an
// alternative ("; --no-verify ...").
void require_whole_files(const std::filesystem::path& directory, const std::string& instead,
                         const std::function<void(int64_t, int64_t)>& progress = {});

// Opens a model of which only the .json files have been hashed. Hashing the weights may take minutes, and options or
// data may be wrong: call require_whole_files when all else is in order, before the weights are loaded. If the model
// cannot be opened, all files are hashed at once, because damage is the better message. Throws what require_whole_files
// and Checkpoint::open throw.
Checkpoint open_described(const std::filesystem::path& directory, const std::string& instead,
                          const std::function<void(int64_t, int64_t)>& progress = {});

// Checks, without hashes, that all files that a pare.json in the folder lists are there, and that those of weights have
// the size that their header asks for. For callers that read a model and do not check it otherwise: with half of a
// tokenizer's files missing, tokens would differ without any message. Throws ErrorOfLines.
void require_listed_files(const std::filesystem::path& directory);

// Checks files that were hashed anyway (name -> SHA-256). If there is a pare.json beside them, the listed ones must
// have its hashes, and all others that it lists must be there.
void require_listed_hashes(const std::filesystem::path& directory, const std::map<std::string, std::string>& hashes);

// Throws std::invalid_argument for an output in a folder that has a pare.json, or in one of its folders: the model
// there would not be whole then.
void refuse_output_in_artifact(const std::filesystem::path& output);

}  // namespace pare::runtime
