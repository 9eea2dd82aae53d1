#include "runtime/tokenizer/tokenizer_folder.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>

#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/json_text.h"
#include "runtime/system/visible_text.h"
#include "runtime/text/json_node.h"
#include "runtime/tokenizer/tokenizer_class.h"

namespace pare::runtime {
namespace {

using nlohmann::json;

constexpr std::array<const char*, 7> kNamedTokens = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                     "pad_token", "cls_token", "mask_token"};
constexpr int64_t kDefaultExtraIds = 100;  // of T5

// A token that a file names: a string, or an object with flags.
struct NamedToken {
  std::string content;
  bool is_string = true;
  bool special = false;
  bool is_resolved = true;  // false: an object of tokenizer_config.json, in whose place added_tokens.json sees no token
  std::optional<bool> single_word, lstrip, rstrip, normalized;

  AddedToken added() const {
    AddedToken token;
    token.content = content;
    token.special = special || is_string;
    token.single_word = single_word.value_or(false);
    token.lstrip = lstrip.value_or(false);
    token.rstrip = rstrip.value_or(false);
    token.normalized = normalized.value_or(!token.special);
    return token;
  }
};

NamedToken parse_named_token(const JsonNode& node) {
  NamedToken token;
  if (node.value().is_string()) {
    token.content = node.text();
    return token;
  }
  if (!node.value().is_object()) node.fail("a token: a string, or an object with its content");
  token.content = node.text("content");
  token.is_string = token.is_resolved = false;
  token.special = node.flag("special", false);
  const auto flag = [&](const char* key) {
    return node.has(key) ? std::optional(node.flag(key, false)) : std::nullopt;
  };
  token.single_word = flag("single_word");
  token.lstrip = flag("lstrip");
  token.rstrip = flag("rstrip");
  token.normalized = flag("normalized");
  return token;
}

// Everything that the files beside a tokenizer.json say of tokens.
struct NamedTokens {
  std::map<std::string, std::optional<NamedToken>> named;  // kNamedTokens; nothing: the file says null
  // These have other names, such as image_token. Where both lists have a name, the second counts.
  std::vector<std::pair<std::string, NamedToken>> of_the_map, of_the_model;
  std::optional<std::vector<NamedToken>> extra;
  std::optional<std::vector<NamedToken>> additional;  // of special_tokens_map.json; counts where there is no `extra`
  std::map<int64_t, NamedToken> by_id;
  std::map<std::string, NamedToken> by_content;

