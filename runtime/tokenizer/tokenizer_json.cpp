#include "runtime/tokenizer/tokenizer_json.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/system/json_text.h"
#include "runtime/system/visible_text.h"
#include "runtime/text/json_node.h"
#include "runtime/text/unicode.h"

namespace pare::runtime {
namespace {

using nlohmann::json;

// Source: pre_tokenizers/byte_level.rs of the `tokenizers` package; first in GPT-2's encoder.py.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr int kMaxNesting = 8;               // for Sequences
constexpr size_t kMaxTemplateIds = 1 << 10;  // before a text, and after it
// Published files have 100. Finding the longest tokens of a word takes the square of its length.
constexpr int64_t kMaxWordPieceCharacters = 1000;

void check_nesting(const JsonNode& node, int depth) {
  if (depth > kMaxNesting) {
    throw std::runtime_error(node.where() + ": more than " + std::to_string(kMaxNesting) +
                             " Sequences inside one another");
  }
}

// Parses {"String": s} or {"Regex": r}.
std::variant<std::string, Regex> pattern_of_name(const JsonNode& node) {
  if (node.has("Regex")) return Regex(node.text("Regex"), node.where());
  if (!node.has("String")) node.fail("{\"String\": ...} or {\"Regex\": ...}");
  if (node.text("String").empty()) node.fail("a pattern that is not empty");
  return node.text("String");
}

Replace parse_replace(const JsonNode& node) {
  return {pattern_of_name(node.at("pattern")), node.text("content")};
}

std::string parse_character(const JsonNode& node) {
  if (node.text().empty() || node.text().size() != utf8_length(node.text()[0])) node.fail("one character");
  return node.text();
}

void parse_normalizer(const JsonNode& node, int depth, Normalizer& normalizer) {
  check_nesting(node, depth);
  if (node.is_null()) return;
  const std::string type = node.text("type");
  if (type == "Sequence") {
    for (const JsonNode& item : node.at("normalizers").items()) parse_normalizer(item, depth + 1, normalizer);
  } else if (type == "NFC") {
    normalizer.add(NormalizationForm::nfc);
  } else if (type == "NFD") {
    normalizer.add(NormalizationForm::nfd);
  } else if (type == "NFKC") {
    normalizer.add(NormalizationForm::nfkc);
  } else if (type == "NFKD") {
    normalizer.add(NormalizationForm::nfkd);
  } else if (type == "Lowercase") {
    normalizer.add(Lowercase{});
  } else if (type == "StripAccents") {
    normalizer.add(StripAccents{});
  } else if (type == "Strip") {
    normalizer.add(StripSpaces{node.flag("strip_left", true), node.flag("strip_right", true)});
  } else if (type == "Precompiled") {
    const std::string key = "precompiled_charsmap";
    normalizer.add(Charsmap(node.at(key).text(), node.where() + "." + key));
  } else if (type == "Prepend") {
    normalizer.add(Prepend{node.text("prepend")});
  } else if (type == "Replace") {
    normalizer.add(parse_replace(node));
  } else if (type == "BertNormalizer") {
    BertNormalize bert;
    bert.clean_text = node.flag("clean_text", true);
    bert.space_ideographs = node.flag("handle_chinese_chars", true);
    bert.lowercase = node.flag("lowercase", true);
    bert.strip_accents = node.flag("strip_accents", bert.lowercase);  // null: as lowercase
    normalizer.add(bert);
  } else {
    node.refuse("the normalizer '" + type + "'",
                "BertNormalizer, Lowercase, NFC, NFD, NFKC, NFKD, Precompiled, Prepend, Replace, Sequence, Strip and "
                "StripAccents");
  }
}

SplitBehavior parse_behavior(const JsonNode& node) {
  const std::string& name = node.text();
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  node.refuse("the behavior '" + name + "'", "Removed, Isolated, MergedWithPrevious, MergedWithNext and Contiguous");
}

Metaspace parse_metaspace(const JsonNode& node) {
  Metaspace metaspace;
  metaspace.replacement = parse_character(node.at("replacement"));
  metaspace.split = node.flag("split", true);
  const std::string scheme = node.has("prepend_scheme") ? node.text("prepend_scheme") : "always";
  if (scheme == "first") {
    metaspace.prepend = Metaspace::Prepend::first;
  } else if (scheme == "never") {
    metaspace.prepend = Metaspace::Prepend::never;
  } else if (scheme != "always") {
    node.refuse("the prepend_scheme '" + scheme + "'", "always, first and never");
  }
  // The key of older files. The package refuses a contradiction.
  if (!node.flag("add_prefix_space", true)) {
    if (node.has("prepend_scheme") && scheme != "never") node.fail("add_prefix_space and prepend_scheme that agree");
    metaspace.prepend = Metaspace::Prepend::never;
  }
  return metaspace;
}

// Returns true if a stage is ByteLevel. Its mapping to GPT-2's alphabet is the model's work; only what splits after it
// sees the characters.
bool parse_pre_tokenizer(const JsonNode& node, int depth, PreTokenizer& pre_tokenizer) {
  check_nesting(node, depth);
  if (node.is_null()) return false;
  const std::string type = node.text("type");
  if (type == "Sequence") {
    bool byte_level = false, as_characters = false;
    for (const JsonNode& item : node.at("pretokenizers").items()) {
      if (byte_level && !as_characters) {
        pre_tokenizer.add(BytesToCharacters{});
        as_characters = true;
      }
      const bool is_byte_level = parse_pre_tokenizer(item, depth + 1, pre_tokenizer);
      if (is_byte_level && byte_level) item.refuse("a second ByteLevel", "one");
      byte_level = byte_level || is_byte_level;
    }
    if (as_characters) pre_tokenizer.add(CharactersToBytes{});
    return byte_level;
  }
  if (type == "ByteLevel") {
    if (node.flag("add_prefix_space", true)) pre_tokenizer.add(PrefixSpace{});
    if (node.flag("use_regex", true))
      pre_tokenizer.add(Split{Regex(kGpt2Pattern, node.where()), SplitBehavior::isolated, false});
    return true;
  }
  if (type == "Split") {
    pre_tokenizer.add(
        Split{pattern_of_name(node.at("pattern")), parse_behavior(node.at("behavior")), node.flag("invert", false)});
  } else if (type == "Digits") {
    const bool single = node.flag("individual_digits", false);
    pre_tokenizer.add(
        Split{Regex(R"(\p{N})", node.where()), single ? SplitBehavior::isolated : SplitBehavior::contiguous, false});
  } else if (type == "Metaspace") {
    pre_tokenizer.add(parse_metaspace(node));
  } else if (type == "BertPreTokenizer") {
    pre_tokenizer.add(BertSplit{});
  } else if (type == "Punctuation") {
    pre_tokenizer.add(
        PunctuationSplit{node.has("behavior") ? parse_behavior(node.at("behavior")) : SplitBehavior::isolated});
  } else if (type == "WhitespaceSplit") {
    pre_tokenizer.add(Split{Regex(R"(\s)", node.where()), SplitBehavior::removed, false});
  } else if (type == "Whitespace") {
    // This is \w of Rust's regex crate: the word characters with the two joiners.
    pre_tokenizer.add(
        Split{Regex(R"([\w\x{200C}\x{200D}]+|[^\w\s\x{200C}\x{200D}]+)", node.where()), SplitBehavior::removed, true});
  } else if (type == "CharDelimiterSplit") {
    pre_tokenizer.add(Split{parse_character(node.at("delimiter")), SplitBehavior::removed, false});
  } else {
    node.refuse("the pre-tokenizer '" + type + "'",
                "BertPreTokenizer, ByteLevel, CharDelimiterSplit, Digits, Metaspace, Punctuation, Sequence, Split, "
                "Whitespace and WhitespaceSplit");
  }
  return false;
}

void parse_decoder(const JsonNode& node, int depth, Decoder& decoder) {
  check_nesting(node, depth);
  if (node.is_null()) return;
  const std::string type = node.text("type");
  if (type == "Sequence") {
    for (const JsonNode& item : node.at("decoders").items()) parse_decoder(item, depth + 1, decoder);
  } else if (type == "ByteLevel") {
    decoder.add(ByteLevelDecoder{});
  } else if (type == "ByteFallback") {
    decoder.add(ByteFallbackDecoder{});
  } else if (type == "Fuse") {
    decoder.add(FuseDecoder{});
  } else if (type == "Strip") {
    const auto count = [&](const char* key) {
      const int64_t value = node.at(key).integer();
      if (value < 0) node.at(key).fail("a count");
      return static_cast<size_t>(value);
    };
    decoder.add(StripDecoder{utf8_decode(parse_character(node.at("content")), 0), count("start"), count("stop")});
  } else if (type == "Replace") {
    decoder.add(parse_replace(node));
  } else if (type == "Metaspace") {
    decoder.add(parse_metaspace(node));
  } else if (type == "WordPiece") {
    decoder.add(WordPieceDecoder{node.text("prefix"), node.flag("cleanup", true)});
  } else {
    node.refuse("the decoder '" + type + "'",
                "ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Sequence, Strip and WordPiece");
  }
}

// Parses a TemplateProcessing's `single`: special tokens before and after the text, $A.
PostProcessor parse_template(const JsonNode& node) {
  PostProcessor result;
  bool text_seen = false;
  for (const JsonNode& piece : node.at("single").items()) {
    if (piece.has("Sequence")) {
      if (text_seen || piece.at("Sequence").text("id") != "A") piece.fail("the text 'A', once");
      text_seen = true;
      continue;
    }
    const std::string id = piece.at("SpecialToken").text("id");
    auto& ids = text_seen ? result.after : result.before;
    for (const JsonNode& item : node.at("special_tokens").at(id).at("ids").items()) {
      // A few kilobytes of names can stand for millions of ids.
      if (ids.size() == kMaxTemplateIds) {
        node.at("single").fail("at most " + std::to_string(kMaxTemplateIds) + " ids around a text");
      }
      ids.push_back(static_cast<int32_t>(item.integer()));
    }
  }
  if (!text_seen) node.at("single").fail("a template with the text 'A'");
  return result;
}

// Parses ["</s>", 2].
int32_t id_of_pair(const JsonNode& node) {
  const std::vector<JsonNode> items = node.items();
  if (items.size() != 2) node.fail("a token and its id");
  items[0].text();
  return static_cast<int32_t>(items[1].integer());
}

void parse_post_processor(const JsonNode& node, int depth, PostProcessor& processor) {
  check_nesting(node, depth);
  if (node.is_null()) return;
  const std::string type = node.text("type");
  if (type == "Sequence") {
    for (const JsonNode& item : node.at("processors").items()) parse_post_processor(item, depth + 1, processor);
  } else if (type == "TemplateProcessing") {
    if (!processor.before.empty() || !processor.after.empty()) node.fail("one TemplateProcessing only");
    processor = parse_template(node);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    if (!processor.before.empty() || !processor.after.empty()) node.fail("one post-processor with tokens only");
    processor = {{id_of_pair(node.at("cls"))}, {id_of_pair(node.at("sep"))}};
  } else if (type != "ByteLevel") {  // concerns only offsets in the text
    node.refuse("the post-processor '" + type + "'",
                "BertProcessing, ByteLevel, RobertaProcessing, Sequence and TemplateProcessing");
  }
}

// Merges are pairs, or in older files strings "left right".
BpeModel::Merges parse_merges(const JsonNode& node) {
  BpeModel::Merges merges;
  if (!node.value().is_array()) node.fail("an array");
  merges.reserve(node.value().size());
  for (const json& item : node.value()) {
    if (item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_string()) {
      merges.emplace_back(item[0].get_ref<const std::string&>(), item[1].get_ref<const std::string&>());
      continue;
    }
    const JsonNode merge(item, node.where() + "[" + std::to_string(merges.size()) + "]");
    if (!item.is_string()) merge.fail("a pair of tokens");
    const std::string& text = merge.text();
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) merge.fail("'left right'");
    merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  return merges;
}

std::vector<std::pair<std::string, int32_t>> parse_vocabulary(const JsonNode& vocabulary) {
  if (!vocabulary.value().is_object()) vocabulary.fail("an object");
  std::vector<std::pair<std::string, int32_t>> tokens;
  tokens.reserve(vocabulary.value().size());
  for (const auto& [token, id] : vocabulary.value().items()) {
    if (!id.is_number_integer()) JsonNode(id, vocabulary.where() + "." + token).fail("an integer");
    tokens.emplace_back(token, static_cast<int32_t>(JsonNode(id, vocabulary.where() + "." + token).integer()));
  }
  return tokens;
}

std::unique_ptr<TokenModel> parse_word_piece(const JsonNode& node) {
  WordPieceOptions options;
  options.unk_token = node.text("unk_token");
  options.continuing_prefix = node.text("continuing_subword_prefix");
  const int64_t most = node.at("max_input_chars_per_word").integer();
  if (most < 1 || most > kMaxWordPieceCharacters) {
    node.at("max_input_chars_per_word").fail("a number from 1 to " + std::to_string(kMaxWordPieceCharacters));
  }
  options.max_characters_per_word = static_cast<size_t>(most);
  return std::make_unique<WordPieceModel>(parse_vocabulary(node.at("vocab")), std::move(options), node.where());
}

std::unique_ptr<TokenModel> parse_unigram(const JsonNode& node) {
  UnigramOptions options;
  if (node.has("unk_id")) options.unk_id = static_cast<int32_t>(node.at("unk_id").integer());
  options.byte_fallback = node.flag("byte_fallback", false);
  std::vector<std::pair<std::string, double>> pieces;
  const JsonNode vocabulary = node.at("vocab");
  if (!vocabulary.value().is_array()) vocabulary.fail("an array");
  pieces.reserve(vocabulary.value().size());
  for (const json& item : vocabulary.value()) {
    if (!item.is_array() || item.size() != 2 || !item[0].is_string() || !item[1].is_number()) {
      JsonNode(item, vocabulary.where() + "[" + std::to_string(pieces.size()) + "]").fail("a piece and its score");
    }
    pieces.emplace_back(item[0].get_ref<const std::string&>(), item[1].get<double>());
  }
  return std::make_unique<UnigramModel>(std::move(pieces), options, node.where());
}

std::unique_ptr<TokenModel> parse_model(const JsonNode& node, bool byte_level) {
  // Files of the first versions have no type. Only BPE has a vocabulary and merges together.
  const std::string type = node.has("type") ? node.text("type") : node.has("merges") ? "BPE" : "without a type";
  if (type == "WordPiece") return parse_word_piece(node);
  if (type == "Unigram" && byte_level) node.fail("no ByteLevel before a Unigram");
  if (type == "Unigram") return parse_unigram(node);
  if (type != "BPE") node.refuse("the model '" + type + "'", "BPE, Unigram and WordPiece");
  if (node.has("dropout") && node.at("dropout").value() != 0.0)
    node.at("dropout").fail("null: dropout is for training");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (node.has(key) && !node.text(key).empty()) node.at(key).fail("null or an empty string, all that pare supports");
  }
  BpeOptions options;
  options.byte_level = byte_level;
  options.byte_fallback = node.flag("byte_fallback", false);
  options.ignore_merges = node.flag("ignore_merges", false);
  options.fuse_unk = node.flag("fuse_unk", false);
  if (node.has("unk_token")) options.unk_token = node.text("unk_token");

