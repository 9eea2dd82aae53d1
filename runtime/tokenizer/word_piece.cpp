#include "runtime/tokenizer/word_piece.h"

#include <algorithm>
#include <stdexcept>

#include "runtime/system/visible_text.h"
#include "runtime/text/unicode.h"

namespace pare::runtime {

WordPieceModel::WordPieceModel(std::vector<std::pair<std::string, int32_t>> vocabulary, WordPieceOptions options,
                               const std::string& where)
    : options_(std::move(options)) {
  for (auto& [token, id] : vocabulary) {
    if (id < 0 || id > (1 << 24)) {
      throw std::runtime_error(where + ": the token '" + visible_line(token) + "' has the id " + std::to_string(id) +
                               "; expected one from 0 to 2^24");
    }
    longest_token_ = std::max(longest_token_, token.size());
    vocabulary_.emplace(std::move(token), id);
  }
  const auto unk = id(options_.unk_token);
  if (!unk) {
    throw std::runtime_error(where + ": the unknown token '" + visible_line(options_.unk_token) +
                             "' is not in the vocabulary");
  }
  unk_ = *unk;
}

// Returns false if some part is not a token; ids may then have those of the parts before it.
bool WordPieceModel::append_tokens(std::string_view word, std::vector<int32_t>& ids) const {
  std::string candidate;
  for (size_t begin = 0; begin < word.size();) {
    const std::string_view prefix = begin > 0 ? std::string_view(options_.continuing_prefix) : std::string_view();
    if (prefix.size() > longest_token_) return false;
    // No longer part can be a token. The end goes back to a whole character.
    size_t end = std::min(word.size(), begin + longest_token_ - prefix.size());
    while (end < word.size() && (static_cast<unsigned char>(word[end]) & 0xC0) == 0x80) --end;
    for (;; end = utf8_previous(word, end)) {
      if (end <= begin) return false;
      candidate.assign(prefix);
      candidate += word.substr(begin, end - begin);
      const auto found = vocabulary_.find(candidate);
      if (found == vocabulary_.end()) continue;
      ids.push_back(found->second);
      break;
    }
    begin = end;
  }
  return true;
}

void WordPieceModel::encode(std::string_view piece, WordCache& cache, std::vector<int32_t>& ids) const {
  if (const auto* seen = cache.find(piece)) {
    ids.insert(ids.end(), cache.ids() + seen->first, cache.ids() + seen->first + seen->second);
    return;
  }
  size_t num_characters = 0;
  for (size_t i = 0; i < piece.size(); i += utf8_length(piece[i])) ++num_characters;
  const size_t begin = ids.size();
  if (num_characters > options_.max_characters_per_word || !append_tokens(piece, ids)) {
    ids.resize(begin);
    ids.push_back(unk_);
  }
  cache.insert(piece, ids, begin);
}

}  // namespace pare::runtime
