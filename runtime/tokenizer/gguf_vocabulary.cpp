#include "runtime/tokenizer/gguf_vocabulary.h"

#include <algorithm>
#include <array>
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

namespace pare::runtime {
namespace {

using nlohmann::ordered_json;

enum TokenType : int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

// The way in which text is split before byte-level BPE. Names and families: llama.cpp, src/llama-vocab.cpp. The
// expressions are those of the families' own tokenizer.json files.
struct PreTokenizerKind {
  std::string_view pattern;    // Split, Isolated; empty: ByteLevel's own (GPT-2's)
  bool single_digits = false;  // Digits(individual_digits) first
  bool nfc = false;
  bool ignore_merges = false;
  bool adds_bos = false;                       // used if the file does not say
  std::array<std::string_view, 4> first = {};  // Splits, Isolated, before the pattern's; empty ones are left out
  bool falcon = false;                         // Falcon's sequence, which splits once more after ByteLevel
};

constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view kDeepseek3Pattern =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view kGpt4oPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kSeedPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Qwen2's with marks among the letters, and without contractions.
constexpr std::string_view kQwen35Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kUfakzekaPattern =
    R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Llama 3's with runs of digits of any length, and with runs of spaces by powers of two.
constexpr std::string_view kMinicpm5Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kJais2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S))"
    R"(|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1})";
constexpr std::string_view kBailingPattern =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr std::string_view kExaoneMoePattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)";
// GPT-4o's with single digits.
constexpr std::string_view kYoutuPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Words, with runs of Han characters for themselves: no letter of a word may be one.
constexpr std::string_view kKimiPattern = R"(\p{Han}+)"
                                          R"(|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])*)"
                                          R"((?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
                                          R"(|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])+)"
                                          R"((?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
                                          R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kSparkPattern =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+)"
    R"(|[\r\n]|\s+(?!\S)|\s+)";
constexpr std::string_view kThreeDigits = R"(\p{N}{1,3})";
constexpr std::string_view kHanAndKana = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
constexpr std::string_view kYoutuScripts =
    "[\uac00-\ud7a3\u3131-\u318e]+"
    "|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    "|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
constexpr std::string_view kBloomPattern = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+";
constexpr std::string_view kDeepseekLetters =
    "\\s?["
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-"
    "\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-"
    "\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-"
    "\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-"
    "\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-"
    "\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-"
    "\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-"
    "\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
    "]+";
constexpr std::string_view kDeepseekPunctuation = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+";

