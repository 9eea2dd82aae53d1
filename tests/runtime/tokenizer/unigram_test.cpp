// Unigram models and what stands around them, compared with the `tokenizers` package.
#include "runtime/tokenizer/unigram.h"

#include <gtest/gtest.h>

#include <map>

#include "runtime/text/charsmap.h"
#include "runtime/text/unicode.h"
#include "runtime/tokenizer/bpe.h"
#include "tests/expect_error.h"
#include "tests/runtime/tokenizer/tokenizer_oracle.h"

namespace pare {
using namespace runtime;
namespace {

using nlohmann::json;

json piece(const std::string& text, double score) {
  return json::array({text, score});
}

// Pieces of random scores over a small alphabet, so that ways to cut a text compete.
json unigram_model(int seed, bool byte_fallback, bool all_bytes) {
  std::mt19937 generator(static_cast<unsigned>(seed));
  const auto score = [&] { return -1.0 - static_cast<double>(generator() % 1000) / 100.0; };
  json pieces = json::array({piece("<unk>", 0.0), piece("</s>", 0.0)});
  std::vector<std::string> texts = {"\u2581", "a", "b", "\u00e9", "1", ".", "\u4F60", "fi", "e"};
  const std::vector<std::string> parts = {"\u2581", "a", "b", "1", "\u00e9", "e", "\u4F60"};
  while (texts.size() < 60) {
    std::string text;
    for (size_t n = 2 + generator() % 3; n > 0; --n) text += parts[generator() % parts.size()];
    if (std::find(texts.begin(), texts.end(), text) == texts.end()) texts.push_back(text);
  }
  texts.push_back("\U0001F600x");  // no part of it is a piece: found only where unknown characters are joined
  for (const std::string& text : texts) pieces.push_back(piece(text, score()));
  for (int byte = 0; byte < 256; ++byte) {
    constexpr const char* kDigits = "0123456789ABCDEF";
    if (!all_bytes && byte == 0x9F) continue;  // of an emoji
    pieces.push_back(piece(std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">", 0.0));
  }
  return {{"type", "Unigram"}, {"unk_id", 0}, {"byte_fallback", byte_fallback}, {"vocab", pieces}};
}

std::vector<std::string> random_texts(unsigned seed) {
  std::vector<std::string> texts = awkward_texts(400, {"aab", "b\u00e9", "ab1", "\U0001F600x", "\uFB01", "</s>"});
  std::mt19937 generator(seed);
  const std::vector<std::pair<char32_t, char32_t>> ranges = {
      {0x20, 0x7F},     {0xA0, 0x180},    {0x300, 0x370},   {0x370, 0x600},     {0x900, 0xA00},
      {0x1E00, 0x2200}, {0x2460, 0x2500}, {0x3040, 0x3100}, {0x3200, 0x3400},   {0xAC00, 0xAD00},
      {0xF900, 0xFAFF}, {0xFB00, 0xFB50}, {0xFF00, 0xFFEF}, {0x1D400, 0x1D800}, {0x1F100, 0x1F700}};
  for (int i = 0; i < 400; ++i) {
    std::string text;
    for (size_t n = 1 + generator() % 14; n > 0; --n) {
      const auto& [first, last] = ranges[generator() % ranges.size()];
      utf8_append(first + static_cast<char32_t>(generator() % (last - first)), text);
    }
    texts.push_back(text);
  }
  return texts;
}

void expect_as_package(const json& file, unsigned seed) {
  SCOPED_TRACE(
      json({file["normalizer"].is_object() ? file["normalizer"]["type"] : json(), file["pre_tokenizer"]}).dump());
  const TemporaryFolder folder;
  write_file_atomically(folder.path() / "tokenizer.json", file.dump());
  const auto texts = random_texts(seed);
  expect_as_oracle(Tokenizer::open(folder.path()), ask_oracle("encode", folder.path() / "tokenizer.json", texts),
                   texts);
}

json file_with(json model) {
  const json marks = {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}, {"split", true}};
  return {{"version", "1.0"},          {"truncation", nullptr},
          {"padding", nullptr},        {"added_tokens", json::array()},
          {"normalizer", nullptr},     {"pre_tokenizer", marks},
          {"post_processor", nullptr}, {"decoder", marks},
          {"model", std::move(model)}};
}

TEST(Unigram, EqualsThePackageWhateverTheScores) {
  for (int seed = 0; seed < 6; ++seed) {
    expect_as_package(file_with(unigram_model(seed, seed % 2 == 0, seed % 3 != 0)), static_cast<unsigned>(seed));
  }
}

TEST(Unigram, ATextWithoutSplitsEqualsThePackages) {
  json file = file_with(unigram_model(7, true, true));
  file["pre_tokenizer"] = nullptr;
  expect_as_package(file, 7);
}

TEST(Unigram, NormalizersEqualThePackages) {
  const auto one = [](const char* type) -> json { return {{"type", type}}; };
  const json strip = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", false}};
  const json steps = {one("NFKD"), one("StripAccents"), one("Lowercase"), strip};
  for (const json& normalizer : {one("NFC"), one("NFD"), one("NFKC"), one("NFKD"), one("Lowercase"),
                                 one("StripAccents"), strip, json({{"type", "Sequence"}, {"normalizers", steps}})}) {
    json file = file_with(unigram_model(1, true, true));
    file["normalizer"] = normalizer;
    expect_as_package(file, 11);
  }
}

TEST(Unigram, PreTokenizersEqualThePackages) {
  const auto one = [](const char* type) -> json { return {{"type", type}}; };
  const json delimiter = {{"type", "CharDelimiterSplit"}, {"delimiter", "a"}};
  json parts = {one("WhitespaceSplit"), one("Whitespace"), delimiter};
  for (const char* behavior : {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"}) {
    parts.push_back({{"type", "Punctuation"}, {"behavior", behavior}});
  }
  for (const json& part : parts) {
    json file = file_with(unigram_model(2, true, true));
    file["pre_tokenizer"] = part;
    expect_as_package(file, 13);
  }
}

// Falcon's file: digits and triples of them are cut out of the characters that ByteLevel has made of bytes.
TEST(Unigram, SplitsAfterByteLevelEqualThePackages) {
  json vocabulary = json::object();
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary[bytes_to_characters(std::string(1, static_cast<char>(byte)))] = byte;
  }
  vocabulary["12"] = 256;
  vocabulary["\u0120a"] = 257;
  json file = file_with({{"type", "BPE"},
                         {"vocab", vocabulary},
                         {"merges", json::array({json::array({"1", "2"}), json::array({"\u0120", "a"})})}});
  const json digits = {
      {"type", "Split"}, {"pattern", {{"Regex", "[0-9][0-9][0-9]"}}}, {"behavior", "Isolated"}, {"invert", false}};
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  file["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers",
                            {{{"type", "Punctuation"}, {"behavior", "Contiguous"}},
                             byte_level,
                             {{"type", "Digits"}, {"individual_digits", false}},
                             digits}}};
  file["decoder"] = byte_level;
  expect_as_package(file, 17);
  const json marks = {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}};
  file["pre_tokenizer"]["pretokenizers"].push_back(marks);
  const Tokenizer tokenizer = Tokenizer::parse(file.dump(), "t.json");
  expect_error<std::runtime_error>([&] { tokenizer.encode("a", false); }, {"after ByteLevel", "no bytes"});
}

