#include "runtime/tokenizer/gguf_from_tokenizer.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <unordered_map>

#include "runtime/system/json_text.h"
#include "runtime/system/visible_text.h"
#include "runtime/tokenizer/bpe.h"
#include "runtime/tokenizer/tokenizer.h"
#include "runtime/tokenizer/tokenizer_folder.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::json;

// GGUF's numbers (gguf_vocabulary.h).
enum GgufTokenType : int64_t {
  kPlain = 1,
  kUnknownToken = 2,
  kSpecial = 3,
  kAddedByUser = 4,
  kNotUsed = 5,
  kOfByte = 6
};
constexpr double kNeverMerged = -1e9;  // the score of what no merge makes

// Both tokenizers must encode this alike.
constexpr const char* kProbe =
    "The quick brown fox's 12345 jumps, isn't it? 3.14 != 2\n\n  indented\tcode(x) { return a[i] += 1; }  \n"
    "\u00c9t\u00e9 \u00fcber na\u00efve \u4f60\u597d\u4e16\u754c \u043f\u0440\u0438\u0432\u0435\u0442 "
    "\u3053\u3093\u306b\u3061\u306f \u2014 \u201cquotes\u201d\u2026 DON'T   stop 1,000,000 \U0001F600 e.g. "
    "A.B.C.\r\nend ";

// --- Rules of splitting --------------------------------------------------------------------------------------------

void flatten(const Json& stage, const char* parts_key, std::vector<Json>& flat) {
  if (stage.is_null()) return;
  if (stage.value("type", "") == "Sequence" && stage.contains(parts_key)) {
    for (const Json& part : stage[parts_key]) flatten(part, parts_key, flat);
    return;
  }
  flat.push_back(stage);
}

// Returns the stage without what does not change the ids, in one of several equal ways to write it.
Json plain_stage(const Json& stage) {
  const std::string type = stage.value("type", "");
  if (type == "ByteLevel") {
    return {{"type", type},
            {"add_prefix_space", stage.value("add_prefix_space", true)},
            {"use_regex", stage.value("use_regex", true)}};
  }
  if (type == "Split") {
    // All that is not matched is lost, or the matches stand alone: the same where the pattern matches everything.
    std::string behavior = stage.value("behavior", "");
    if (behavior == "Removed" && stage.value("invert", false)) behavior = "Isolated";
    return {{"type", type}, {"pattern", stage.value("pattern", Json())}, {"behavior", behavior}};
  }
  if (type == "Punctuation") return {{"type", type}, {"behavior", stage.value("behavior", "Isolated")}};
  if (type == "Digits") return {{"type", type}, {"individual_digits", stage.value("individual_digits", false)}};
  return stage;
}

// These rules of a byte-level tokenizer come before it merges.
struct Rules {
  std::vector<Json> stages, normalizers;
  bool ignores_merges = false, adds_space = false;
};

Rules rules_of(const Json& document) {
  Rules rules;
  std::vector<Json> stages;
  flatten(document.value("pre_tokenizer", Json()), "pretokenizers", stages);
  flatten(document.value("normalizer", Json()), "normalizers", rules.normalizers);
  for (const Json& stage : stages) {
    Json plain = plain_stage(stage);
    if (plain.value("type", "") == "ByteLevel" && plain["add_prefix_space"] == true) {
      rules.adds_space = true;
      plain["add_prefix_space"] = false;
    }
    rules.stages.push_back(std::move(plain));
  }
  rules.ignores_merges = document["model"].value("ignore_merges", false);
  return rules;
}

Rules rules_of_name(const std::string& pre) {
  GgufVocabulary smallest;
  smallest.model = "gpt2";
  smallest.pre = pre;
  smallest.tokens = {"a"};
  return rules_of(parse_json(make_tokenizer_json(smallest), pre));
}