  using List = std::vector<std::pair<std::string, NamedToken>>;
  static void set(List& list, const std::string& name, const NamedToken& token) {
    const auto known = std::find_if(list.begin(), list.end(), [&](const auto& entry) { return entry.first == name; });
    if (known != list.end()) {
      known->second = token;
    } else {
      list.emplace_back(name, token);
    }
  }
  void add(int64_t id, const NamedToken& token) {
    by_id[id] = token;
    by_content[token.content] = token;
  }
  List all_named() const {
    List tokens;
    for (const char* key : kNamedTokens) {
      const auto found = named.find(key);
      if (found != named.end() && found->second) tokens.emplace_back(key, *found->second);
    }
    List others = of_the_map;
    for (const auto& [name, token] : of_the_model) set(others, name, token);
    tokens.insert(tokens.end(), others.begin(), others.end());
    return tokens;
  }
};

bool is_named_token(const std::string& key) {
  return std::find(kNamedTokens.begin(), kNamedTokens.end(), key) != kNamedTokens.end();
}

struct JsonFile {
  std::string where;
  json content;  // {} if it is missing
  JsonNode node() const { return {content, where}; }
};

JsonFile read_object(const std::filesystem::path& path) {
  JsonFile file = {path.string(), json::object()};
  if (is_there(path)) file.content = parse_json(read_text_file(path), file.where, Nul::allowed);
  if (!file.content.is_object()) file.node().fail("an object");
  return file;
}

// Returns the keys of an object, or of the object in it named by `inner`, in the order of the file. It decides on the
// ids of new tokens.
std::vector<std::string> keys_in_order(const std::filesystem::path& path, const JsonFile& file,
                                       const char* inner = nullptr) {
  std::vector<std::string> keys;
  const json& object = inner == nullptr ? file.content : file.content[inner];
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  if (keys.size() < 2) return keys;
  const auto in_order = parse_ordered_json(read_text_file(path), file.where, Nul::allowed);
  keys.clear();
  for (const auto& [key, value] : (inner == nullptr ? in_order : in_order[inner]).items()) keys.push_back(key);
  return keys;
}

// Reads an object {name: token}.
void read_tokens_of_model(const std::filesystem::path& path, const JsonFile& file, const char* key,
                          NamedTokens& tokens) {
  const JsonNode node = file.node().at(key);
  if (!node.value().is_object()) node.fail("an object");
  for (const std::string& name : keys_in_order(path, file, key)) {
    NamedTokens::set(tokens.of_the_model, name, parse_named_token(node.at(name)));
  }
}

// Reads extra_special_tokens, a list or an object {name: token}.
void read_extra(const std::filesystem::path& path, const JsonFile& file, const char* key, NamedTokens& tokens) {
  const JsonNode node = file.node().at(key);
  tokens.extra.reset();
  if (node.value().is_object()) return read_tokens_of_model(path, file, key, tokens);
  tokens.extra.emplace();
  for (const JsonNode& item : node.items()) tokens.extra->push_back(parse_named_token(item));
}

void read_config_tokens(const std::filesystem::path& path, const JsonFile& config, NamedTokens& tokens) {
  const JsonNode node = config.node();
  for (const std::string& key : keys_in_order(path, config)) {
    const JsonNode value = node.at(key);
    if (is_named_token(key)) {
      tokens.named[key] = value.is_null() ? std::nullopt : std::optional(parse_named_token(value));
    } else if (key.ends_with("_token") && (value.value().is_string() || value.value().is_object())) {
      NamedTokens::set(value.value().is_string() ? tokens.of_the_model : tokens.of_the_map, key,
                       parse_named_token(value));
    }
  }
  for (const char* key : {"extra_special_tokens", "additional_special_tokens"}) {
    if (!config.content.contains(key)) continue;
    tokens.extra = std::vector<NamedToken>();
    if (node.has(key)) read_extra(path, config, key, tokens);
    break;
  }
  // transformers writes its own list over this one if it found any such token.
  constexpr const char* kOfModel = "model_specific_special_tokens";
  if (tokens.of_the_model.empty() && node.has(kOfModel)) read_tokens_of_model(path, config, kOfModel, tokens);
}

void read_special_tokens_map(const std::filesystem::path& path, const JsonFile& map, NamedTokens& tokens) {
  const JsonNode node = map.node();
  const auto special = [](const JsonNode& value) {
    NamedToken token = parse_named_token(value);
    token.special = true;
    token.is_resolved = true;
    return token;
  };
  const std::optional<std::vector<NamedToken>> of_config = tokens.extra;
  for (const std::string& key : keys_in_order(path, map)) {
    if (!node.has(key.c_str())) {
      if (is_named_token(key)) tokens.named[key] = std::nullopt;
      continue;
    }
    const JsonNode value = node.at(key);
    if (is_named_token(key)) {
      tokens.named[key] = value.value().is_string() ? parse_named_token(value) : special(value);
    } else if (key == "additional_special_tokens") {
      tokens.additional.emplace();
      for (const JsonNode& item : value.items()) tokens.additional->push_back(parse_named_token(item));
    } else if (key == "extra_special_tokens" && value.value().is_array()) {
      std::vector<NamedToken> merged = of_config.value_or(std::vector<NamedToken>());
      for (const JsonNode& item : value.items()) {
        const NamedToken token = item.value().is_string() ? parse_named_token(item) : special(item);
        const bool known = std::any_of(merged.begin(), merged.end(), [&](const NamedToken& other) {
          return other.is_string == token.is_string && other.added() == token.added();
        });
        if (!known) merged.push_back(token);
      }
      tokens.extra = std::move(merged);
    } else if (key == "extra_special_tokens") {
      read_extra(path, map, key.c_str(), tokens);
    } else if (key.ends_with("_token") && (value.value().is_string() || value.value().is_object())) {
      NamedTokens::set(tokens.of_the_map, key, value.value().is_string() ? parse_named_token(value) : special(value));
    }
  }
}

// added_tokens.json: {content: id}.
void read_added_tokens(const JsonFile& file, NamedTokens& tokens) {
  std::set<std::string> special;
  for (const char* key : kNamedTokens) {
    const auto found = tokens.named.find(key);
    if (found != tokens.named.end() && found->second && found->second->is_resolved) {
      special.insert(found->second->content);
    }
  }
  if (tokens.extra) {
    for (const NamedToken& token : *tokens.extra) {
      if (token.is_resolved) special.insert(token.content);
    }
  }
  for (const auto& [content, id] : file.content.items()) {
    NamedToken token;
    token.content = content;
    token.is_string = false;
    token.special = special.contains(content);
    token.single_word = token.lstrip = token.rstrip = false;
    token.normalized = !token.special;
    tokens.add(JsonNode(id, file.where + "." + content).integer(), token);
  }
}

// The tokens of the tokenizer.json itself.
void read_file_tokens(const JsonFile& file, NamedTokens& tokens) {
  if (!file.content.contains("added_tokens") || file.content["added_tokens"].is_null()) return;
  for (const JsonNode& item : file.node().at("added_tokens").items()) {
    NamedToken token = parse_named_token(item);
    if (token.is_string) item.fail("an object");
    tokens.add(item.at("id").integer(), token);
  }
}

void read_added_tokens_decoder(const JsonNode& decoder, NamedTokens& tokens) {
  if (!decoder.value().is_object()) decoder.fail("an object");
  for (const auto& [key, value] : decoder.value().items()) {
    const JsonNode node(value, decoder.where() + "." + key);
    int64_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size()) node.fail("an id as its key");
    if (!value.is_object()) node.fail("an object");
    tokens.add(id, parse_named_token(node));
  }
}