TEST(Unigram, RobertasAndBertsPostProcessorsEqualThePackages) {
  for (const char* type : {"RobertaProcessing", "BertProcessing"}) {
    json file = file_with(unigram_model(3, true, true));
    file["post_processor"] = {{"type", type}, {"sep", json::array({"</s>", 1})}, {"cls", json::array({"a", 3})}};
    if (type[0] == 'R') file["post_processor"].update({{"trim_offsets", true}, {"add_prefix_space", false}});
    expect_as_package(file, 19);
  }
}

// A table of SentencePiece's kind: the tree in a double array, here of one unit for each byte of a key, at places that
// the key's bytes choose. Keys must not collide, which single characters of two bytes do not.
std::string charsmap(const std::vector<std::pair<std::string, std::string>>& rows) {
  std::vector<uint32_t> units(1 << 16, 0);
  std::string texts;
  // The unit at `base` ^ byte has the byte as its label and leads to the next base; a leaf's value lies at its base.
  uint32_t next_base = 0x200;
  std::map<std::string, uint32_t> bases = {{"", 0x100}};
  units[0] = 0x100u << 10;
  for (const auto& [key, text] : rows) {
    for (size_t i = 0; i < key.size(); ++i) {
      const uint32_t base = bases.at(key.substr(0, i));
      const uint32_t at = base ^ static_cast<unsigned char>(key[i]);
      const auto [entry, inserted] = bases.emplace(key.substr(0, i + 1), next_base);
      if (inserted) {
        next_base += 0x100;
        units[at] = (at ^ entry->second) << 10 | static_cast<unsigned char>(key[i]);
      }
    }
    const uint32_t last = bases.at(key.substr(0, key.size() - 1)) ^ static_cast<unsigned char>(key.back());
    units[last] |= 1u << 8;
    units[bases.at(key)] = static_cast<uint32_t>(texts.size()) | 1u << 31;
    texts += text;
    texts.push_back('\0');
  }
  std::string bytes;
  const auto append = [&](uint32_t word) {
    for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(word >> (8 * i) & 0xFF));
  };
  append(static_cast<uint32_t>(units.size() * 4));
  for (const uint32_t unit : units) append(unit);
  bytes += texts;
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string base64;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t three = 0;
    for (size_t i = 0; i < 3; ++i) {
      three = three << 8 | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0u);
    }
    for (size_t i = 0; i < 4; ++i) base64 += at + i > bytes.size() ? '=' : kDigits[three >> (18 - 6 * i) & 63];
  }
  return base64;
}

