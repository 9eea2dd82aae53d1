#include "runtime/tokenizer/gguf_pre_tokenizers.h"

namespace pare::runtime {
namespace {

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

// Digits in threes from the right, and then the scripts that are written without spaces.
constexpr std::string_view kThreesFromTheRight = R"(\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N})))";
constexpr std::string_view kAfmoeScripts =
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+";

}  // namespace

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
  constexpr PreTokenizerKind kSuper = {R"((?=(\d{3})+(?!\d)))", false, false, false, false, {R"(\p{N}+)"}};
  constexpr PreTokenizerKind kAfmoe = {
      kDeepseek3Pattern, false, false, false, false, {kThreesFromTheRight, kAfmoeScripts}};
  constexpr PreTokenizerKind kChameleon = {"",
                                           false,
                                           false,
                                           false,
                                           true,
                                           {"<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                                            R"([\t\n]|    |  )", R"(\p{N})", R"([\p{P}!-/:-@\[-`{-~])"}};
  constexpr PreTokenizerKind kGraniteEmbedding = {kGpt4oPattern, false, false, true};
  constexpr PreTokenizerKind kRaw = {"", false, false, false, false, {}, false, true};
  static const std::vector<std::pair<std::string_view, PreTokenizerKind>> kKnown = {
      {"default", kGpt2},
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
      {"poro-chat", kBloom},
      {"superbpe", kSuper},
      {"afmoe", kAfmoe},
      {"chameleon", kChameleon},
      {"roberta-bpe", kGpt2},
      {"jina-v1-en", kGpt2},
      {"jina-v2-code", kGpt2},
      {"granite-embed-multi-97m", kGraniteEmbedding},
      {"granite-embed-multi-311m", kRaw},
      {"gemma4", kRaw},
      {"sarvam-moe", kRaw}};
  return kKnown;
}

}  // namespace pare::runtime
