#include "runtime/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <queue>
#include <stdexcept>

#include "runtime/system/interrupt.h"
#include "runtime/system/visible_text.h"
#include "runtime/text/unicode.h"

namespace pare::runtime {
namespace {

constexpr char32_t kSpace = 0x2581;  // the mark that stands for a space in SentencePiece's vocabularies
constexpr std::string_view kSpaceUtf8 = "\u2581";
constexpr int32_t kMaxId = 1 << 22;  // the largest vocabularies have 2^18 tokens
constexpr size_t kMaxCachedWordBytes = 128;
constexpr size_t kMaxCachedWords = size_t{1} << 18;
constexpr size_t kShortWordSymbols = 32;  // scanning all pairs is faster than a heap up to here

constexpr bool is_printable(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<char32_t, 256> make_alphabet() {
  std::array<char32_t, 256> alphabet{};
  char32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) alphabet[byte] = is_printable(byte) ? byte : next++;
  return alphabet;
}
constexpr std::array<char32_t, 256> kAlphabet = make_alphabet();

constexpr std::array<int16_t, 0x144> make_reverse_alphabet() {
  std::array<int16_t, 0x144> bytes{};
  bytes.fill(-1);
  for (unsigned byte = 0; byte < 256; ++byte) bytes[kAlphabet[byte]] = static_cast<int16_t>(byte);
  return bytes;
}
constexpr std::array<int16_t, 0x144> kReverseAlphabet = make_reverse_alphabet();

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

size_t pair_slot(uint64_t pair, size_t num_slots) {
  return static_cast<size_t>((pair * 0x9E3779B97F4A7C15u) >> 32) & (num_slots - 1);
}

std::string byte_token(unsigned byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return std::string("<0x") + kDigits[byte >> 4] + kDigits[byte & 15] + ">";
}

}  // namespace

std::optional<std::string> characters_to_bytes(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); i += utf8_length(text[i])) {
    const char32_t character = utf8_decode(text, i);
    if (character >= kReverseAlphabet.size() || kReverseAlphabet[character] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kReverseAlphabet[character]));
  }
  return bytes;
}

std::string bytes_to_characters(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) utf8_append(kAlphabet[static_cast<unsigned char>(byte)], text);
  return text;
}

const std::pair<uint32_t, uint32_t>* WordCache::find(std::string_view word) const {
  const auto found = words_.find(word);
  return found == words_.end() ? nullptr : &found->second;
}

void WordCache::insert(std::string_view word, const std::vector<int32_t>& all_ids, size_t begin) {
  if (word.size() > kMaxCachedWordBytes || words_.size() >= kMaxCachedWords) return;
  words_.emplace(word, std::pair(static_cast<uint32_t>(ids_.size()), static_cast<uint32_t>(all_ids.size() - begin)));
  ids_.insert(ids_.end(), all_ids.begin() + static_cast<std::ptrdiff_t>(begin), all_ids.end());
}

BpeModel::BpeModel(std::vector<std::pair<std::string, int32_t>> vocabulary, const Merges& merges,
                   const BpeOptions& options, const std::string& where)
    : options_(options) {
  vocabulary_.reserve(vocabulary.size());
  for (auto& [token, id] : vocabulary) {
    if (id < 0 || id > kMaxId) {
      throw std::runtime_error(where + ": the token '" + visible_line(token) + "' has the id " + std::to_string(id) +
                               "; expected 0 to " + std::to_string(kMaxId));
    }
    if (!vocabulary_.emplace(std::move(token), id).second) {
      throw std::runtime_error(where + ": the vocabulary has the token of id " + std::to_string(id) + " twice");
    }
  }
  add_symbols(where);
  add_merges(merges, where);
}

void BpeModel::add_symbols(const std::string& where) {
  if (options_.unk_token) {
    unk_ = id(*options_.unk_token);
    if (!unk_) {
      throw std::runtime_error(where + ": the unknown token '" + visible_line(*options_.unk_token) +
                               "' is not in the vocabulary");
    }
  }
  level_bytes_.fill(-1);
  fallback_bytes_.fill(-1);
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (options_.byte_level) {
      std::string token;
      utf8_append(kAlphabet[byte], token);
      level_bytes_[byte] = id(token).value_or(-1);
    }
    if (options_.byte_fallback) fallback_bytes_[byte] = id(byte_token(byte)).value_or(-1);
  }
  for (const auto& [token, token_id] : vocabulary_) {
    if (token.empty()) continue;
    if (!options_.byte_level && token.size() == utf8_length(token[0]))
      characters_.emplace(utf8_decode(token, 0), token_id);
    if (!options_.ignore_merges) continue;
    if (!options_.byte_level) {
      whole_pieces_.emplace(token, token_id);
    } else if (auto bytes = characters_to_bytes(token)) {
      whole_pieces_.emplace(std::move(*bytes), token_id);
    }
  }
  // If a character were left out, its neighbours could merge.
  const bool expresses_all =
      unk_ || std::find(fallback_bytes_.begin(), fallback_bytes_.end(), -1) == fallback_bytes_.end();
  can_cut_ = !options_.byte_level && characters_.contains(kSpace) && expresses_all;
}

