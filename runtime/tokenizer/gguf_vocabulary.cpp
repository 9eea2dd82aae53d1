#include "runtime/tokenizer/gguf_vocabulary.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <stdexcept>
#include <tuple>
#include <unordered_map>

#include "runtime/files/gguf.h"
#include "runtime/system/json_text.h"
#include "runtime/system/visible_text.h"
#include "runtime/text/unicode.h"
#include "runtime/tokenizer/gguf_pre_tokenizers.h"

namespace pare::runtime {
namespace {

using nlohmann::ordered_json;

enum TokenType : int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

const PreTokenizerKind& find_pre_tokenizer(const GgufVocabulary& vocabulary) {
  const std::string_view name = vocabulary.pre.empty() ? "default" : std::string_view(vocabulary.pre);
  std::string names;
  for (const auto& [known, kind] : known_pre_tokenizers()) {
    if (known == name) return kind;
    names += (names.empty() ? "" : ", ") + std::string(known);
  }
  throw std::runtime_error(vocabulary.where + ": pare does not know the pre-tokenizer '" + std::string(name) +
                           "' (tokenizer.ggml.pre); it knows " + names);
}

int64_t type_of(const GgufVocabulary& vocabulary, size_t id) {
  return vocabulary.token_types.empty() ? kNormal : vocabulary.token_types[id];
}

// Returns the token of a special id. Throws if it is out of range.
const std::string& token_at(const GgufVocabulary& vocabulary, int64_t id, const char* name) {
  if (id < 0 || id >= static_cast<int64_t>(vocabulary.tokens.size())) {
    throw std::runtime_error(vocabulary.where + ": the " + name + " token has the id " + std::to_string(id) +
                             ", but there are " + std::to_string(vocabulary.tokens.size()) + " tokens");
  }
  return vocabulary.tokens[static_cast<size_t>(id)];
}

// Checks a list with an entry for each token.
void check_size(const GgufVocabulary& vocabulary, const std::string& name, size_t found, bool may_be_empty) {
  const size_t size = vocabulary.tokens.size();
  if (found == size || (may_be_empty && found == 0)) return;
  throw std::runtime_error(vocabulary.where + ": tokenizer.ggml." + name + " has " + std::to_string(found) +
                           " entries for " + std::to_string(size) + " tokens");
}

void check_lists(const GgufVocabulary& vocabulary) {
  const size_t size = vocabulary.tokens.size();
  const auto check = [&](const char* name, size_t found, bool may_be_empty) {
    check_size(vocabulary, name, found, may_be_empty);
  };
  if (size == 0) throw std::runtime_error(vocabulary.where + ": tokenizer.ggml.tokens is empty");
  check("token_type", vocabulary.token_types.size(), true);
  check("scores", vocabulary.scores.size(), vocabulary.model != "llama");
  for (const std::string& token : vocabulary.tokens) {
    if (find_invalid_utf8(token)) throw std::runtime_error(vocabulary.where + ": a token is not UTF-8");
  }
}

ordered_json make_vocabulary(const GgufVocabulary& vocabulary) {
  // Builds an array of pairs first, because inserting into an ordered object searches it every time.
  ordered_json::object_t entries;
  entries.reserve(vocabulary.tokens.size());
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const auto [other, inserted] = ids.emplace(vocabulary.tokens[id], id);
    if (!inserted) {
      throw std::runtime_error(vocabulary.where + ": the tokens " + std::to_string(other->second) + " and " +
                               std::to_string(id) + " are both '" + visible_line(vocabulary.tokens[id]) + "'");
    }
    entries.std::vector<std::pair<const std::string, ordered_json>>::emplace_back(vocabulary.tokens[id], id);
  }
  return entries;
}

ordered_json make_added_tokens(const GgufVocabulary& vocabulary, bool normalized_spaces) {
  ordered_json tokens = ordered_json::array();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const int64_t type = type_of(vocabulary, id);
    const bool special = type == kControl || (type == kUnknown && vocabulary.model == "llama");
    if ((!special && type != kUserDefined) || vocabulary.tokens[id].empty()) continue;
    // A user-defined run of spaces is spelled with U+2581, as in the vocabulary, and found in the normalized text.
    const bool normalized = normalized_spaces && vocabulary.tokens[id].find("\u2581") != std::string::npos;
    tokens.push_back({{"id", id},
                      {"content", vocabulary.tokens[id]},
                      {"single_word", false},
                      {"lstrip", false},
                      {"rstrip", false},
                      {"normalized", normalized},
                      {"special", special}});
  }
  return tokens;
}

