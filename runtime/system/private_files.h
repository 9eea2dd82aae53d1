// What is made of a model and a text that not everybody may read is for nobody else either: weights, in the end, and
// all that stands in progress folders, statistics and recorded logits meanwhile.
#pragma once

#include <filesystem>
#include <vector>

#include "runtime/system/input_files.h"

namespace pare {

// From here on this process makes files and folders that only those may read who may read all of `sources`: files (a
// model's, texts, statistics), or the files with weights, settings and logits in a folder. (By the process's umask,
// which only gets stricter.) Reading takes the right to read the file and to pass each folder above it, links followed.
// A group that may read keeps its rights where `output`, which need not be there yet, will be of that group: it is the
// process's own, or that of a folder with the set-group-ID bit. Access lists are not looked at, and of what is missing
// or no regular file (a pipe) its reader tells.
void keep_as_private_as(const std::vector<std::filesystem::path>& sources, const std::filesystem::path& output);

// A copy that no more people may read than the original: of its rights to read and write it gets what the umask leaves,
// and those of a group only where it is of that group. It appears whole or not at all; throws std::runtime_error (path,
// reason).
void copy_privately(const InputFile& source, const std::filesystem::path& copy);

}  // namespace pare
