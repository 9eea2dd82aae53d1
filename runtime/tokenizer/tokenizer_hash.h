// The identity of a tokenizer: two files that give the same ids the same meaning have the same hash, however they are
// formatted.
#pragma once

#include <filesystem>
#include <string>

namespace pare {

// SHA-256 of what a tokenizer.json (or the one in a directory, or the one that Tokenizer makes of a .gguf) says of the
// vocabulary: the kind of model, each token with its id, the merges in their order, and the added tokens. Not of the
// file's bytes: white space, the order of keys and both ways to write a merge ("a b", ["a", "b"]) give one hash, as do
// other normalizers, chat templates and post-processors, which change how a text is cut but not what an id stands for.
// Throws std::runtime_error: a file that cannot be read or has no vocabulary (path, what is missing).
std::string tokenizer_hash(const std::filesystem::path& path);

}  // namespace pare