// Adds what the class names and the files do not.
void add_class_tokens(const TokenizerClass& of_class, const json& config, NamedTokens& tokens) {
  std::vector<NamedToken> of_model;
  for (const auto& [key, content] : of_class.special_tokens) {
    NamedToken token;
    token.content = content;
    if (is_named_token(std::string(key))) {
      tokens.named.emplace(key, token);
      continue;
    }
    of_model.push_back(token);
    const bool known = std::any_of(tokens.of_the_map.begin(), tokens.of_the_map.end(),
                                   [&key = key](const auto& entry) { return entry.first == key; });
    if (!known) tokens.of_the_map.emplace_back(key, token);
  }
  if (of_class.named_are_objects) {
    for (auto& [key, token] : tokens.named) {
      if (!token || !token->is_string) continue;
      token->is_string = false;
      token->single_word = token->rstrip = false;
      token->lstrip = key == "mask_token";
    }
  }
  if (!of_model.empty() && !tokens.extra) tokens.extra = std::move(of_model);
  if (of_class.has_extra_ids && !tokens.extra) {
    const int64_t count = config.contains("extra_ids") && config["extra_ids"].is_number_integer()
                              ? std::clamp<int64_t>(config["extra_ids"].get<int64_t>(), 0, 10 * kDefaultExtraIds)
                              : kDefaultExtraIds;
    tokens.extra.emplace();
    for (int64_t i = 0; i < count; ++i) {
      NamedToken token;
      token.content = "<extra_id_" + std::to_string(i) + ">";
      tokens.extra->push_back(token);
    }
  }
}

// Adds the named tokens as TokenizersBackend.__init__ does.
void add_named_tokens(const NamedTokens& tokens, TokenizerParts& parts) {
  std::vector<NamedToken> to_add;
  std::set<std::string> known;
  for (const AddedToken& token : parts.added.tokens()) known.insert(token.content);
  for (const auto& [id, token] : tokens.by_id) to_add.push_back(token);
  for (const NamedToken& token : to_add) known.insert(token.content);
  std::set<std::string> named;
  for (const auto& [name, token] : tokens.all_named()) named.insert(token.content);
  const auto add_new = [&](const NamedToken& token) {
    const bool listed = std::any_of(to_add.begin(), to_add.end(), [&](const NamedToken& other) {
      return other.is_string == token.is_string && other.added() == token.added();
    });
    if (!known.contains(token.content) && !listed) to_add.push_back(token);
  };
  for (const auto& [name, token] : tokens.all_named()) add_new(token);
  if (tokens.extra) {
    for (const NamedToken& token : *tokens.extra) add_new(token);
  }
  std::vector<AddedToken> added;
  for (NamedToken& token : to_add) {
    token.special = token.special || named.contains(token.content);
    added.push_back(token.added());
  }
  parts.added.add(std::move(added), *parts.model);
}

// Adds the special tokens once more.
void add_again(AddAgain how, const NamedTokens& tokens, TokenizerParts& parts) {
  std::vector<AddedToken> added;
  const auto add = [&](NamedToken token) {
    if (how == AddAgain::without_flags) {
      const std::string content = token.content;
      token = NamedToken();
      token.content = content;
    }
    token.special = true;
    added.push_back(token.added());
  };
  for (const auto& [name, token] : tokens.all_named()) add(token);
  if (tokens.extra) {
    for (const NamedToken& token : *tokens.extra) add(token);
  }
  parts.added.add(std::move(added), *parts.model);
}

