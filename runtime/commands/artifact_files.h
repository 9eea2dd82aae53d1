// Are the files of a compressed model what the run that made them has written? pare.json lists them with their SHA-256;
// pare.json and report.json carry their own (runtime/system/sealed_json.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/system/json_text.h"

namespace pare {

inline constexpr const char* kManifestName = "pare.json";
inline constexpr const char* kReportName = "report.json";

// The member of the pare.json in `directory`; null where there is no such file or member, or it is damaged.
nlohmann::json manifest_member(const std::filesystem::path& directory, const std::string& member);

enum class WhichFiles {
  all,
  that_are_read  // by whoever runs the model: without report.json, and of unlisted ones only .json and .safetensors
};

struct FileCheck {
  bool has_manifest = false;           // without pare.json there is nothing to compare with
  int64_t num_files = 0;               // whose SHA-256 was compared
  std::vector<std::string> problems;   // file, expected, found. Empty: all is well
  std::vector<std::string> unchecked;  // pare.json, report.json of versions that gave them no checksum of their own
};

// Every file that pare.json lists has its SHA-256; pare.json and report.json are what was written; pare.json is there
// where report.json is, and lists all other files (those whose names begin with a dot, or lie in such a folder, are
// left out: nobody reads them as the model's). Throws std::runtime_error when pare.json is no JSON object with
// "outputs" {"file": "sha256"}; Interrupted. `progress` (files done, files) may be empty.
FileCheck check_files(const std::filesystem::path& directory, WhichFiles which,
                      const std::function<void(int64_t, int64_t)>& progress = {});

// What a message about so many problems says: where, and one to a line.
std::vector<std::string> damage_lines(const std::filesystem::path& directory, const std::vector<std::string>& problems);

// Throws ErrorOfLines with the problems of the files that are read, ending in what to do; `instead` says what
// else there is to do ("; --no-verify ...").
void require_whole_files(const std::filesystem::path& directory, const std::string& instead,
                         const std::function<void(int64_t, int64_t)>& progress = {});

// The same, without hashes: whether all files that a pare.json in the folder lists are there. For whoever reads a model
// and does not look at it otherwise: a tokenizer of which half is missing gives other tokens without a word.
void require_listed_files(const std::filesystem::path& directory);

// The same for files that were hashed anyway (name -> SHA-256): those that the pare.json beside them lists, if there is
// one, have these hashes, and all others are there.
void require_listed_hashes(const std::filesystem::path& directory, const std::map<std::string, std::string>& hashes);

}  // namespace pare
