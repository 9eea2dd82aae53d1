// The identity of an uncompressed model, for files that hold what was measured of it.
#pragma once

#include <string>

#include "runtime/model/checkpoint.h"

namespace pare::compress {

// Returns the SHA-256 of config.json and the weight files, on which statistics and logits depend. Throws
// std::runtime_error when there is a pare.json with other hashes of them or of the tokenizer's files, or one that lists
// files that are missing (runtime/commands/artifact_files.h).
std::string model_hash(const runtime::Checkpoint& checkpoint);

}  // namespace pare::compress
