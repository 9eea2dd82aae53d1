// Checks that a checkpoint is whole: every file has the checksum in its manifest, and every weight can be decoded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace pare::runtime {

struct Verification {
  bool has_manifest = false;           // pare.json with "outputs"; without it there are no checksums to compare
  int64_t num_files = 0;               // with a SHA-256 that was compared
  int64_t num_linears = 0;             // decoded, embedding and head included
  std::vector<std::string> problems;   // file or tensor, expected, found; empty: all is well
  std::vector<std::string> unchecked;  // pare's own files without a checksum, written by earlier versions
};

// Reads the checkpoint in `directory` completely: its files (artifact_files.h), then every linear and norm through the
// readers that the runtime uses, and the tokenizer if there is one. Values must be finite, codes and scales valid, and
// no more weights kept than a pattern or pare.json says. Collects problems rather than stopping at the first. Throws
// std::runtime_error if there is no such directory or pare.json is not such JSON; Interrupted. `progress` (items done,
// items) may be empty.
Verification verify(const std::filesystem::path& directory, const std::function<void(int64_t, int64_t)>& progress = {});

std::string to_json(const Verification& verification);

}  // namespace pare::runtime
