// Token windows for strict recipes with models of random weights, which know no text. They have one token each, so that
// nothing is predicted, and belong to the tokenizer that the model gets.
#pragma once

#include <filesystem>

#include "runtime/evaluate/windows_tokenizer.h"
#include "runtime/tokenizer/tokenizer_hash.h"
#include "tests/compress/run_pare.h"

namespace pare::test {
using namespace runtime;

// Writes the tokens of a family's windows to `path`, and a tokenizer.json into the model's folder.
inline void write_unjudged_windows(const std::filesystem::path& path, const std::filesystem::path& model,
                                   const std::string& family_name) {
  write_text(model / "tokenizer.json", R"({"version": "1.0", "added_tokens": [],
      "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}})");
  TokenWindows windows = read_npy(family(family_name) / "ids.npy");
  windows.num_windows *= windows.num_tokens;
  windows.num_tokens = 1;
  write_windows(path, windows, tokenizer_hash(model));
}

}  // namespace pare::test
