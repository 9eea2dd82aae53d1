// What is made of a model that not everybody may read is for nobody else either: its weights, in the end, and all that
// stands in progress folders, statistics and recorded logits meanwhile.
#pragma once

#include <filesystem>

namespace pare {

// From here on this process makes files and folders that only those may read who may read `source`: a file (a model's,
// statistics, logits), or each file of weights in a folder. (By the process's umask, which only gets stricter.) Of what is missing its reader tells.
void keep_as_private_as(const std::filesystem::path& source);

}  // namespace pare
