#include "runtime/tokenizer/tokenizer_json.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/system/json_text.h"
#include "runtime/system/visible_text.h"
#include "runtime/tokenizer/unicode.h"

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

// A value of the file with the path that leads to it, for messages.
class Node {
 public:
  Node(const json& value, std::string where) : value_(&value), where_(std::move(where)) {}

  const json& value() const { return *value_; }
  const std::string& where() const { return where_; }
  bool is_null() const { return value_->is_null(); }

  [[noreturn]] void fail(const std::string& expected) const {
    std::string found = json_text(*value_);
    if (found.size() > 80) found = found.substr(0, 77) + "...";
    throw std::runtime_error(visible_line(where_) + ": expected " + expected + ", found " +
                             utf8_with_replacements(found));
  }
  [[noreturn]] void refuse(const std::string& what, const std::string& known) const {
    throw std::runtime_error(where_ + ": pare does not know " + visible_line(what) + "; it knows " + known);
  }

  bool has(const char* key) const { return value_->is_object() && value_->contains(key) && !(*value_)[key].is_null(); }
  Node at(const std::string& key) const {
    if (!value_->is_object()) fail("an object");
    const auto found = value_->find(key);
    if (found == value_->end()) fail("an object with the key '" + visible_line(key) + "'");
    return {*found, where_ + "." + key};
  }
  std::vector<Node> items() const {
    if (!value_->is_array()) fail("an array");
    std::vector<Node> nodes;
    for (size_t i = 0; i < value_->size(); ++i)
      nodes.emplace_back((*value_)[i], where_ + "[" + std::to_string(i) + "]");
    return nodes;
  }

  const std::string& text() const {
    if (!value_->is_string()) fail("a string");
    return value_->get_ref<const std::string&>();
  }
  std::string text(const char* key) const { return at(key).text(); }
  bool flag(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    const Node node = at(key);
    if (!node.value().is_boolean()) node.fail("true or false");
    return node.value().get<bool>();
  }
  int64_t integer() const {
    if (!value_->is_number_integer() || (value_->is_number_unsigned() && value_->get<uint64_t>() > INT32_MAX)) {
      fail("an integer below 2^31");
    }
    return value_->get<int64_t>();
  }

 private:
  const json* value_;
  std::string where_;
};

void check_nesting(const Node& node, int depth) {
  if (depth > kMaxNesting) {
    throw std::runtime_error(node.where() + ": more than " + std::to_string(kMaxNesting) +
                             " Sequences inside one another");
  }
}

// Parses {"String": s} or {"Regex": r}.
std::variant<std::string, Regex> pattern_of_name(const Node& node) {
  if (node.has("Regex")) return Regex(node.text("Regex"), node.where());
  if (!node.has("String")) node.fail("{\"String\": ...} or {\"Regex\": ...}");
  if (node.text("String").empty()) node.fail("a pattern that is not empty");
  return node.text("String");
}

Replace parse_replace(const Node& node) {
  return {pattern_of_name(node.at("pattern")), node.text("content")};
}

std::string parse_character(const Node& node) {
  if (node.text().empty() || node.text().size() != utf8_length(node.text()[0])) node.fail("one character");
  return node.text();
}

void parse_normalizer(const Node& node, int depth, Normalizer& normalizer) {
  check_nesting(node, depth);
  if (node.is_null()) return;
  const std::string type = node.text("type");
  if (type == "Sequence") {
    for (const Node& item : node.at("normalizers").items()) parse_normalizer(item, depth + 1, normalizer);
  } else if (type == "NFC") {
    normalizer.add(NormalizeNfc{});
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
    node.refuse("the normalizer '" + type + "'", "BertNormalizer, NFC, Prepend, Replace and Sequence");
  }
}

SplitBehavior parse_behavior(const Node& node) {
  const std::string& name = node.text();
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  node.refuse("the behavior '" + name + "'", "Removed, Isolated, MergedWithPrevious, MergedWithNext and Contiguous");
}