TEST(Unigram, SentencePiecesTableEqualsThePackages) {
  const std::string table = charsmap({{"\u00e9", "e"},
                                      {"\uFB01", "fi"},
                                      {"e\u0301", "\u00e9"},
                                      {"\u2460", "1"},
                                      {"\t", " "},
                                      {"\u3000", " "},
                                      {"\u200B", ""},
                                      {"b", "a"},
                                      {"\r", "\n"}});
  json file = file_with(unigram_model(4, true, true));
  file["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", table}};
  expect_as_package(file, 23);
  const Charsmap map(table, "t");
  // The package takes the shortest entry that a grapheme begins with, and drops the rest of it.
  EXPECT_EQ(map.apply("b\u0301"), "a");
  EXPECT_EQ(map.apply("xe\u0301\uFB01\u200B."), "x\u00e9fi.");
}

TEST(Unigram, DamagedModelsAndTablesAreRefusedWithTheirPlace) {
  const auto refused = [](const json& changes, std::initializer_list<std::string> parts) {
    json file = file_with(unigram_model(5, true, true));
    file.merge_patch(changes);
    expect_error<std::runtime_error>([&] { Tokenizer::parse(file.dump(), "t.json"); }, parts);
  };
  const json letters = json::array({piece("a", -1.0), piece("b", -2.0)});
  refused({{"model", {{"vocab", json::array()}}}}, {"t.json.model", "empty"});
  refused({{"model", {{"vocab", json::array({json::array({"a", "b"})})}}}}, {"vocab[0]", "a piece and its score"});
  refused({{"model", {{"vocab", json::array({piece("a", 1.0), piece("a", 2.0)})}}}}, {"pieces 0 and 1", "'a'"});
  refused({{"model", {{"vocab", json::array({piece(std::string(2000, 'a'), 1.0)})}}}}, {"2000 bytes"});
  refused({{"model", {{"vocab", letters}, {"unk_id", 2}}}}, {"unk_id", "2 pieces", "found 2"});
  refused({{"normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "!"}}}}, {"charsmap", "base64"});
  refused({{"normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "AAAA"}}}}, {"charsmap", "a table"});
  json none = file_with({{"type", "Unigram"}, {"vocab", letters}});
  const Tokenizer tokenizer = Tokenizer::parse(none.dump(), "t.json");
  expect_error<std::runtime_error>([&] { tokenizer.encode("a", false); }, {"'\u2581'", "no unk_id"});
}

TEST(Unigram, LongTextsAreLinear) {
  const Tokenizer tokenizer = Tokenizer::parse(file_with(unigram_model(6, true, true)).dump(), "t.json");
  const std::string text(2'000'000, 'a');
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false), false), text);
}

// 200,000 regional indicators without an end: two of them are one grapheme.
TEST(Unigram, RunsOfFlagsAreLinear) {
  const Charsmap map(charsmap({{"b", "a"}}), "t");
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += "\U0001F1E9\U0001F1EA";
  EXPECT_EQ(map.apply(text + "b"), text + "a");
}

}  // namespace
}  // namespace pare
