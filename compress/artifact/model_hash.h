// The identity of a source, by the hashes of its files.
#pragma once

#include <map>
#include <string>

#include "runtime/model/checkpoint.h"

namespace pare::compress {

// For files that hold what was measured of a model: returns the SHA-256 of config.json and the weight files, on which
// statistics and logits depend. Throws std::runtime_error when there is a pare.json with other hashes of them or of the
// tokenizer's files, or one that lists files that are missing (runtime/commands/artifact_files.h).
std::string model_hash(const runtime::Checkpoint& checkpoint);

// Returns the SHA-256 of every file of the source's directory that goes into an output, by name. Throws
// std::runtime_error for a file that cannot be read.
std::map<std::string, std::string> input_hashes(const runtime::Checkpoint& source);

}  // namespace pare::compress
