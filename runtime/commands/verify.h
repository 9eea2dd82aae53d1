// Is a checkpoint whole? Every file has the checksum its manifest gives, and every weight can be decoded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace pare {

struct Verification {
  bool has_manifest = false;           // pare.json with "outputs"; without it there are no checksums to compare
  int64_t num_files = 0;               // whose SHA-256 was compared
  int64_t num_linears = 0;             // decoded, embedding and head included
  std::vector<std::string> problems;   // file or tensor, expected, found. Empty: all is well
  std::vector<std::string> unchecked;  // files of pare's own that carry no checksum, written by earlier versions
};

// Reads the checkpoint in `directory` completely: its files (artifact_files.h), then every linear and norm through the
// readers that the runtime uses (finite values, valid codes and scales, no more kept than a pattern or pare.json says),
// and the tokenizer where there is one. Collects problems rather than stopping at the first. Throws std::runtime_error
// when there is no such directory or pare.json is no such JSON; Interrupted. `progress` (items done, items) may be empty.
Verification verify(const std::filesystem::path& directory, const std::function<void(int64_t, int64_t)>& progress = {});

std::string to_json(const Verification& verification);

}  // namespace pare