  return std::make_unique<BpeModel>(parse_vocabulary(node.at("vocab")), parse_merges(node.at("merges")), options,
                                    node.where());
}

AddedVocabulary parse_added_tokens(const JsonNode& node, const TokenModel& model) {
  std::vector<AddedToken> tokens;
  if (node.is_null()) return {};
  for (const JsonNode& item : node.items()) {
    AddedToken token;
    token.content = item.text("content");
    item.at("id").integer();  // must be one, but the order decides: AddedVocabulary::add
    token.special = item.flag("special", false);
    token.single_word = item.flag("single_word", false);
    token.lstrip = item.flag("lstrip", false);
    token.rstrip = item.flag("rstrip", false);
    token.normalized = item.flag("normalized", !token.special);
    tokens.push_back(std::move(token));
  }
  AddedVocabulary added;
  added.add(std::move(tokens), model);
  return added;
}

JsonNode optional_part(const JsonNode& file, const char* key) {
  static const json kNull;
  return file.has(key) ? file.at(key) : JsonNode(kNull, file.where() + "." + key);
}

}  // namespace

TokenizerParts parse_tokenizer_json(const std::string& text, const std::string& where) {
  return parse_tokenizer_document(parse_json(text, where, Nul::allowed), where);
}

TokenizerParts parse_tokenizer_document(const json& document, const std::string& where) {
  const JsonNode file(document, where);
  if (file.has("version") && file.at("version").value() != "1.0") file.at("version").fail("\"1.0\"");
  TokenizerParts parts;
  parse_normalizer(optional_part(file, "normalizer"), 0, parts.normalizer);
  const bool byte_level = parse_pre_tokenizer(optional_part(file, "pre_tokenizer"), 0, parts.pre_tokenizer);
  parts.model = parse_model(file.at("model"), byte_level);
  parts.added = parse_added_tokens(optional_part(file, "added_tokens"), *parts.model);
  parse_post_processor(optional_part(file, "post_processor"), 0, parts.post_processor);
  parse_decoder(optional_part(file, "decoder"), 0, parts.decoder);
  return parts;
}

}  // namespace pare::runtime
