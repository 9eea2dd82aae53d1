// Byte pair encoding (Sennrich et al. 2016, arXiv 1508.07909, algorithm 1). A piece starts as its characters or bytes.
// The neighbours whose merge has the lowest rank (leftmost among equals) are joined until no merge applies.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "runtime/tokenizer/token_model.h"

namespace pare::runtime {

// Returns the bytes that a text in GPT-2's alphabet stands for, or nothing if it has a character outside. The alphabet
// gives every byte a printable character, so that a vocabulary of bytes can be written as text
// (https://github.com/openai/gpt-2/blob/master/src/encoder.py, bytes_to_unicode).
std::optional<std::string> characters_to_bytes(std::string_view text);
std::string bytes_to_characters(std::string_view bytes);

struct BpeOptions {
  bool byte_level = false;     // pieces are raw bytes; the vocabulary is written in GPT-2's alphabet
  bool byte_fallback = false;  // a character without a token becomes its bytes' tokens <0x00> ... <0xFF>, if it has all
  bool ignore_merges = false;  // a piece that is a token is that token, whatever the merges say
  bool fuse_unk = false;       // a run of unknown characters is one unknown token
  std::optional<std::string> unk_token;
};

class BpeModel final : public TokenModel {
 public:
  using Merges = std::vector<std::pair<std::string, std::string>>;  // in order of rank
  // Throws std::runtime_error (`where`) if a merge or the unknown token is not in the vocabulary, or an id is negative
  // or absurd.
  BpeModel(std::vector<std::pair<std::string, int32_t>> vocabulary, const Merges& merges, const BpeOptions& options,
           const std::string& where);

  // Appends the ids of a piece of valid UTF-8 (not empty). A character that the vocabulary cannot express is left out
  // if there is neither fallback nor an unknown token, as in the `tokenizers` package.
  void encode(std::string_view piece, WordCache& cache, std::vector<int32_t>& ids) const override;

  const std::unordered_map<std::string, int32_t>& vocabulary() const override { return vocabulary_; }
  bool byte_level() const { return options_.byte_level; }

 private:
  struct Merge {
    uint64_t pair = kNoPair;
    uint32_t rank = 0;
    int32_t result = 0;
  };
  static constexpr uint64_t kNoPair = ~uint64_t{0};

  void add_symbols(const std::string& where);
  void add_merges(const Merges& merges, const std::string& where);
  void note_inner_spaces(std::string_view token);
  const Merge* find_merge(int32_t left, int32_t right) const;
  void encode_word(std::string_view word, WordCache& cache, std::vector<int32_t>& ids) const;
  void append_symbols(std::string_view word, std::vector<int32_t>& symbols) const;
  void merge_short(std::vector<int32_t>& symbols) const;
  void merge_long(std::vector<int32_t>& symbols) const;

  BpeOptions options_;
  std::unordered_map<std::string, int32_t> vocabulary_;
  std::unordered_map<std::string, int32_t> whole_pieces_;  // for ignore_merges: by the piece that encode() gets
  std::unordered_map<char32_t, int32_t> characters_;       // the tokens of one character
  std::array<int32_t, 256> level_bytes_{};                 // tokens of GPT-2's alphabet; -1: none
  std::array<int32_t, 256> fallback_bytes_{};              // tokens <0x00> ... <0xFF>; -1: none
  std::optional<int32_t> unk_;
  std::vector<Merge> merges_;                  // open addressing, a power of two, at most half full
  std::unordered_set<char32_t> before_space_;  // see encode()
  bool can_cut_ = false;
};

}  // namespace pare::runtime
