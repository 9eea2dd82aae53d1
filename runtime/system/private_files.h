// Keeps outputs private that are made of a model or a text that not everybody may read. These are the weights in the
// end, and meanwhile everything in progress folders, statistics and recorded logits.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "runtime/system/input_files.h"

namespace pare::runtime {

// From here on, files and folders that this process makes can be read only by those who may read all of `sources`.
// Sources are files (a model's, texts, statistics), or folders, whose files with weights, settings and logits count.
// (This sets the process's umask, which only gets stricter.)
// Reading a source takes the right to read the file and to pass each folder above it, with links followed. A group that
// may read keeps its rights if `output`, which need not exist yet, will have that group. That is the process's own
// group, or that of a folder with the set-group-ID bit. Access lists are not looked at. A source that is missing or not
// a regular file (a pipe) is left to its reader.
void keep_as_private_as(const std::vector<std::filesystem::path>& sources, const std::filesystem::path& output);

// Makes a copy that no more people may read than the original. It gets the original's rights to read and write as far
// as the umask allows, and those of a group only if it has that group. It appears whole or not at all. Throws
// std::runtime_error (path, reason).
void copy_privately(const InputFile& source, const std::filesystem::path& copy);
// Writes a file that has something of `source` in it, for the same readers.
void write_privately(const InputFile& source, const std::filesystem::path& path, std::string_view text);

}  // namespace pare::runtime