void BpeModel::add_merges(const Merges& merges, const std::string& where) {
  merges_.resize(std::bit_ceil(std::max<size_t>(merges.size(), 8) * 2));
  const auto is_stand_in = [&](const std::string& token, int32_t token_id) {  // for characters that it does not spell
    return token_id == unk_ || (token.starts_with("<0x") && std::find(fallback_bytes_.begin(), fallback_bytes_.end(),
                                                                      token_id) != fallback_bytes_.end());
  };
  std::string joined;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    joined.assign(left).append(right);
    const auto left_id = id(left), right_id = id(right), joined_id = id(joined);
    if (!left_id || !right_id || !joined_id) {
      throw std::runtime_error(where + ": merge " + std::to_string(rank) + " ('" + visible_line(left) + "' and '" +
                               visible_line(right) + "') uses a token that is not in the vocabulary");
    }
    if (can_cut_) note_inner_spaces(joined);
    can_cut_ = can_cut_ && !is_stand_in(left, *left_id) && !is_stand_in(right, *right_id);
    const uint64_t pair = pair_key(*left_id, *right_id);
    size_t slot = pair_slot(pair, merges_.size());
    while (merges_[slot].pair != kNoPair && merges_[slot].pair != pair) slot = (slot + 1) & (merges_.size() - 1);
    merges_[slot] = {pair, static_cast<uint32_t>(rank), *joined_id};  // a merge listed twice has its last rank
  }
}

void BpeModel::note_inner_spaces(std::string_view token) {
  for (size_t at = token.find(kSpaceUtf8, 1); at != std::string_view::npos; at = token.find(kSpaceUtf8, at + 1)) {
    before_space_.insert(utf8_decode(token, utf8_previous(token, at)));
  }
}

const BpeModel::Merge* BpeModel::find_merge(int32_t left, int32_t right) const {
  const uint64_t pair = pair_key(left, right);
  for (size_t slot = pair_slot(pair, merges_.size());; slot = (slot + 1) & (merges_.size() - 1)) {
    if (merges_[slot].pair == pair) return &merges_[slot];
    if (merges_[slot].pair == kNoPair) return nullptr;
  }
}

void BpeModel::encode(std::string_view piece, WordCache& cache, std::vector<int32_t>& ids) const {
  if (options_.ignore_merges) {
    const auto whole = whole_pieces_.find(std::string(piece));
    if (whole != whole_pieces_.end()) {
      ids.push_back(whole->second);
      return;
    }
  }
  // SentencePiece's families do not split a text into words at all. Yet no merge reaches across "x▁" if no token made
  // by merging contains it. So the two sides can be encoded apart with the same result (and an unknown character before
  // the known ▁ ends its run there anyway).
  size_t begin = 0;
  if (can_cut_) {
    for (size_t at = piece.find(kSpaceUtf8, 1); at != std::string_view::npos; at = piece.find(kSpaceUtf8, at + 1)) {
      if (before_space_.contains(utf8_decode(piece, utf8_previous(piece, at)))) continue;
      throw_if_interrupted();
      encode_word(piece.substr(begin, at - begin), cache, ids);
      begin = at;
    }
  }
  encode_word(piece.substr(begin), cache, ids);
}

void BpeModel::encode_word(std::string_view word, WordCache& cache, std::vector<int32_t>& ids) const {
  if (const auto* known = cache.find(word)) {
    ids.insert(ids.end(), cache.ids() + known->first, cache.ids() + known->first + known->second);
    return;
  }
  std::vector<int32_t> symbols;
  append_symbols(word, symbols);
  if (symbols.size() <= kShortWordSymbols) {
    merge_short(symbols);
  } else {
    merge_long(symbols);
  }
  const size_t begin = ids.size();
  ids.insert(ids.end(), symbols.begin(), symbols.end());
  cache.insert(word, ids, begin);
}

