// The models that turn a piece of text into ids: byte pair encoding, Unigram and WordPiece.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pare::runtime {

// The encoded words of one call of Tokenizer::encode. Texts repeat their words, and looking one up is much faster than
// merging it. The size is bounded.
class WordCache {
 public:
  // Returns the place of the ids of `word` if it has been seen.
  const std::pair<uint32_t, uint32_t>* find(std::string_view word) const;
  void insert(std::string_view word, const std::vector<int32_t>& all_ids, size_t begin);
  const int32_t* ids() const { return ids_.data(); }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view word) const { return std::hash<std::string_view>{}(word); }
  };
  std::unordered_map<std::string, std::pair<uint32_t, uint32_t>, Hash, std::equal_to<>> words_;  // begin, size in ids_
  std::vector<int32_t> ids_;
};

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  // Appends the ids of a piece of valid UTF-8 (not empty).
  virtual void encode(std::string_view piece, WordCache& cache, std::vector<int32_t>& ids) const = 0;
  virtual const std::unordered_map<std::string, int32_t>& vocabulary() const = 0;

  std::optional<int32_t> id(std::string_view token) const {
    const auto found = vocabulary().find(std::string(token));
    return found == vocabulary().end() ? std::nullopt : std::optional(found->second);
  }
};

}  // namespace pare::runtime