Metaspace parse_metaspace(const Node& node) {
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

// Returns true if the last stage is ByteLevel, whose mapping to GPT-2's alphabet the model does.
bool parse_pre_tokenizer(const Node& node, int depth, PreTokenizer& pre_tokenizer) {
  check_nesting(node, depth);
  if (node.is_null()) return false;
  const std::string type = node.text("type");
  if (type == "Sequence") {
    bool byte_level = false;
    for (const Node& item : node.at("pretokenizers").items()) {
      if (byte_level) item.refuse("a pre-tokenizer after ByteLevel", "ByteLevel as the last one");
      byte_level = parse_pre_tokenizer(item, depth + 1, pre_tokenizer);
    }
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
  } else {
    node.refuse("the pre-tokenizer '" + type + "'",
                "BertPreTokenizer, ByteLevel, Digits, Metaspace, Sequence and Split");
  }
  return false;
}

void parse_decoder(const Node& node, int depth, Decoder& decoder) {
  check_nesting(node, depth);
  if (node.is_null()) return;
  const std::string type = node.text("type");
  if (type == "Sequence") {
    for (const Node& item : node.at("decoders").items()) parse_decoder(item, depth + 1, decoder);
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
PostProcessor parse_template(const Node& node) {
  PostProcessor result;
  bool text_seen = false;
  for (const Node& piece : node.at("single").items()) {
    if (piece.has("Sequence")) {
      if (text_seen || piece.at("Sequence").text("id") != "A") piece.fail("the text 'A', once");
      text_seen = true;
      continue;
    }
    const std::string id = piece.at("SpecialToken").text("id");
    auto& ids = text_seen ? result.after : result.before;
    for (const Node& item : node.at("special_tokens").at(id).at("ids").items()) {
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

void parse_post_processor(const Node& node, int depth, PostProcessor& processor) {
  check_nesting(node, depth);
  if (node.is_null()) return;
  const std::string type = node.text("type");
  if (type == "Sequence") {
    for (const Node& item : node.at("processors").items()) parse_post_processor(item, depth + 1, processor);
  } else if (type == "TemplateProcessing") {
    if (!processor.before.empty() || !processor.after.empty()) node.fail("one TemplateProcessing only");
    processor = parse_template(node);
  } else if (type != "ByteLevel") {  // concerns only offsets in the text
    node.refuse("the post-processor '" + type + "'", "ByteLevel, Sequence and TemplateProcessing");
  }
}

// Merges are pairs, or in older files strings "left right".
BpeModel::Merges parse_merges(const Node& node) {
  BpeModel::Merges merges;
  if (!node.value().is_array()) node.fail("an array");
  merges.reserve(node.value().size());
  for (const json& item : node.value()) {
    if (item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_string()) {
      merges.emplace_back(item[0].get_ref<const std::string&>(), item[1].get_ref<const std::string&>());
      continue;
    }
    const Node merge(item, node.where() + "[" + std::to_string(merges.size()) + "]");
    if (!item.is_string()) merge.fail("a pair of tokens");
    const std::string& text = merge.text();
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) merge.fail("'left right'");
    merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  return merges;
}

std::vector<std::pair<std::string, int32_t>> parse_vocabulary(const Node& vocabulary) {
  if (!vocabulary.value().is_object()) vocabulary.fail("an object");
  std::vector<std::pair<std::string, int32_t>> tokens;
  tokens.reserve(vocabulary.value().size());
  for (const auto& [token, id] : vocabulary.value().items()) {
    if (!id.is_number_integer()) Node(id, vocabulary.where() + "." + token).fail("an integer");
    tokens.emplace_back(token, static_cast<int32_t>(Node(id, vocabulary.where() + "." + token).integer()));
  }
  return tokens;
}

std::unique_ptr<TokenModel> parse_word_piece(const Node& node) {
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

std::unique_ptr<TokenModel> parse_model(const Node& node, bool byte_level) {
  // Files of the first versions have no type. Only BPE has a vocabulary and merges together.
  const std::string type = node.has("type") ? node.text("type") : node.has("merges") ? "BPE" : "without a type";
  if (type == "WordPiece") return parse_word_piece(node);
  if (type != "BPE") node.refuse("the model '" + type + "'", "BPE and WordPiece");
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

std::vector<AddedToken> parse_added_tokens(const Node& node, const TokenModel& model) {
  std::vector<AddedToken> tokens;
  if (node.is_null()) return tokens;
  for (const Node& item : node.items()) {
    AddedToken token;
    token.content = item.text("content");
    token.id = static_cast<int32_t>(item.at("id").integer());
    token.special = item.flag("special", false);
    token.single_word = item.flag("single_word", false);
    token.lstrip = item.flag("lstrip", false);
    token.rstrip = item.flag("rstrip", false);
    token.normalized = item.flag("normalized", !token.special);
    const auto in_model = model.id(token.content);
    if (in_model && *in_model != token.id) {
      item.fail("the id " + std::to_string(*in_model) + ", which the vocabulary gives '" + visible_line(token.content) +
                "'");
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

Node optional_part(const Node& file, const char* key) {
  static const json kNull;
  return file.has(key) ? file.at(key) : Node(kNull, file.where() + "." + key);
}

}  // namespace

TokenizerParts parse_tokenizer_json(const std::string& text, const std::string& where) {
  const json document = parse_json(text, where, Nul::allowed);
  const Node file(document, where);
  if (file.has("version") && file.at("version").value() != "1.0") file.at("version").fail("\"1.0\"");
  TokenizerParts parts;
  parse_normalizer(optional_part(file, "normalizer"), 0, parts.normalizer);
  const bool byte_level = parse_pre_tokenizer(optional_part(file, "pre_tokenizer"), 0, parts.pre_tokenizer);
  parts.model = parse_model(file.at("model"), byte_level);
  parts.added_tokens = parse_added_tokens(optional_part(file, "added_tokens"), *parts.model);
  parse_post_processor(optional_part(file, "post_processor"), 0, parts.post_processor);
  parse_decoder(optional_part(file, "decoder"), 0, parts.decoder);
  return parts;
}

void apply_tokenizer_config(const std::string& config_json, const std::string& where, TokenizerParts& parts) {
  const json document = parse_json(config_json, where, Nul::allowed);
  const Node config(document, where);
  if (!document.is_object()) config.fail("an object");
  if (!config.has("add_bos_token") && !config.has("add_eos_token")) return;
  // Returns the ids of the token named by `key` if `flag` asks for it. A token is a string or an object with its
  // content.
  const auto ids = [&](const char* flag, const char* key) -> std::vector<int32_t> {
    if (!config.flag(flag, false) || !config.has(key)) return {};
    const Node token = config.at(key);
    const std::string content = token.value().is_object() ? token.text("content") : token.text();
    for (const AddedToken& added : parts.added_tokens) {
      if (added.content == content) return {added.id};
    }
    const auto id = parts.model->id(content);
    if (!id) token.fail("a token of the vocabulary");
    return {*id};
  };
  parts.post_processor = {ids("add_bos_token", "bos_token"), ids("add_eos_token", "eos_token")};
}

}  // namespace pare::runtime