ordered_json make_post_processor(const GgufVocabulary& vocabulary, bool default_bos) {
  const ordered_json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const ordered_json pair_text = {{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
  ordered_json single = ordered_json::array(), pair = ordered_json::array(), special = ordered_json::object();
  const auto piece = [&](int64_t id, const char* name, int type_id) -> ordered_json {
    const std::string& token = token_at(vocabulary, id, name);
    special[token] = {{"id", token}, {"ids", ordered_json::array({id})}, {"tokens", ordered_json::array({token})}};
    return {{"SpecialToken", {{"id", token}, {"type_id", type_id}}}};
  };
  const bool bos = vocabulary.add_bos.value_or(default_bos) && vocabulary.bos_token;
  const bool eos = vocabulary.add_eos.value_or(false) && vocabulary.eos_token;
  if (bos) single.push_back(piece(*vocabulary.bos_token, "bos", 0));
  single.push_back(text);
  if (eos) single.push_back(piece(*vocabulary.eos_token, "eos", 0));
  pair = single;
  if (bos) pair.push_back(piece(*vocabulary.bos_token, "bos", 1));
  pair.push_back(pair_text);
  if (eos) pair.push_back(piece(*vocabulary.eos_token, "eos", 1));
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", special}};
}

ordered_json make_model(const ordered_json& unk_token, bool fuse_unk, bool byte_fallback, bool ignore_merges,
                        ordered_json vocabulary, ordered_json merges) {
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", unk_token},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", fuse_unk},
          {"byte_fallback", byte_fallback},
          {"ignore_merges", ignore_merges},
          {"vocab", std::move(vocabulary)},
          {"merges", std::move(merges)}};
}

ordered_json make_file(ordered_json added_tokens, const ordered_json& normalizer, const ordered_json& pre_tokenizer,
                       const ordered_json& post_processor, const ordered_json& decoder, ordered_json model) {
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", std::move(added_tokens)},
          {"normalizer", normalizer},
          {"pre_tokenizer", pre_tokenizer},
          {"post_processor", post_processor},
          {"decoder", decoder},
          {"model", std::move(model)}};
}

ordered_json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

ordered_json make_merges(const GgufVocabulary& vocabulary) {
  ordered_json merges = ordered_json::array();
  for (const std::string& merge : vocabulary.merges) {
    const size_t space = merge.find(' ');
    if (space == std::string::npos || merge.find(' ', space + 1) != std::string::npos || find_invalid_utf8(merge)) {
      throw std::runtime_error(vocabulary.where + ": merge " + std::to_string(merges.size()) + " is not 'left right'");
    }
    merges.push_back(ordered_json::array({merge.substr(0, space), merge.substr(space + 1)}));
  }
  return merges;
}