const std::vector<std::pair<std::string_view, PreTokenizerKind>>& known_pre_tokenizers() {
  constexpr PreTokenizerKind kGpt2 = {};
  constexpr PreTokenizerKind kNeox = {"", false, true};
  constexpr PreTokenizerKind kDigits = {"", true};
  constexpr PreTokenizerKind kLlama3 = {kLlama3Pattern, false, false, true, true};
  constexpr PreTokenizerKind kQwen2 = {kQwen2Pattern, false, true};
  constexpr PreTokenizerKind kTekken = {kTekkenPattern, false, false, true, true};
  constexpr PreTokenizerKind kDbrx = {kLlama3Pattern};
  constexpr PreTokenizerKind kDeepseek3 = {kDeepseek3Pattern, false, false, false, false, {kThreeDigits, kHanAndKana}};
  constexpr PreTokenizerKind kDeepseekCoder = {
      R"(\p{N})", false, false,
      false,      false, {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"}};
  constexpr PreTokenizerKind kDeepseek = {"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
                                          true,
                                          false,
                                          false,
                                          false,
                                          {R"([\r\n])", kDeepseekLetters, kDeepseekPunctuation, R"(\s+$)"}};
  constexpr PreTokenizerKind kGlm4 = {kLlama3Pattern, false, false, true};
  constexpr PreTokenizerKind kGpt4o = {kGpt4oPattern};
  constexpr PreTokenizerKind kSeed = {kSeedPattern};
  constexpr PreTokenizerKind kBloom = {kBloomPattern};
  constexpr PreTokenizerKind kFalcon = {"", false, false, false, false, {}, true};
  constexpr PreTokenizerKind kQwen2Raw = {kQwen2Pattern};
  constexpr PreTokenizerKind kQwen35 = {kQwen35Pattern, false, true};
  constexpr PreTokenizerKind kLines = {kQwen2Pattern, false, false, false, false, {R"([^\n]+|[\n]+)"}};
  constexpr PreTokenizerKind kUfakzeka = {kUfakzekaPattern};
  constexpr PreTokenizerKind kMinicpm5 = {kMinicpm5Pattern, false, false, true, false, {kThreeDigits}};
  constexpr PreTokenizerKind kJais2 = {kJais2Pattern};
  constexpr PreTokenizerKind kBailing = {kBailingPattern};
  constexpr PreTokenizerKind kExaoneMoe = {kExaoneMoePattern};
  constexpr PreTokenizerKind kYoutu = {kYoutuPattern, false, false, true, false, {kYoutuScripts}};
  constexpr PreTokenizerKind kKimi = {kKimiPattern};
  constexpr PreTokenizerKind kSpark = {R"(\p{N})", false, false,
                                       false,      false, {kThreeDigits, kHanAndKana, kSparkPattern}};
  constexpr PreTokenizerKind kViking = {R"(\p{N})", false, false, false, false, {kBloomPattern}};
  // Digits in threes from the right.
  constexpr PreTokenizerKind kTinyAya = {kGpt4oPattern, false, false, false, false, {R"(\d{1,3}(?=(?:\d{3})*\b))"}};
  static const std::vector<std::pair<std::string_view, PreTokenizerKind>> kKnown = {{"default", kGpt2},
                                                                                    {"gpt-2", kGpt2},
                                                                                    {"jais", kGpt2},
                                                                                    {"phi-2", kGpt2},
                                                                                    {"mpt", kNeox},
                                                                                    {"olmo", kNeox},
                                                                                    {"gpt-neox", kNeox},
                                                                                    {"smollm", kDigits},
                                                                                    {"starcoder", kDigits},
                                                                                    {"refact", kDigits},
                                                                                    {"command-r", kDigits},
                                                                                    {"llama-bpe", kLlama3},
                                                                                    {"llama3", kLlama3},
                                                                                    {"llama-v3", kLlama3},
                                                                                    {"qwen2", kQwen2},
                                                                                    {"deepseek-r1-qwen", kQwen2},
                                                                                    {"tekken", kTekken},
                                                                                    {"falcon3", kLlama3},
                                                                                    {"falcon-h1", kLlama3},
                                                                                    {"pixtral", kLlama3},
                                                                                    {"dbrx", kDbrx},
                                                                                    {"smaug-bpe", kDbrx},
                                                                                    {"stablelm2", kQwen2},
                                                                                    {"megrez", kQwen2},
                                                                                    {"codeshell", kDigits},
                                                                                    {"exaone", kDigits},
                                                                                    {"minerva-7b", kDigits},
                                                                                    {"deepseek-v3", kDeepseek3},
                                                                                    {"deepseek-coder", kDeepseekCoder},
                                                                                    {"falcon", kFalcon},
                                                                                    {"deepseek-llm", kDeepseek},
                                                                                    {"chatglm-bpe", kDbrx},
                                                                                    {"glm4", kGlm4},
                                                                                    {"gpt-4o", kGpt4o},
                                                                                    {"llama4", kGpt4o},
                                                                                    {"seed-coder", kSeed},
                                                                                    {"bloom", kBloom},
                                                                                    {"gpt3-finnish", kBloom},
                                                                                    {"exaone4", kGpt2},
                                                                                    {"midm-2.0", kLlama3},
                                                                                    {"lfm2", kLlama3},
                                                                                    {"jina-v5-nano", kLlama3},
                                                                                    {"jina-es", kGpt2},
                                                                                    {"jina-de", kGpt2},
                                                                                    {"gigachat", kGpt2},
                                                                                    {"jina-v2-es", kGpt2},
                                                                                    {"jina-v2-de", kGpt2},
                                                                                    {"a.x-4.0", kGpt2},
                                                                                    {"mellum", kGpt2},
                                                                                    {"modern-bert", kGpt2},
                                                                                    {"trillion", kGpt2},
                                                                                    {"granite-docling", kGpt2},
                                                                                    {"mellum2", kDigits},
                                                                                    {"f2llmv2", kQwen2},
                                                                                    {"kormo", kQwen2Raw},
                                                                                    {"hunyuan", kQwen2Raw},
                                                                                    {"solar-open", kQwen2Raw},
                                                                                    {"grok-2", kQwen2Raw},
                                                                                    {"qwen35", kQwen35},
                                                                                    {"laguna", kLines},
                                                                                    {"ufakzeka", kUfakzeka},
                                                                                    {"minicpm5", kMinicpm5},
                                                                                    {"jais-2", kJais2},
                                                                                    {"bailingmoe", kBailing},
                                                                                    {"bailingmoe2", kBailing},
                                                                                    {"llada-moe", kBailing},
                                                                                    {"exaone-moe", kExaoneMoe},
                                                                                    {"youtu", kYoutu},
                                                                                    {"kimi-k2", kKimi},
                                                                                    {"spark2_5", kSpark},
                                                                                    {"viking", kViking},
                                                                                    {"tiny_aya", kTinyAya},
                                                                                    {"cohere2moe", kTinyAya},
                                                                                    {"hunyuan-dense", kDeepseek3},
                                                                                    {"joyai-llm", kDeepseek3},
                                                                                    {"hy_v4", kDeepseek3},
                                                                                    {"glm5", kGlm4},
                                                                                    {"kanana2", kGpt4o},
                                                                                    {"talkie", kGpt4o},
                                                                                    {"minimax-m2", kGpt4o},
                                                                                    {"poro-chat", kBloom}};
  return kKnown;
}

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

ordered_json make_byte_level_file(const GgufVocabulary& vocabulary) {
  const PreTokenizerKind& kind = find_pre_tokenizer(vocabulary);
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

  ordered_json merges = ordered_json::array();
  for (const std::string& merge : vocabulary.merges) {
    const size_t space = merge.find(' ');
    if (space == std::string::npos || merge.find(' ', space + 1) != std::string::npos || find_invalid_utf8(merge)) {
      throw std::runtime_error(vocabulary.where + ": merge " + std::to_string(merges.size()) + " is not 'left right'");
    }
    merges.push_back(ordered_json::array({merge.substr(0, space), merge.substr(space + 1)}));
  }
  const ordered_json normalizer = kind.nfc ? ordered_json{{"type", "NFC"}} : ordered_json();
  return make_file(
      make_added_tokens(vocabulary, false), normalizer, {{"type", "Sequence"}, {"pretokenizers", stages}},
      make_post_processor(vocabulary, kind.adds_bos), byte_level(true),
      make_model(nullptr, false, false, kind.ignore_merges, make_vocabulary(vocabulary), std::move(merges)));
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

ordered_json make_sentencepiece_file(GgufVocabulary vocabulary) {
  const bool prefix = vocabulary.add_space_prefix.value_or(true);
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    std::string& token = vocabulary.tokens[id];
    if (type_of(vocabulary, id) != kUserDefined || token.find(' ') == std::string::npos) continue;
    // llama.cpp's converter writes the spaces of these tokens as spaces, unlike the vocabulary's own spelling.
    if (prefix) {
      throw std::runtime_error(vocabulary.where + ": the user-defined token " + std::to_string(id) +
                               " has a space, which pare does not support together with add_space_prefix");
    }
    token = with_marks_for_spaces(token);
  }
  for (const double score : vocabulary.scores) {
    if (!(score == score)) throw std::runtime_error(vocabulary.where + ": tokenizer.ggml.scores has a NaN");
  }
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
  ordered_json entries = make_vocabulary(vocabulary);  // first, since it refuses tokens that stand twice
  return make_file(make_added_tokens(vocabulary, true), normalizer, nullptr, make_post_processor(vocabulary, true),
                   {{"type", "Sequence"}, {"decoders", decoders}},
                   make_model(unk_token, true, true, false, std::move(entries), merges_from_scores(vocabulary)));
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
    // llama.cpp has other rules under that name.
    if (name != "default") names.emplace_back(name);
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
  if (vocabulary.model != "gpt2" && vocabulary.model != "llama") {
    throw std::runtime_error(vocabulary.where + ": pare does not know the tokenizer model '" + vocabulary.model +
                             "' (tokenizer.ggml.model); it knows gpt2 (byte-level BPE) and llama (SentencePiece BPE)");
  }
  check_lists(vocabulary);
  return json_text(
             (vocabulary.model == "gpt2" ? make_byte_level_file(vocabulary) : make_sentencepiece_file(vocabulary))) +
         "\n";
}

}  // namespace pare::runtime
