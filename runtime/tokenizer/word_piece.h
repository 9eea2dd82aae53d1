// WordPiece (Schuster and Nakajima 2012; Devlin et al., arXiv 1810.04805): a word becomes the longest token that starts
// it, then the longest continuation ("##" + text) of the rest, and so on.
#pragma once

#include "runtime/tokenizer/token_model.h"

namespace pare::runtime {

struct WordPieceOptions {
  std::string unk_token = "[UNK]";
  std::string continuing_prefix = "##";
  size_t max_characters_per_word = 100;  // longer words are unknown
};

class WordPieceModel final : public TokenModel {
 public:
  // Throws std::runtime_error (`where`) if the unknown token is not in the vocabulary, or an id is negative or absurd.
  WordPieceModel(std::vector<std::pair<std::string, int32_t>> vocabulary, WordPieceOptions options,
                 const std::string& where);

  // A word is unknown as a whole if some part of it is not a token.
  void encode(std::string_view piece, WordCache& cache, std::vector<int32_t>& ids) const override;
  const std::unordered_map<std::string, int32_t>& vocabulary() const override { return vocabulary_; }

 private:
  bool append_tokens(std::string_view word, std::vector<int32_t>& ids) const;

  WordPieceOptions options_;
  std::unordered_map<std::string, int32_t> vocabulary_;
  size_t longest_token_ = 0;  // bytes
  int32_t unk_ = 0;
};

}  // namespace pare::runtime
