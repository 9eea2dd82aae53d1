// Text files that can tell whether they are what was written: {"sha256": "HEX", "content": CONTENT} with the hash of
// CONTENT, which is checked before anything reads a byte of it. Where CONTENT is JSON, so is the file.
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>

namespace pare::compress {

// Writes the file atomically (runtime/system/atomic_file.h).
void write_checked_file(const std::filesystem::path& path, std::string_view content);

// Returns the content. Throws std::runtime_error when the file cannot be read, or damaged_file.
std::string read_checked_file(const std::filesystem::path& path);

// Returns the error "'PATH' is damaged: start over with --fresh", for all files of an unfinished run. With `what`, a
// description of the damage, it is "'PATH' is damaged (WHAT): ...".
std::runtime_error damaged_file(const std::filesystem::path& path, const std::string& what = {});

}  // namespace pare::compress