// Returns the name whose rules are those of the tokenizer; llama.cpp itself does not normalize.
std::string find_pre(const Json& document, const std::string& where, std::vector<std::string>& notes) {
  const Rules own = rules_of(document);
  std::string names;
  for (const bool normalizes_alike : {true, false}) {
    for (const std::string& name : gguf_pre_tokenizers()) {
      const Rules known = rules_of_name(name);
      if (known.stages != own.stages || known.ignores_merges != own.ignores_merges) continue;
      if (normalizes_alike && known.normalizers != own.normalizers) continue;
      if (!normalizes_alike) notes.push_back("texts are normalized as the pre-tokenizer '" + name + "' has it");
      return name;
    }
  }
  for (const std::string& name : gguf_pre_tokenizers()) names += (names.empty() ? "" : ", ") + name;
  throw std::invalid_argument(where + ": its rules of splitting texts are those of no pre-tokenizer that a GGUF file " +
                              "can name; known: " + names);
}

// --- Vocabularies --------------------------------------------------------------------------------------------------

// Returns the two parts of each merge.
BpeModel::Merges merges_of(const Json& document, const std::string& where) {
  BpeModel::Merges merges;
  for (const Json& merge : document["model"].value("merges", Json::array())) {
    if (merge.is_array()) {
      merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    } else {
      const auto text = merge.get<std::string>();
      const size_t space = text.find(' ');
      merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    }
    if (merges.back().first.find(' ') != std::string::npos || merges.back().second.find(' ') != std::string::npos) {
      throw std::invalid_argument(where + ": a merge of tokens with spaces has no place in a GGUF file");
    }
  }
  return merges;
}

// Sets tokens and their types, by id.
void set_tokens(const TokenizerParts& parts, int64_t num_rows, GgufTokenizer& tokenizer) {
  GgufVocabulary& vocabulary = tokenizer.vocabulary;
  vocabulary.tokens.resize(static_cast<size_t>(num_rows));
  vocabulary.token_types.resize(static_cast<size_t>(num_rows), kNotUsed);
  const auto set = [&](int64_t id, const std::string& token, int64_t type) {
    if (id >= num_rows) {
      throw std::invalid_argument(vocabulary.where + ": the token '" + visible_line(token) + "' has the id " +
                                  std::to_string(id) + ", but the model's table has " + std::to_string(num_rows) +
                                  " rows");
    }
    vocabulary.tokens[static_cast<size_t>(id)] = token;
    vocabulary.token_types[static_cast<size_t>(id)] = type;
  };
  for (const auto& [token, id] : parts.model->vocabulary()) set(id, token, kPlain);
  for (const AddedToken& token : parts.added.tokens()) {
    set(token.id, token.content, token.special ? kSpecial : kAddedByUser);
    if (token.lstrip || token.rstrip || token.single_word) {
      tokenizer.notes.push_back("the token '" + visible_line(token.content) +
                                "' takes spaces around it, or stands alone; a GGUF file does not say so");
    }
  }
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.token_types[id] == kNotUsed) vocabulary.tokens[id] = "[PAD" + std::to_string(id) + "]";
  }
}