void BpeModel::append_symbols(std::string_view word, std::vector<int32_t>& symbols) const {
  bool unknown_pending = false;
  const auto flush_unknown = [&] {
    if (unknown_pending) symbols.push_back(*unk_);
    unknown_pending = false;
  };
  const auto add_unknown = [&] {
    if (!unk_) return;
    if (!options_.fuse_unk) flush_unknown();
    unknown_pending = true;
  };
  const auto add_known = [&](int32_t symbol) {
    flush_unknown();
    symbols.push_back(symbol);
  };
  // Adds a character that is not a token, by its bytes. A pending unknown token stays pending, and so comes out after
  // these bytes. The `tokenizers` package does the same with a vocabulary that has only some of the byte tokens.
  const auto add_bytes_or_unknown = [&](std::string_view bytes) {
    const auto token_of = [&](char byte) { return fallback_bytes_[static_cast<unsigned char>(byte)]; };
    if (std::all_of(bytes.begin(), bytes.end(), [&](char byte) { return token_of(byte) >= 0; })) {
      for (const char byte : bytes) symbols.push_back(token_of(byte));
    } else {
      add_unknown();
    }
  };
  if (options_.byte_level) {
    std::string character;  // in the alphabet; its own bytes fall back, not the byte that it stands for
    for (const char c : word) {
      const auto byte = static_cast<unsigned char>(c);
      if (level_bytes_[byte] >= 0) {
        add_known(level_bytes_[byte]);
        continue;
      }
      character.clear();
      utf8_append(kAlphabet[byte], character);
      add_bytes_or_unknown(character);
    }
    flush_unknown();
    return;
  }
  for (size_t at = 0; at < word.size(); at += utf8_length(word[at])) {
    const auto token = characters_.find(utf8_decode(word, at));
    if (token != characters_.end()) {
      add_known(token->second);
    } else {
      add_bytes_or_unknown(word.substr(at, utf8_length(word[at])));
    }
  }
  flush_unknown();
}

void BpeModel::merge_short(std::vector<int32_t>& symbols) const {
  std::array<const Merge*, kShortWordSymbols> merges{};  // for each symbol and the next one
  size_t size = symbols.size();
  for (size_t i = 0; i + 1 < size; ++i) merges[i] = find_merge(symbols[i], symbols[i + 1]);
  while (true) {
    size_t best = size;
    for (size_t i = 0; i + 1 < size; ++i) {
      if (merges[i] != nullptr && (best == size || merges[i]->rank < merges[best]->rank)) best = i;
    }
    if (best == size) break;
    symbols[best] = merges[best]->result;
    --size;
    for (size_t i = best + 1; i < size; ++i) {
      symbols[i] = symbols[i + 1];
      merges[i] = merges[i + 1];
    }
    if (best > 0) merges[best - 1] = find_merge(symbols[best - 1], symbols[best]);
    merges[best] = best + 1 < size ? find_merge(symbols[best], symbols[best + 1]) : nullptr;
  }
  symbols.resize(size);
}

// Does the same with a doubly linked list of symbols and a heap of candidates: O(n log n).
void BpeModel::merge_long(std::vector<int32_t>& symbols) const {
  struct Candidate {
    uint32_t rank;
    uint32_t left;
    uint64_t pair;  // shows that neither side has changed since
    bool operator>(const Candidate& other) const { return std::pair(rank, left) > std::pair(other.rank, other.left); }
  };
  if (symbols.size() > UINT32_MAX / 2) throw std::invalid_argument("a text of more than 2^31 symbols in one piece");
  const auto size = static_cast<uint32_t>(symbols.size());
  std::vector<uint32_t> previous(size), next(size);
  for (uint32_t i = 0; i < size; ++i) {
    previous[i] = i - 1;  // size and beyond: none
    next[i] = i + 1;
  }
  std::vector<bool> removed(size, false);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto push = [&](uint32_t left) {
    if (left >= size || next[left] >= size) return;
    if (const Merge* merge = find_merge(symbols[left], symbols[next[left]])) {
      candidates.push({merge->rank, left, merge->pair});
    }
  };
  for (uint32_t i = 0; i < size; ++i) push(i);
  while (!candidates.empty()) {
    throw_if_interrupted();
    const Candidate top = candidates.top();
    candidates.pop();
    if (removed[top.left] || next[top.left] >= size) continue;
    const uint32_t right = next[top.left];
    if (pair_key(symbols[top.left], symbols[right]) != top.pair) continue;
    symbols[top.left] = find_merge(symbols[top.left], symbols[right])->result;
    removed[right] = true;
    next[top.left] = next[right];
    if (next[right] < size) previous[next[right]] = top.left;
    push(previous[top.left]);
    push(top.left);
  }
  size_t kept = 0;
  for (uint32_t i = 0; i < size; ++i) {
    if (!removed[i]) symbols[kept++] = symbols[i];
  }
  symbols.resize(kept);
}

}  // namespace pare::runtime