ordered_json make_byte_level_file(const GgufVocabulary& vocabulary, const PreTokenizerKind& kind) {
  ordered_json stages = ordered_json::array();
  const auto isolated = [&](std::string_view pattern) {
    stages.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  };
  if (kind.falcon) stages.push_back({{"type", "Punctuation"}, {"behavior", "Contiguous"}});
  for (const std::string_view pattern : kind.first) {
    if (!pattern.empty()) isolated(pattern);
  }
  if (kind.single_digits) stages.push_back({{"type", "Digits"}, {"individual_digits", true}});
  if (!kind.pattern.empty()) isolated(kind.pattern);
  ordered_json last = byte_level(kind.pattern.empty());
  if (vocabulary.add_space_prefix.value_or(false)) last["add_prefix_space"] = true;
  stages.push_back(last);
  if (kind.falcon) {
    stages.push_back({{"type", "Digits"}, {"individual_digits", false}});
    isolated("[0-9][0-9][0-9]");
  }
  const ordered_json normalizer = kind.nfc ? ordered_json{{"type", "NFC"}} : ordered_json();
  return make_file(
      make_added_tokens(vocabulary, false), normalizer, {{"type", "Sequence"}, {"pretokenizers", stages}},
      make_post_processor(vocabulary, kind.adds_bos), byte_level(true),
      make_model(nullptr, false, false, kind.ignore_merges, make_vocabulary(vocabulary), make_merges(vocabulary)));
}

// Finds the tokens that a token begins with. `longest[id]` is the longest one that is shorter than the token itself, or
// kNone; following it from token to token gives all of them, from long to short. Sorted tokens have their prefixes
// before them, and a token that is not a prefix of the next one is a prefix of none after it. So this is O(n log n) in
// the vocabulary's bytes. Looking up each piece of each token would be quadratic in a token's length.
constexpr size_t kNone = SIZE_MAX;
std::vector<size_t> longest_prefix_tokens(std::span<const std::string> tokens) {
  std::vector<size_t> sorted(tokens.size()), longest(tokens.size(), kNone), open;
  std::iota(sorted.begin(), sorted.end(), size_t{0});
  std::sort(sorted.begin(), sorted.end(),
            [&](size_t a, size_t b) { return std::tie(tokens[a], a) < std::tie(tokens[b], b); });
  for (const size_t id : sorted) {
    if (tokens[id].empty()) continue;
    while (!open.empty() && !tokens[id].starts_with(tokens[open.back()])) open.pop_back();
    if (!open.empty()) longest[id] = open.back();
    open.push_back(id);
  }
  return longest;
}

// Returns every way to put a token together from two others, best score first. Equal scores are ordered by the token's
// id, then by the left part's, then by the right part's. This is transformers' generate_merges
// (convert_slow_tokenizer.py) as it was when Mistral's file was made. (Later versions order the parts of one token by
// length; the ids are the same.) No token may stand twice.
ordered_json merges_from_scores(const GgufVocabulary& vocabulary) {
  constexpr size_t kMaxMergeBytes = size_t{256} << 20;  // ten times those of 2^18 tokens
  struct Merge {
    double score;
    size_t left, right;
  };
  const std::vector<std::string>& tokens = vocabulary.tokens;
  std::vector<std::string> reversed(tokens);
  for (std::string& token : reversed) std::reverse(token.begin(), token.end());
  const std::vector<size_t> prefix = longest_prefix_tokens(tokens), suffix = longest_prefix_tokens(reversed);
  std::vector<Merge> merges;
  std::vector<size_t> suffixes;  // one token's, from long to short
  size_t num_bytes = 0;
  for (size_t id = 0; id < tokens.size(); ++id) {
    const size_t size = tokens[id].size(), first = merges.size();
    suffixes.clear();
    for (size_t right = suffix[id]; right != kNone; right = suffix[right]) suffixes.push_back(right);
    for (size_t left = prefix[id]; left != kNone; left = prefix[left]) {
      const size_t rest = size - tokens[left].size();
      while (!suffixes.empty() && tokens[suffixes.back()].size() < rest) suffixes.pop_back();
      if (suffixes.empty()) break;
      if (tokens[suffixes.back()].size() != rest) continue;
      merges.push_back({vocabulary.scores[id], left, suffixes.back()});
      num_bytes += size;
    }
    if (num_bytes > kMaxMergeBytes) {
      throw std::runtime_error(vocabulary.where + ": its tokens can be put together in ways of more than " +
                               std::to_string(kMaxMergeBytes) + " bytes (up to token " + std::to_string(id) +
                               "): expected the vocabulary of a language model");
    }
    std::sort(merges.begin() + static_cast<std::ptrdiff_t>(first), merges.end(),
              [](const Merge& a, const Merge& b) { return std::pair(a.left, a.right) < std::pair(b.left, b.right); });
  }
  std::stable_sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) { return a.score > b.score; });
  ordered_json out = ordered_json::array();
  for (const Merge& merge : merges) out.push_back(ordered_json::array({tokens[merge.left], tokens[merge.right]}));
  return out;
}

