// Text files that know whether they are what was written: {"sha256": "HEX", "content":
// CONTENT} with the hash of CONTENT, which is looked at before anything reads a byte of it. Where CONTENT is JSON, so
// is the file.
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>

namespace pare {

// Atomically (runtime/system/atomic_file.h).
void write_checked_file(const std::filesystem::path& path, std::string_view content);

// The content. Throws std::runtime_error: the file cannot be read, or damaged_file.
std::string read_checked_file(const std::filesystem::path& path);

// "'PATH' is damaged: start anew with --fresh", for all files of an unfinished run; with `what`, where it is known what is
// wrong, "'PATH' is damaged (WHAT): ...".
std::runtime_error damaged_file(const std::filesystem::path& path, const std::string& what = {});

}  // namespace pare
