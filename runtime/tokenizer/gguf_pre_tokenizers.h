#pragma once
#include <array>
#include <string_view>
#include <utility>
#include <vector>

namespace pare::runtime {

// The way in which text is split before byte-level BPE. Names and families: llama.cpp, src/llama-vocab.cpp. The
// expressions are those of the families' own tokenizer.json files.
struct PreTokenizerKind {
  std::string_view pattern;    // Split, Isolated; empty: ByteLevel's own (GPT-2's)
  bool single_digits = false;  // Digits(individual_digits) first
  bool nfc = false;
  bool ignore_merges = false;
  bool adds_bos = false;                       // used if the file does not say
  std::array<std::string_view, 5> first = {};  // Splits, Isolated, before the pattern's; empty ones are left out
  bool falcon = false;                         // Falcon's sequence, which splits once more after ByteLevel
  bool raw = false;  // the text's own characters in place of bytes', and U+2581 for a space: no splits
};

// The names of tokenizer.ggml.pre and what each stands for. "default" is GPT-2's.
const std::vector<std::pair<std::string_view, PreTokenizerKind>>& known_pre_tokenizers();

}  // namespace pare::runtime
