// The identity of a tokenizer. Two files that give the same ids the same meaning have the same hash, however they are
// formatted.
#pragma once

#include <filesystem>
#include <string>

namespace pare::runtime {

// Returns the SHA-256 of what a tokenizer.json says of the vocabulary: the kind of model, each token with its id, the
// merges in their order, and the added tokens. `path` is such a file, a directory that has one, or a .gguf, of which
// Tokenizer makes one. The file's bytes do not count: white space, the order of keys and both ways to write a merge ("a
// b", ["a", "b"]) give one hash. Nor do normalizers, chat templates and post-processors, which change how a text is cut
// but not what an id stands for.
// Throws std::runtime_error for a file that cannot be read or has no vocabulary (path, what is missing).
std::string tokenizer_hash(const std::filesystem::path& path);

}  // namespace pare::runtime