void set_roles(const TokenizerParts& parts, GgufTokenizer& tokenizer) {
  GgufVocabulary& vocabulary = tokenizer.vocabulary;
  const auto id_of = [&](const std::string& content) -> std::optional<int64_t> {
    if (const AddedToken* const added = parts.added.find(content)) return added->id;
    return parts.model->id(content);
  };
  constexpr std::pair<const char*, const char*> kRoles[] = {
      {"bos_token", "bos"}, {"eos_token", "eos"}, {"unk_token", "unknown"}, {"pad_token", "padding"}};
  for (const auto& [name, role] : kRoles) {
    const auto found = std::ranges::find(parts.special_tokens, name, &SpecialTokens::value_type::first);
    if (found == parts.special_tokens.end()) continue;
    if (const auto id = id_of(found->second)) tokenizer.roles.emplace_back(role, *id);
  }
  const auto id_of_role = [&](const char* role) -> std::optional<int64_t> {
    const auto found = std::ranges::find(tokenizer.roles, role, &std::pair<std::string, int64_t>::first);
    return found == tokenizer.roles.end() ? std::nullopt : std::optional(found->second);
  };
  const PostProcessor& around = parts.post_processor;
  if (around.before.size() == 1 && !id_of_role("bos")) tokenizer.roles.emplace_back("bos", around.before.front());
  if (around.after.size() == 1 && !id_of_role("eos")) tokenizer.roles.emplace_back("eos", around.after.front());
  vocabulary.bos_token = id_of_role("bos");
  vocabulary.eos_token = id_of_role("eos");
  vocabulary.unknown_token = id_of_role("unknown");
  const auto is = [](const std::vector<int32_t>& ids, std::optional<int64_t> id) {
    return id && ids.size() == 1 && ids.front() == *id;
  };
  vocabulary.add_bos = is(around.before, vocabulary.bos_token);
  vocabulary.add_eos = is(around.after, vocabulary.eos_token);
  if ((!around.before.empty() && !*vocabulary.add_bos) || (!around.after.empty() && !*vocabulary.add_eos)) {
    tokenizer.notes.push_back(
        "transformers puts other tokens than bos and eos around a text; a GGUF file cannot say so, and llama.cpp adds "
        "none of them");
  }
}

void set_byte_level(const Json& document, GgufTokenizer& tokenizer) {
  GgufVocabulary& vocabulary = tokenizer.vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = find_pre(document, vocabulary.where, tokenizer.notes);
  if (rules_of(document).adds_space) vocabulary.add_space_prefix = true;
  for (const auto& [left, right] : merges_of(document, vocabulary.where))
    vocabulary.merges.push_back(left + " " + right);
}

// True if a text's first word gets a space in front of it.
bool prepends_space(const Json& document, const std::string& where) {
  std::vector<Json> steps;
  flatten(document.value("normalizer", Json()), "normalizers", steps);
  flatten(document.value("pre_tokenizer", Json()), "pretokenizers", steps);
  bool prepends = false;
  for (const Json& step : steps) {
    const std::string type = step.value("type", "");
    if (type == "Prepend") {
      prepends = true;
    } else if (type == "Metaspace") {
      prepends = step.value("prepend_scheme", step.value("add_prefix_space", true) ? "always" : "never") != "never";
    } else if (type != "Replace" && type != "Split") {
      throw std::invalid_argument(where + ": '" + type + "' is no step of SentencePiece's BPE, and has no place in a " +
                                  "GGUF file");
    }
  }
  return prepends;
}

// SentencePiece merges what has the highest score. The order in which merges make tokens is that of their ids in files
// that SentencePiece itself made, whose scores are the negative ids; else it becomes the scores.
void set_sentencepiece(const Json& document, GgufTokenizer& tokenizer) {
  GgufVocabulary& vocabulary = tokenizer.vocabulary;
  vocabulary.model = "llama";
  vocabulary.add_space_prefix = prepends_space(document, vocabulary.where);
  std::unordered_map<std::string, size_t> ids;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) ids.emplace(vocabulary.tokens[id], id);
  vocabulary.scores.assign(vocabulary.tokens.size(), kNeverMerged);
  double rank = 0.0;
  for (const auto& [left, right] : merges_of(document, vocabulary.where)) {
    const auto made = ids.find(left + right);
    if (made == ids.end()) continue;
    double& score = vocabulary.scores[made->second];
    if (score == kNeverMerged) score = -(rank += 1.0);
  }
  const auto unknown = document["model"].value("unk_token", Json());
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& token = vocabulary.tokens[id];
    int64_t& type = vocabulary.token_types[id];
    const bool is_byte = token.size() == 6 && token.starts_with("<0x") && token.ends_with(">");
    if (is_byte) type = kOfByte;
    if (unknown == token) {
      type = kUnknownToken;
      if (!vocabulary.unknown_token) {
        vocabulary.unknown_token = static_cast<int64_t>(id);
        tokenizer.roles.emplace_back("unknown", id);
      }
    }
  }
  if (*vocabulary.add_space_prefix) return;
  // llama.cpp looks for what users added in the text as it is.
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.token_types[id] != kAddedByUser) continue;
    std::string& token = vocabulary.tokens[id];
    const std::string mark = "\u2581";
    for (size_t at = token.find(mark); at != std::string::npos; at = token.find(mark, at))
      token.replace(at, mark.size(), " ");
  }
}

