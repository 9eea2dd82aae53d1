// The identity of an uncompressed model, for files that hold what was measured of it.
#pragma once

#include <string>

#include "runtime/model/checkpoint.h"

namespace pare {

// SHA-256 of config.json and the weight files: what statistics and logits depend on. Throws std::runtime_error
// when there is a pare.json that says other hashes of them or of the tokenizer's files, or lists files that are missing
// (runtime/commands/artifact_files.h).
std::string model_hash(const Checkpoint& checkpoint);

}  // namespace pare