void set_around_text(const TokenizerClass& of_class, const NamedTokens& tokens, bool in_file, TokenizerParts& parts) {
  using enum AroundText;
  const AroundText around = of_class.around;
  const auto ids = [&](const char* key, std::optional<int32_t> otherwise = {}) -> std::vector<int32_t> {
    const auto found = tokens.named.find(key);
    if (found == tokens.named.end() || !found->second) {
      return otherwise ? std::vector<int32_t>{*otherwise} : std::vector<int32_t>();
    }
    const AddedToken* added = parts.added.find(found->second->content);
    const auto id = added != nullptr ? std::optional(added->id) : parts.model->id(found->second->content);
    return id ? std::vector<int32_t>{*id} : std::vector<int32_t>();
  };
  if (around == from_file || (around == from_file_or_cls_sep && in_file)) return;
  if (around == nothing) parts.post_processor = {};
  if (around == bos) parts.post_processor = {ids("bos_token"), {}};
  if (around == eos) parts.post_processor = {{}, ids("eos_token")};
  if (around == bos_eos) parts.post_processor = {ids("bos_token"), ids("eos_token")};
  if (around == cls_sep || around == from_file_or_cls_sep) {
    const auto [cls, sep] = of_class.cls_sep_ids;
    parts.post_processor = {ids("cls_token", cls), ids("sep_token", sep)};
  }
}

// `document` becomes the tokenizer.json as the class has it.
TokenizerParts read_folder(const std::filesystem::path& path, json& document) {
  const std::filesystem::path folder = path.parent_path();
  JsonFile file = {path.string(), parse_json(read_text_file(path), path.string(), Nul::allowed)};
  const JsonFile config = read_object(folder / "tokenizer_config.json");
  const JsonFile model_config = read_object(folder / "config.json");
  NamedTokens tokens;
  read_config_tokens(folder / "tokenizer_config.json", config, tokens);
  if (config.node().has("added_tokens_decoder")) {
    read_added_tokens_decoder(config.node().at("added_tokens_decoder"), tokens);
  } else {
    const auto map = folder / "special_tokens_map.json";
    read_special_tokens_map(map, read_object(map), tokens);
    read_added_tokens(read_object(folder / "added_tokens.json"), tokens);
    read_file_tokens(file, tokens);
  }
  if (!tokens.extra) tokens.extra = tokens.additional;
  for (auto& [name, token] : tokens.named) {
    if (!token) continue;
    if (const auto known = tokens.by_content.find(token->content); known != tokens.by_content.end()) {
      token = known->second;
    }
  }
  const TokenizerClass* of_class = named_tokenizer_class(config.content, model_config.content);
  NamedTokens all = tokens;
  if (of_class != nullptr) add_class_tokens(*of_class, config.content, all);
  SpecialTokens special_tokens;
  for (const auto& [name, token] : all.all_named()) special_tokens.emplace_back(name, token.content);
  if (of_class != nullptr && !fits(*of_class, file.content)) of_class = nullptr;
  const bool has_post_processor =
      file.content.is_object() && file.content.contains("post_processor") && !file.content["post_processor"].is_null();
  if (of_class != nullptr) {
    tokens = std::move(all);
    const auto unk = tokens.named.find("unk_token");
    of_class->build(config.content, unk != tokens.named.end() && unk->second ? unk->second->content : "", file.content);
    file.content["added_tokens"] = json::array();
  }
  TokenizerParts parts = parse_tokenizer_document(file.content, file.where);
  add_named_tokens(tokens, parts);
  if (of_class != nullptr && of_class->adds_again != AddAgain::no) add_again(of_class->adds_again, tokens, parts);
  if (of_class != nullptr) set_around_text(*of_class, tokens, has_post_processor, parts);
  parts.special_tokens = std::move(special_tokens);
  parts.split_special_tokens = config.node().flag("split_special_tokens", false);
  document = std::move(file.content);
  return parts;
}

}  // namespace

TokenizerParts read_tokenizer_folder(const std::filesystem::path& file) {
  json document;
  return read_folder(file, document);
}

json read_tokenizer_document(const std::filesystem::path& file) {
  json document;
  read_folder(file, document);
  return document;
}

}  // namespace pare::runtime
