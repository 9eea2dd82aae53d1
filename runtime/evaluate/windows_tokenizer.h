// Records which tokenizer the ids in a .npy of token windows belong to. NumPy's format has no room for it, so a small
// JSON file stands beside the windows, NAME.npy.json: {"tokenizer": tokenizer_hash of the tokenizer, "sha256": of
// NAME.npy}.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/files/npy.h"
#include "runtime/system/input_files.h"

namespace pare::runtime {

// Returns NAME.npy.json for NAME.npy.
std::filesystem::path windows_tokenizer_file(const std::filesystem::path& windows);

// Returns the hash beside the windows; nothing if there is no such file. Throws std::runtime_error for a file that is
// damaged or belongs to other windows than those beside it (path, expected, found, what to do).
std::optional<std::string> windows_tokenizer(const std::filesystem::path& windows);

// Writes NAME.npy (write_npy) and the file beside it.
void write_windows(const std::filesystem::path& path, const TokenWindows& windows, const std::string& tokenizer_hash);

// Keeps ids of one tokenizer from a model with another. Call it before `text`, whatever it is, is read for the model in
// that folder. Returns nothing if the text does not consist of token ids, or if they are the model's. Otherwise returns
// a text that says what is not known: the windows do not say whose ids they hold, or the model has no tokenizer.json to
// compare them with. Throws std::invalid_argument for ids of another tokenizer (both hashes), and what
// windows_tokenizer throws.
std::optional<std::string> check_windows_tokenizer(const std::filesystem::path& text,
                                                   const std::filesystem::path& model);
// Does the same for several texts; empty names are left out. Adds what is not known to `events`, once.
void check_windows_tokenizers(const std::vector<std::filesystem::path>& texts, const std::filesystem::path& model,
                              std::vector<std::string>& events);

// Adds a text to the files that must not change while they are read. For windows it adds the file beside them as well.
void add_text(const std::filesystem::path& text, InputFiles& files);

}  // namespace pare::runtime