// Two tokenizers are one if they give the same ids. A file whose vocabulary lacks what the probe has differs in nothing
// by that, since both lack it.
void check_ids(const Tokenizer& own, const GgufVocabulary& vocabulary) {
  const Tokenizer read = Tokenizer::parse(make_tokenizer_json(vocabulary), vocabulary.where);
  const std::vector<int32_t> expected = own.encode(kProbe, false), found = read.encode(kProbe, false);
  if (expected == found) return;
  const auto [e, f] = std::ranges::mismatch(expected, found);
  const auto at = static_cast<size_t>(e - expected.begin());
  throw std::invalid_argument(vocabulary.where + ": as a GGUF file has it, the tokenizer gives other ids: token " +
                              std::to_string(at) + " of a sample is " +
                              (f == found.end() ? "missing" : std::to_string(*f)) + ", expected " +
                              (e == expected.end() ? "none" : std::to_string(*e)));
}

}  // namespace

GgufTokenizer make_gguf_tokenizer(const std::filesystem::path& folder, int64_t num_rows) {
  const Tokenizer own = Tokenizer::open(folder);  // first, since it says what to do where there is no tokenizer.json
  const std::filesystem::path file = folder / "tokenizer.json";
  const TokenizerParts parts = read_tokenizer_folder(file);
  const Json document = read_tokenizer_document(file);
  GgufTokenizer tokenizer;
  tokenizer.vocabulary.where = file.string();
  const auto* const bpe = dynamic_cast<const BpeModel*>(parts.model.get());
  const bool is_sentencepiece = bpe != nullptr && !bpe->byte_level() && document["model"].value("byte_fallback", false);
  if (bpe == nullptr || (!bpe->byte_level() && !is_sentencepiece)) {
    throw std::invalid_argument(file.string() + ": a tokenizer of the kind '" + document["model"].value("type", "") +
                                "' is not exported to GGUF; expected byte-level BPE, or BPE with byte fallback");
  }
  set_tokens(parts, num_rows, tokenizer);
  set_roles(parts, tokenizer);
  if (is_sentencepiece) {
    set_sentencepiece(document, tokenizer);
  } else {
    set_byte_level(document, tokenizer);
  }
  check_ids(own, tokenizer.vocabulary);
  return tokenizer;
}

void set_tokenizer_keys(const GgufTokenizer& tokenizer, GgufMetadata& metadata) {
  const GgufVocabulary& vocabulary = tokenizer.vocabulary;
  const auto key = [](const std::string& name) { return "tokenizer.ggml." + name; };
  metadata.set_text(key("model"), vocabulary.model);
  metadata.set_text(key("pre"), vocabulary.pre.empty() ? "default" : vocabulary.pre);
  metadata.set_texts(key("tokens"), vocabulary.tokens);
  const std::vector<int32_t> types(vocabulary.token_types.begin(), vocabulary.token_types.end());
  metadata.set_integers(key("token_type"), types);
  if (!vocabulary.merges.empty()) metadata.set_texts(key("merges"), vocabulary.merges);
  if (!vocabulary.scores.empty()) {
    const std::vector<float> scores(vocabulary.scores.begin(), vocabulary.scores.end());
    metadata.set_numbers(key("scores"), scores);
  }
  for (const auto& [role, id] : tokenizer.roles) metadata.set_unsigned(key(role + "_token_id"), id);
  if (vocabulary.add_bos) metadata.set_boolean(key("add_bos_token"), *vocabulary.add_bos);
  if (vocabulary.add_eos) metadata.set_boolean(key("add_eos_token"), *vocabulary.add_eos);
  if (vocabulary.add_space_prefix) metadata.set_boolean(key("add_space_prefix"), *vocabulary.add_space_prefix);
}

}  // namespace pare::runtime