// User-defined tokens with their spaces as U+2581, as the other tokens spell them: llama.cpp's converter writes spaces.
void mark_spaces_of_tokens(GgufVocabulary& vocabulary, bool prefix) {
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    std::string& token = vocabulary.tokens[id];
    if (type_of(vocabulary, id) != kUserDefined || token.find(' ') == std::string::npos) continue;
    if (prefix) {
      throw std::runtime_error(vocabulary.where + ": the user-defined token " + std::to_string(id) +
                               " has a space, which pare does not support together with add_space_prefix");
    }
    token = with_marks_for_spaces(token);
  }
}

// BPE over the text's own characters, whose spaces are U+2581; characters that are no token become tokens of bytes.
// `prefix`: a text begins with a space of its own.
ordered_json make_raw_file(const GgufVocabulary& vocabulary, bool prefix, bool default_bos, ordered_json entries,
                           ordered_json merges) {
  const ordered_json to_mark = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
  const ordered_json from_mark = {{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}};
  ordered_json normalizer = to_mark;
  ordered_json decoders = {from_mark, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  if (prefix) {
    normalizer = {{"type", "Sequence"}, {"normalizers", {{{"type", "Prepend"}, {"prepend", "\u2581"}}, to_mark}}};
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  ordered_json unk_token;
  if (vocabulary.unknown_token) unk_token = token_at(vocabulary, *vocabulary.unknown_token, "unknown");
  return make_file(make_added_tokens(vocabulary, true), normalizer, nullptr,
                   make_post_processor(vocabulary, default_bos), {{"type", "Sequence"}, {"decoders", decoders}},
                   make_model(unk_token, true, true, false, std::move(entries), std::move(merges)));
}

ordered_json make_sentencepiece_file(GgufVocabulary vocabulary) {
  const bool prefix = vocabulary.add_space_prefix.value_or(true);
  mark_spaces_of_tokens(vocabulary, prefix);
  for (const double score : vocabulary.scores) {
    if (!(score == score)) throw std::runtime_error(vocabulary.where + ": tokenizer.ggml.scores has a NaN");
  }
  ordered_json entries = make_vocabulary(vocabulary);  // first, since it refuses tokens that stand twice
  return make_raw_file(vocabulary, prefix, true, std::move(entries), merges_from_scores(vocabulary));
}

// Files of the model "gpt2", and of "gemma4", which names the pre-tokenizer of the same name.
ordered_json make_file_of_merges(GgufVocabulary vocabulary) {
  if (vocabulary.model == "gemma4") vocabulary.pre = "gemma4";
  const PreTokenizerKind& kind = find_pre_tokenizer(vocabulary);
  if (!kind.raw) return make_byte_level_file(vocabulary, kind);
  const bool prefix = vocabulary.add_space_prefix.value_or(false);
  mark_spaces_of_tokens(vocabulary, prefix);
  return make_raw_file(vocabulary, prefix, kind.adds_bos, make_vocabulary(vocabulary), make_merges(vocabulary));
}

}  // namespace

GgufVocabulary read_gguf_vocabulary(const GgufFile& file) {
  const auto key = [](const char* name) { return std::string("tokenizer.ggml.") + name; };
  GgufVocabulary vocabulary;
  vocabulary.where = file.where();
  vocabulary.model = file.text(key("model"));
  vocabulary.tokens = file.texts(key("tokens"));
  if (file.has(key("pre"))) vocabulary.pre = file.text(key("pre"));
  // Checked before the lists are widened, because a file may hold many more entries.
  for (const char* name : {"token_type", "scores"}) {
    if (file.has(key(name))) check_size(vocabulary, name, static_cast<size_t>(file.count(key(name))), true);
  }
  if (file.has(key("token_type"))) vocabulary.token_types = file.integers(key("token_type"));
  if (file.has(key("merges"))) vocabulary.merges = file.texts(key("merges"));
  if (file.has(key("scores"))) vocabulary.scores = file.numbers(key("scores"));
  const auto read_id = [&](const char* name, std::optional<int64_t>& id) {
    if (file.has(key(name))) id = file.integer(key(name));
  };
  read_id("bos_token_id", vocabulary.bos_token);
  read_id("eos_token_id", vocabulary.eos_token);
  read_id("unknown_token_id", vocabulary.unknown_token);
  const auto read_flag = [&](const char* name, std::optional<bool>& flag) {
    if (file.has(key(name))) flag = file.boolean(key(name));
  };
  read_flag("add_bos_token", vocabulary.add_bos);
  read_flag("add_eos_token", vocabulary.add_eos);
  read_flag("add_space_prefix", vocabulary.add_space_prefix);
  return vocabulary;
}

std::vector<std::string> gguf_pre_tokenizers() {
  std::vector<std::string> names;
  for (const auto& [name, kind] : known_pre_tokenizers()) {
    // llama.cpp has other rules under the first name.
    if (name != "default" && !kind.raw) names.emplace_back(name);
  }
  return names;
}

std::vector<std::pair<std::string, std::string>> gguf_special_tokens(const GgufFile& file) {
  const std::vector<std::string> tokens = file.texts("tokenizer.ggml.tokens");
  constexpr std::pair<const char*, const char*> kRoles[] = {
      {"bos", "bos_token"}, {"eos", "eos_token"}, {"unknown", "unk_token"}, {"padding", "pad_token"}};
  std::vector<std::pair<std::string, std::string>> special_tokens;
  for (const auto& [which, role] : kRoles) {
    const std::string key = std::string("tokenizer.ggml.") + which + "_token_id";
    const int64_t id = file.has(key) ? file.integer(key) : -1;
    if (id >= 0 && id < static_cast<int64_t>(tokens.size())) {
      special_tokens.emplace_back(role, tokens[static_cast<size_t>(id)]);
    }
  }
  return special_tokens;
}

std::vector<std::pair<std::string, std::string>> gguf_chat_templates(const GgufFile& file) {
  const std::string first = "tokenizer.chat_template";
  std::vector<std::pair<std::string, std::string>> templates;
  for (const auto& [key, value] : file.metadata()) {
    if (key != first && !key.starts_with(first + ".")) continue;
    std::string text = file.text(key);
    if (const auto offset = find_invalid_utf8(text)) {
      throw std::runtime_error(file.where() + ": '" + key + "': not UTF-8: byte " + std::to_string(*offset) + " of " +
                               std::to_string(text.size()) + " does not start a valid character; the file is damaged");
    }
    templates.emplace_back(key == first ? "default" : key.substr(first.size() + 1), std::move(text));
  }
  return templates;
}

std::string with_marks_for_spaces(std::string_view token) {
  std::string marked;
  marked.reserve(token.size());
  for (const char c : token) {
    if (c == ' ') {
      marked += "\u2581";
    } else {
      marked += c;
    }
  }
  return marked;
}

std::string make_tokenizer_json(const GgufVocabulary& vocabulary) {
  if (vocabulary.model != "gpt2" && vocabulary.model != "gemma4" && vocabulary.model != "llama") {
    throw std::runtime_error(vocabulary.where + ": pare does not know the tokenizer model '" + vocabulary.model +
                             "' (tokenizer.ggml.model); it knows gpt2 (byte-level BPE), gemma4 (BPE of characters) " +
                             "and llama (SentencePiece BPE)");
  }
  check_lists(vocabulary);
  return json_text(vocabulary.model == "llama" ? make_sentencepiece_file(vocabulary)
                                               : make_file_of_merges(vocabulary)) +
         "\n";
}

}  // namespace pare::runtime
