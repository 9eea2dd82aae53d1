#include "runtime/tokenizer/tokenizer_class.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace pare::runtime {
namespace {

using nlohmann::json;

constexpr const char* kMark = "\u2581";  // stands for a space in SentencePiece's vocabularies

bool truthy(const json& config, const char* key, bool otherwise) {
  return config.contains(key) && config[key].is_boolean() ? config[key].get<bool>() : otherwise;
}

std::string text_or_empty(const json& object, const char* key) {
  return object.is_object() && object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
}

json byte_level(bool add_prefix_space, bool use_regex) {
  return {
      {"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

json sequence(const char* key, json items) {
  return {{"type", "Sequence"}, {key, std::move(items)}};
}

json replace(const char* found, const char* content) {
  return {{"type", "Replace"}, {"pattern", {{"String", found}}}, {"content", content}};
}

json split_at(const char* regex) {
  return {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
}

json metaspace(const char* scheme, bool split) {
  return {{"type", "Metaspace"}, {"replacement", kMark}, {"prepend_scheme", scheme}, {"split", split}};
}

// Keeps vocabulary and merges.
void set_bpe(json& file, const json& unk_token, bool fuse_unk, bool byte_fallback) {
  json& model = file["model"];
  model["type"] = "BPE";
  model["unk_token"] = unk_token;
  model["fuse_unk"] = fuse_unk;
  model["byte_fallback"] = byte_fallback;
  model["ignore_merges"] = false;
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) model[key] = nullptr;
}

void set_parts(json& file, json normalizer, json pre_tokenizer, json decoder) {
  file["normalizer"] = std::move(normalizer);
  file["pre_tokenizer"] = std::move(pre_tokenizer);
  file["decoder"] = std::move(decoder);
}

// The package looks the unknown token up when it meets an unknown character; with all bytes it meets none.
json unk_if_there(const json& file, const std::string& unk_token) {
  return file["model"]["vocab"].contains(unk_token) ? json(unk_token) : json();
}

json sentencepiece_decoders() {
  return {replace(kMark, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
}

const json kStripOne = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};

void build_llama(const json& config, const std::string&, json& file) {
  const bool prefix = truthy(config, "add_prefix_space", true);
  set_bpe(file, nullptr, true, true);
  json decoders = sentencepiece_decoders();
  if (prefix) decoders.push_back(kStripOne);
  const char* scheme = !prefix ? "never" : truthy(config, "legacy", false) ? "always" : "first";
  set_parts(file, nullptr, metaspace(scheme, false), sequence("decoders", decoders));
}

void build_code_llama(const json& config, const std::string& unk_token, json& file) {
  set_bpe(file, unk_if_there(file, unk_token), true, true);
  json decoders = sentencepiece_decoders();
  decoders.push_back(kStripOne);
  set_parts(file, nullptr, metaspace(truthy(config, "add_prefix_space", true) ? "first" : "never", false),
            sequence("decoders", decoders));
}

void build_gemma(const json&, const std::string& unk_token, json& file) {
  set_bpe(file, unk_if_there(file, unk_token), true, true);
  const json split = {
      {"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "MergedWithPrevious"}, {"invert", false}};
  set_parts(file, replace(" ", kMark), split, sequence("decoders", sentencepiece_decoders()));
}

void build_gpt2(const json& config, const std::string&, json& file) {
  set_bpe(file, nullptr, false, false);
  set_parts(file, nullptr, byte_level(truthy(config, "add_prefix_space", false), true), byte_level(true, true));
}

void build_neox(const json& config, const std::string&, json& file) {
  set_bpe(file, nullptr, false, false);
  set_parts(file, {{"type", "NFC"}}, byte_level(truthy(config, "add_prefix_space", false), true),
            byte_level(true, true));
}

void build_cohere(const json& config, const std::string&, json& file) {
  set_bpe(file, nullptr, false, false);
  const bool prefix = truthy(config, "add_prefix_space", false);
  const json digits = {{"type", "Digits"}, {"individual_digits", true}};
  set_parts(file, {{"type", "NFC"}}, sequence("pretokenizers", {digits, byte_level(prefix, true)}),
            byte_level(true, true));
}

void build_qwen(const json& config, const char* pattern, json& file) {
  set_bpe(file, nullptr, false, false);
  const bool prefix = truthy(config, "add_prefix_space", false);
  set_parts(file, {{"type", "NFC"}}, sequence("pretokenizers", {split_at(pattern), byte_level(prefix, false)}),
            byte_level(true, true));
}

void build_qwen2(const json& config, const std::string&, json& file) {
  build_qwen(config,
             R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
             R"(|\s+(?!\S)|\s+)",
             file);
}

void build_qwen3_5(const json& config, const std::string&, json& file) {
  build_qwen(config,
             R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)"
             R"(|\s*[\r\n]+|\s+(?!\S)|\s+)",
             file);
}

void build_bert(const json& config, const std::string& unk_token, json& file) {
  json& model = file["model"];
  model["type"] = "WordPiece";
  model["unk_token"] = unk_token;
  model["continuing_subword_prefix"] = "##";
  model["max_input_chars_per_word"] = 100;
  const json accents = config.contains("strip_accents") ? config["strip_accents"] : json();
  set_parts(file,
            {{"type", "BertNormalizer"},
             {"clean_text", true},
             {"handle_chinese_chars", truthy(config, "tokenize_chinese_chars", true)},
             {"strip_accents", accents},
             {"lowercase", truthy(config, "do_lower_case", true)}},
            {{"type", "BertPreTokenizer"}}, {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}});
}

// Returns the file's Precompiled normalizers, which a class of SentencePiece's models takes over.
json precompiled_of(const json& normalizer) {
  if (!normalizer.is_object()) return nullptr;
  if (text_or_empty(normalizer, "type") == "Precompiled") return normalizer;
  if (text_or_empty(normalizer, "type") != "Sequence" || !normalizer.contains("normalizers")) return nullptr;
  for (const json& step : normalizer["normalizers"]) {
    if (text_or_empty(step, "type") == "Precompiled") return step;
  }
  return nullptr;
}

void set_unigram(json& file, int unk_id, bool add_prefix_space, const json& normalizer) {
  json& model = file["model"];
  model["unk_id"] = unk_id;
  model["byte_fallback"] = false;
  const json marks = metaspace(add_prefix_space ? "always" : "never", true);
  set_parts(file, normalizer, sequence("pretokenizers", {{{"type", "WhitespaceSplit"}}, marks}), marks);
}

json normalizer_of(const json& file) {
  return file.contains("normalizer") ? file["normalizer"] : json();
}

void build_t5(const json&, const std::string&, json& file) {
  set_unigram(file, 2, true, precompiled_of(normalizer_of(file)));
}

void build_xlm_roberta(const json& config, const std::string&, json& file) {
  set_unigram(file, 3, truthy(config, "add_prefix_space", true), precompiled_of(normalizer_of(file)));
}

void build_albert(const json& config, const std::string&, json& file) {
  json steps = {replace("``", "\""), replace("''", "\"")};
  if (!truthy(config, "keep_accents", false)) {
    steps.push_back({{"type", "NFKD"}});
    steps.push_back({{"type", "StripAccents"}});
  }
  if (truthy(config, "do_lower_case", true)) steps.push_back({{"type", "Lowercase"}});
  if (const json charsmap = precompiled_of(normalizer_of(file)); !charsmap.is_null()) steps.push_back(charsmap);
  set_unigram(file, 1, truthy(config, "add_prefix_space", true), sequence("normalizers", steps));
}

const std::vector<TokenizerClass>& classes() {
  using enum AroundText;
  const std::vector<std::pair<std::string_view, std::string_view>> end_of_text = {
      {"bos_token", "<|endoftext|>"}, {"eos_token", "<|endoftext|>"}, {"unk_token", "<|endoftext|>"}};
  const std::vector<std::pair<std::string_view, std::string_view>> roberta = {
      {"bos_token", "<s>"},   {"eos_token", "</s>"}, {"unk_token", "<unk>"},  {"sep_token", "</s>"},
      {"pad_token", "<pad>"}, {"cls_token", "<s>"},  {"mask_token", "<mask>"}};
  auto neox = end_of_text, qwen = end_of_text;
  neox.emplace_back("pad_token", "<|padding|>");
  qwen.front() = {"pad_token", "<|endoftext|>"};
  static const std::vector<TokenizerClass> kClasses = {
      {"LlamaTokenizer",
       "BPE",
       false,
       {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}},
       from_file,
       AddAgain::no,
       false,
       false,
       {},
       build_llama},
      {"CodeLlamaTokenizer",
       "BPE",
       false,
       {{"bos_token", "<s>"},
        {"eos_token", "</s>"},
        {"unk_token", "<unk>"},
        {"prefix_token", "\u2581<PRE>"},
        {"middle_token", "\u2581<MID>"},
        {"suffix_token", "\u2581<SUF>"},
        {"eot_token", "\u2581<EOT>"},
        {"fill_token", "<FILL_ME>"}},
       bos,
       AddAgain::no,
       false,
       false,
       {},
       build_code_llama},
      {"GemmaTokenizer",
       "BPE",
       false,
       {{"bos_token", "<bos>"},
        {"eos_token", "<eos>"},
        {"unk_token", "<unk>"},
        {"pad_token", "<pad>"},
        {"mask_token", "<mask>"}},
       from_file,
       AddAgain::no,
       false,
       false,
       {},
       build_gemma},
      {"GPT2Tokenizer", "BPE", true, end_of_text, from_file, AddAgain::no, false, false, {}, build_gpt2},
      {"GPTNeoXTokenizer", "BPE", true, neox, nothing, AddAgain::no, false, false, {}, build_neox},
      {"Qwen2Tokenizer", "BPE", true, qwen, from_file, AddAgain::without_flags, false, false, {}, build_qwen2},
      {"Qwen3_5Tokenizer", "BPE", true, qwen, from_file, AddAgain::no, false, false, {}, build_qwen3_5},
      {"CohereTokenizer",
       "BPE",
       true,
       {{"bos_token", "<BOS_TOKEN>"},
        {"eos_token", "<|END_OF_TURN_TOKEN|>"},
        {"unk_token", "<UNK>"},
        {"sep_token", "<SEP>"},
        {"pad_token", "<PAD>"},
        {"cls_token", "<CLS>"},
        {"mask_token", "<MASK_TOKEN>"}},
       from_file,
       AddAgain::as_special,
       false,
       false,
       {},
       build_cohere},
      {"BertTokenizer",
       "WordPiece",
       false,
       {{"unk_token", "[UNK]"},
        {"sep_token", "[SEP]"},
        {"pad_token", "[PAD]"},
        {"cls_token", "[CLS]"},
        {"mask_token", "[MASK]"}},
       cls_sep,
       AddAgain::no,
       false,
       false,
       {2, 3},
       build_bert},
      {"MPNetTokenizer",
       "WordPiece",
       false,
       {{"bos_token", "<s>"},
        {"eos_token", "</s>"},
        {"unk_token", "[UNK]"},
        {"sep_token", "</s>"},
        {"pad_token", "<pad>"},
        {"cls_token", "<s>"},
        {"mask_token", "<mask>"}},
       cls_sep,
       AddAgain::no,
       false,
       true,
       {0, 2},
       build_bert},
      {"RobertaTokenizer", "BPE", true, roberta, cls_sep, AddAgain::no, false, false, {}, build_gpt2},
      {"XLMRobertaTokenizer", "Unigram", false, roberta, bos_eos, AddAgain::no, false, false, {}, build_xlm_roberta},
      {"T5Tokenizer",
       "Unigram",
       false,
       {{"eos_token", "</s>"}, {"unk_token", "<unk>"}, {"pad_token", "<pad>"}},
       eos,
       AddAgain::no,
       true,
       false,
       {},
       build_t5},
      {"AlbertTokenizer",
       "Unigram",
       false,
       {{"bos_token", "[CLS]"},
        {"eos_token", "[SEP]"},
        {"unk_token", "<unk>"},
        {"sep_token", "[SEP]"},
        {"pad_token", "<pad>"},
        {"cls_token", "[CLS]"},
        {"mask_token", "[MASK]"}},
       from_file_or_cls_sep,
       AddAgain::no,
       false,
       false,
       {},
       build_albert},
  };
  return kClasses;
}

std::string without_fast(std::string name) {
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  return name;
}

std::string class_name(const json& config, const json& model_config) {
  const std::string of_folder = without_fast(text_or_empty(config, "tokenizer_class"));
  const std::string model_type = text_or_empty(model_config, "model_type");
  const auto* row = std::find_if(kModelTypeClasses.data(), kModelTypeClasses.data() + kModelTypeClasses.size(),
                                 [&](const ModelTypeClass& candidate) { return candidate.model_type == model_type; });
  const bool has_row = row != kModelTypeClasses.data() + kModelTypeClasses.size();
  const std::string named =
      of_folder.empty() ? without_fast(text_or_empty(model_config, "tokenizer_class")) : of_folder;
  if (named.empty()) return has_row ? std::string(row->tokenizer_class) : "";
  const bool has_code_of_its_own = config.is_object() && config.contains("auto_map");
  if (has_code_of_its_own || !has_row || row->tokenizer_class == named) return named;
  constexpr std::string_view kAsItIs = "TokenizersBackend";
  return row->tokenizer_class == kAsItIs || row->decides ? std::string(row->tokenizer_class) : named;
}

bool has_byte_level(const json& part) {
  if (part.is_object() && text_or_empty(part, "type") == "ByteLevel") return true;
  return (part.is_object() || part.is_array()) &&
         std::any_of(part.begin(), part.end(), [](const json& inner) { return has_byte_level(inner); });
}

}  // namespace

const TokenizerClass* named_tokenizer_class(const json& config, const json& model_config) {
  const std::string name = class_name(config, model_config);
  const auto found = std::find_if(classes().begin(), classes().end(),
                                  [&](const TokenizerClass& candidate) { return candidate.name == name; });
  return found == classes().end() ? nullptr : &*found;
}

bool fits(const TokenizerClass& of_class, const json& file) {
  if (!file.is_object() || !file.contains("model")) return false;
  const json& model = file["model"];
  std::string model_name = text_or_empty(model, "type");
  if (model_name.empty() && model.is_object()) model_name = model.contains("merges") ? "BPE" : "";
  const bool bytes = file.contains("pre_tokenizer") && has_byte_level(file["pre_tokenizer"]);
  return model_name == of_class.model && bytes == of_class.byte_level && model.contains("vocab");
}

}  // namespace pare::runtime
