#include "runtime/tokenizer/added_tokens.h"

#include <algorithm>
#include <stdexcept>

#include "runtime/system/visible_text.h"
#include "runtime/text/unicode.h"

namespace pare::runtime {

void AddedVocabulary::add(std::vector<AddedToken> tokens, const TokenModel& model) {
  auto next = static_cast<int64_t>(model.vocabulary().size());
  for (const AddedToken& token : tokens_) next = std::max<int64_t>(next, token.id + int64_t{1});
  for (AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    token.decodes_normalized = token.normalized;
    if (const auto known = places_.find(token.content); known != places_.end()) {
      AddedToken& earlier = tokens_[known->second];
      token.id = earlier.id;
      token.special = token.special || earlier.special;
      token.decodes_normalized = token.decodes_normalized || earlier.decodes_normalized;
      earlier = std::move(token);
      continue;
    }
    const auto in_model = model.id(token.content);
    token.id = in_model ? *in_model : static_cast<int32_t>(next++);
    places_.emplace(token.content, tokens_.size());
    tokens_.push_back(std::move(token));
  }
}

const AddedToken* AddedVocabulary::find(std::string_view content) const {
  const auto found = places_.find(std::string(content));
  return found == places_.end() ? nullptr : &tokens_[found->second];
}

void AddedTokenFinder::add(const AddedToken& token, const std::string& pattern) {
  if (pattern.empty() || pattern.size() > kMaxBytes) {
    throw std::runtime_error("the added token " + std::to_string(token.id) + " has " + std::to_string(pattern.size()) +
                             " bytes; expected 1 to " + std::to_string(kMaxBytes));
  }
  const auto [other, inserted] = tokens_.emplace(pattern, token);
  if (!inserted) {
    throw std::runtime_error("the added tokens " + std::to_string(other->second.id) + " and " +
                             std::to_string(token.id) + " are both '" + visible_line(pattern) + "'");
  }
  starts_[static_cast<unsigned char>(pattern[0])] = true;
  // This is \w of Rust's regex crate, which decides here: the word characters with the two joiners.
  if (token.single_word && !word_) word_.emplace(R"([\w\x{200C}\x{200D}])", "added tokens");
}

AddedTokenFinder::Tokens::const_iterator AddedTokenFinder::longest_at(std::string_view text, size_t at) const {
  // All patterns that start with text[at, at + length) stand side by side in the sorted map. The loop narrows them
  // until none is left.
  auto longest = tokens_.end();
  auto low = tokens_.begin();
  for (size_t length = 1; at + length <= text.size() && length <= kMaxBytes; ++length) {
    const std::string_view prefix = text.substr(at, length);
    if (!std::string_view(low->first).starts_with(prefix)) {
      low = tokens_.lower_bound(prefix);
      if (low == tokens_.end() || !std::string_view(low->first).starts_with(prefix)) break;
    }
    if (low->first.size() == length) longest = low;
  }
  return longest;
}

bool AddedTokenFinder::touches_word(std::string_view text, size_t begin, size_t end) const {
  const auto is_word = [&](size_t at) {
    bool found = false;
    word_->for_each_match(text.substr(at, utf8_length(text[at])), [&](size_t, size_t) { found = true; });
    return found;
  };
  return (begin > 0 && is_word(utf8_previous(text, begin))) || (end < text.size() && is_word(end));
}

void AddedTokenFinder::split(std::string_view text, const std::function<void(size_t, size_t)>& text_found,
                             const std::function<void(int32_t)>& token_found) const {
  size_t covered = 0;
  size_t white_end = 0;  // end of the last examined white space; tokens within it do not look again
  for (size_t at = 0; at < text.size() && !tokens_.empty();) {
    if (!starts_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const auto match = longest_at(text, at);
    if (match == tokens_.end()) {
      ++at;
      continue;
    }
    const AddedToken* token = &match->second;
    size_t begin = at, end = at + match->first.size();
    at = end;  // also if rstrip takes more below: white space may start a token itself
    if (token->is_text) continue;
    if (token->single_word && touches_word(text, begin, end)) continue;
    if (token->lstrip) {
      while (begin > covered) {
        const size_t previous = utf8_previous(text, begin);
        if (!is_white_space(utf8_decode(text, previous))) break;
        begin = previous;
      }
    }
    if (token->rstrip) {
      end = std::max(end, white_end);
      while (end < text.size() && is_white_space(utf8_decode(text, end))) end += utf8_length(text[end]);
      white_end = end;
    }
    if (begin > covered) text_found(covered, begin);
    token_found(token->id);
    covered = end;
  }
  if (covered < text.size()) text_found(covered, text.size());
}

}  // namespace pare::runtime
