// The parts of a tokenizer: normalization form C, expressions, splits, added tokens, decoders, and harmful files.
#include <gtest/gtest.h>

#include "runtime/text/nfc_tables.h"
#include "runtime/text/regex.h"
#include "runtime/text/unicode.h"
#include "runtime/tokenizer/pre_tokenizer.h"
#include "tests/expect_error.h"
#include "tests/runtime/tokenizer/tokenizer_oracle.h"

namespace pare {
using namespace runtime;
namespace {

using nlohmann::json;

std::string utf8(std::initializer_list<char32_t> code_points) {
  std::string text;
  for (const char32_t c : code_points) utf8_append(c, text);
  return text;
}

TEST(Unicode, NormalizationEqualsPythonsForEveryCharacterItConcerns) {
  std::vector<char32_t> characters = {U'a', U'o', 0x1100, 0x1161, 0x11A7, 0x11A8, 0x11C2, 0xAC00, 0xAC01, 0xD7A3};
  for (const auto& row : nfc::kDecompositions) characters.push_back(row.code_point);
  for (const auto& row : nfc::kCompositions) characters.push_back(row.second);
  for (const auto& range : nfc::kCombiningClasses) characters.push_back(range.first);
  std::vector<std::string> texts;
  std::mt19937 generator(3);
  const auto any = [&] { return characters[generator() % characters.size()]; };
  for (const char32_t c : characters) {
    texts.push_back(utf8({c}));
    texts.push_back(utf8({U'e', c, 0x0323, any(), 0x0301, c}));
    texts.push_back(utf8({any(), any(), any(), any()}));
  }
  for (const auto& row : nfc::kCompositions) texts.push_back(utf8({row.first, 0x0316, row.second, row.second}));
  const json expected = ask_oracle("nfc", "", texts);
  for (size_t i = 0; i < texts.size(); ++i)
    ASSERT_EQ(normalize_nfc(texts[i]), expected[i].get<std::string>()) << json(texts[i]).dump(-1, ' ', true);
}

TEST(Unicode, IllFormedPartsAreFoundAndReplaced) {
  EXPECT_EQ(find_invalid_utf8("a\u00e9\u4f60\U0001F600"), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("a\xF4\x90\x80\x80"), 1u);  // beyond U+10FFFF
  // The examples of Unicode 15, tables 3-8 to 3-11.
  EXPECT_EQ(utf8_with_replacements("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(utf8_with_replacements("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(utf8_with_replacements("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA\uFFFD\uFFFDB");
  EXPECT_EQ(utf8_with_replacements("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), "\uFFFD\uFFFD\uFFFD\uFFFDA");
}

std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  std::vector<std::string> found;
  Regex(pattern, "test").for_each_match(text, [&](size_t begin, size_t end) {
    found.push_back(text.substr(begin, end - begin));
  });
  return found;
}

bool has_match(const Regex& regex, const std::string& text) {
  bool found = false;
  regex.for_each_match(text, [&](size_t, size_t) { found = true; });
  return found;
}

TEST(Regex, WhiteSpaceIsOnigurumas) {
  const Regex space("\\s", "test"), other("\\S", "test"), in_class("[\\sx]", "test"), not_in_class("[^\\sx]", "test");
  for (char32_t c = 0; c < 0x10000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    const std::string character = utf8({c});
    const bool expected = is_white_space(c);
    ASSERT_EQ(has_match(space, character), expected) << static_cast<uint32_t>(c);
    ASSERT_EQ(has_match(other, character), !expected) << static_cast<uint32_t>(c);
    ASSERT_EQ(has_match(in_class, character), expected || c == U'x') << static_cast<uint32_t>(c);
    ASSERT_EQ(has_match(not_in_class, character), !expected && c != U'x') << static_cast<uint32_t>(c);
  }
  EXPECT_FALSE(has_match(space, "\u180E"));  // PCRE2's own \s matches it
}

TEST(Regex, EmptyMatchesDoNotFollowAMatch) {
  EXPECT_EQ(matches("a*", "baac"), (std::vector<std::string>{"", "aa", ""}));
  EXPECT_EQ(matches("x*", "\u00e9"), (std::vector<std::string>{"", ""}));
}

// A word has letters, marks, decimal digits and connectors. PCRE2's own \b knows no marks.
TEST(Regex, WordsEndWhereOnigurumasDo) {
  EXPECT_EQ(matches("\\bab\\b", "ab cab ab_ ab\u0301 (ab) ab"), (std::vector<std::string>{"ab", "ab", "ab"}));
  EXPECT_EQ(matches("\\w+", "a\u00b2 \u00bc \u2074 \u2460x"), (std::vector<std::string>{"a\u00b2", "\u00bc", "x"}));
  EXPECT_EQ(matches("\\Bab", "ab cab _ab \u0915ab -ab"), (std::vector<std::string>{"ab", "ab", "ab"}));
  EXPECT_EQ(matches("\\d{1,3}(?=(?:\\d{3})*\\b)", "1234567 12 34x"),
            (std::vector<std::string>{"1", "234", "567", "12"}));
}

TEST(Regex, ConstructsOfAnotherMeaningAreRefusedByName) {
  const auto refused = [](const std::string& pattern, const std::string& construct) {
    expect_error<std::runtime_error>([&] { Regex(pattern, "file.pattern"); }, {"file.pattern", pattern, construct});
  };
  refused("(a)\\1", "'\\1'");
  refused("\\h+", "'\\h'");
  refused("a\\R", "'\\R'");
  refused("\\X", "'\\X'");
  refused("\\p{Emoji}", "'Emoji'");
  refused("\\pL", "'\\p'");
  refused("[a-z&&[^b]]", "'&&'");
  refused("[a[bc]]", "'['");
  refused("[]a]", "']'");
  refused("[\\S]", "'\\S'");
  refused("[a-\\d]", "a range that ends in a set");
  refused("(?<name>a)", "'(?<n'");
  refused("(?i)a|b", "'(?i)'");
  refused("(?m:.)", "'(?m:'");
  refused("a{,3}", "'{'");
  refused("a{1,3}+", "'{n,m}+'");
  refused("a{3}?", "'{n}?'");
  refused("\\xFF", "'\\x'");
  refused("[abc", "not closed");
  refused("a\\", "'\\'");
  expect_error<std::runtime_error>([] { Regex("(a", "file"); }, {"file", "not valid", "parenthes"});
  expect_error<std::runtime_error>([] { Regex("", "file"); }, {"0 bytes"});
}

// The longest run of spaces that one step for each may end in: of Llama 3's expression, `\\s*[\\r\\n]+` tries each.
TEST(Regex, LongRunsEndInAMatch) {
  const std::string spaces(3'000'000, ' ');
  size_t end = 0;
  Regex(R"(\s*[\r\n]+|\s+(?!\S)|\s+)", "llama3").for_each_match(spaces, [&](size_t, size_t to) { end = to; });
  EXPECT_EQ(end, spaces.size());
}

TEST(Regex, RunawayMatchesEndInAnError) {
  const std::string text(50000, 'a');
  for (const std::string pattern : {"(a+)+[bc]", "(a|aa)+[bc]", "(?:a?a?){40}[bc]"}) {
    expect_error<std::runtime_error>([&] { matches(pattern, text); }, {"cannot be matched at byte 0", "limit"});
  }
}

std::vector<std::string> pieces(const PreTokenizer& pre_tokenizer, const std::string& text) {
  std::vector<std::string> found;
  pre_tokenizer.run({text, true}, [&](const Piece& piece) { found.emplace_back(piece.text); });
  return found;
}

// The examples are those of the `tokenizers` package's documentation (SplitDelimiterBehavior).
TEST(PreTokenizer, DelimitersBehaveAsDocumented) {
  const auto split = [](SplitBehavior behavior, bool as_regex) {
    PreTokenizer pre_tokenizer;
    if (as_regex) {
      pre_tokenizer.add(Split{Regex("-", "test"), behavior, false});
    } else {
      pre_tokenizer.add(Split{std::string("-"), behavior, false});
    }
    return pieces(pre_tokenizer, "the-final--countdown");
  };
  using Pieces = std::vector<std::string>;
  for (const bool as_regex : {false, true}) {
    EXPECT_EQ(split(SplitBehavior::removed, as_regex), (Pieces{"the", "final", "countdown"}));
    EXPECT_EQ(split(SplitBehavior::isolated, as_regex), (Pieces{"the", "-", "final", "-", "-", "countdown"}));
    EXPECT_EQ(split(SplitBehavior::merged_with_previous, as_regex), (Pieces{"the-", "final-", "-", "countdown"}));
    EXPECT_EQ(split(SplitBehavior::merged_with_next, as_regex), (Pieces{"the", "-final", "-", "-countdown"}));
    EXPECT_EQ(split(SplitBehavior::contiguous, as_regex), (Pieces{"the", "-", "final", "--", "countdown"}));
  }
}

// Returns a small vocabulary in which any two neighbours merge, so that ids show where a text was split.
json small_model(const std::string& characters) {
  json vocabulary = {{"<unk>", 0}}, merges = json::array();
  std::vector<std::string> singles;
  for (size_t i = 0; i < characters.size(); i += utf8_length(characters[i]))
    singles.push_back(characters.substr(i, utf8_length(characters[i])));
  for (const auto& single : singles) vocabulary[single] = vocabulary.size();
  for (const auto& left : singles) {
    for (const auto& right : singles) {
      if (!vocabulary.contains(left + right)) vocabulary[left + right] = vocabulary.size();
      merges.push_back({left, right});
    }
  }
  return {{"type", "BPE"},          {"dropout", nullptr},  {"unk_token", "<unk>"}, {"fuse_unk", false},
          {"byte_fallback", false}, {"vocab", vocabulary}, {"merges", merges}};
}

json small_file(const json& changes) {
  json file = {{"version", "1.0"},
               {"truncation", nullptr},
               {"padding", nullptr},
               {"added_tokens", json::array()},
               {"normalizer", nullptr},
               {"pre_tokenizer", nullptr},
               {"post_processor", nullptr},
               {"decoder", nullptr},
               {"model", small_model("ab- 1_\u2581\u00e9\u0120")}};
  file.merge_patch(changes);
  return file;
}

void expect_as_package(const json& changes) {
  std::mt19937 generator(5);
  const std::vector<std::string> parts = {"a",   "b",      "-",      " ",       "  ",    "1",      "11",
                                          "_",   "\u2581", "\u00e9", "e\u0301", "x",     "\u4F60", "[T]",
                                          "[w]", "\u00A0", "\n",     "aa",      "\u0661"};
  std::vector<std::string> texts = {"", " ", "a", "[T]", " [T] [T]  a"};
  while (texts.size() < 400) {
    std::string text;
    for (size_t n = 1 + generator() % 10; n > 0; --n) text += parts[generator() % parts.size()];
    texts.push_back(text);
  }
  const json file = small_file(changes);
  const TemporaryFolder folder;
  write_file_atomically(folder.path() / "tokenizer.json", file.dump());
  SCOPED_TRACE(changes.dump());
  expect_as_oracle(Tokenizer::open(folder.path()), ask_oracle("encode", folder.path() / "tokenizer.json", texts),
                   texts);
}

TEST(TokenizerParts, SplitsEqualThePackages) {
  for (const char* behavior : {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"}) {
    const bool invert = behavior[0] == 'M' || behavior[0] == 'C';
    const json regex = {
        {"type", "Split"}, {"pattern", {{"Regex", "[\\s-]|\\p{N}"}}}, {"behavior", behavior}, {"invert", invert}};
    const json literal = {
        {"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", behavior}, {"invert", !invert}};
    expect_as_package({{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {regex, literal}}}}});
  }
}

TEST(TokenizerParts, DigitsAndByteLevelEqualThePackages) {
  for (const bool individual : {false, true}) {
    const json digits = {{"type", "Digits"}, {"individual_digits", individual}};
    const json byte_level = {
        {"type", "ByteLevel"}, {"add_prefix_space", individual}, {"trim_offsets", true}, {"use_regex", true}};
    expect_as_package({{"pre_tokenizer", digits}});
    expect_as_package(
        {{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {digits, byte_level}}}}, {"decoder", byte_level}});
  }
}

TEST(TokenizerParts, MetaspaceEqualsThePackages) {
  for (const char* scheme : {"always", "first", "never"}) {
    for (const bool split : {false, true}) {
      const json metaspace = {
          {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", scheme}, {"split", split}};
      const json token = {{"id", 500},       {"content", "[T]"},    {"single_word", false}, {"lstrip", false},
                          {"rstrip", false}, {"normalized", false}, {"special", true}};
      const size_t next_id = small_file(json::object())["model"]["vocab"].size();
      json added = token;
      added["id"] = next_id;
      expect_as_package({{"pre_tokenizer", metaspace}, {"decoder", metaspace}, {"added_tokens", {added}}});
    }
  }
}

TEST(TokenizerParts, NormalizersAndDecodersEqualThePackages) {
  const json nfc = {{"type", "NFC"}}, prepend = {{"type", "Prepend"}, {"prepend", "\u2581"}};
  const json spaces = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
  const json runs = {{"type", "Replace"}, {"pattern", {{"Regex", "1+|x"}}}, {"content", "b"}};
  const json strip = {{"type", "Strip"}, {"content", "a"}, {"start", 2}, {"stop", 0}};
  const json back = {{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}};
  const json fuse = {{"type", "Fuse"}}, bytes = {{"type", "ByteFallback"}};
  expect_as_package({{"normalizer", {{"type", "Sequence"}, {"normalizers", {nfc, prepend, spaces, runs}}}},
                     {"decoder", {{"type", "Sequence"}, {"decoders", {back, bytes, fuse, strip}}}}});
  expect_as_package({{"normalizer", runs}, {"decoder", runs}});
}

TEST(TokenizerParts, AddedTokensEqualThePackages) {
  const json vocabulary = small_file(json::object())["model"]["vocab"];
  const size_t next_id = vocabulary.size(), merged_id = vocabulary["aa"];
  for (int options = 0; options < 32; ++options) {
    const auto token = [&](const char* content, size_t id, int bits) -> json {
      return {{"id", id},
              {"content", content},
              {"single_word", (bits & 1) != 0},
              {"lstrip", (bits & 2) != 0},
              {"rstrip", (bits & 4) != 0},
              {"normalized", (bits & 8) != 0},
              {"special", (bits & 16) != 0}};
    };
    expect_as_package(
        {{"added_tokens",
          {token("[T]", next_id, options), token("[w]", next_id + 1, options ^ 8), token("aa", merged_id, options)}},
         {"normalizer", {{"type", "Replace"}, {"pattern", {{"String", "1"}}}, {"content", "b"}}}});
  }
}

// The order of added tokens decides on their ids, and the vocabulary.
TEST(TokenizerParts, IdsOfAddedTokensEqualThePackagesWhateverTheFileSays) {
  const auto token = [](const char* content, int64_t id, bool special) -> json {
    return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
            {"rstrip", false}, {"normalized", false}, {"special", special}};
  };
  expect_as_package({{"added_tokens",
                      {token("[T]", 2147483647, true), token("a", 90, false), token("[w]", 1, false),
                       token("[T]", 7, false), token("", 3, false)}}});
  json gaps = {{"[w]", 900}, {"x", 800}};
  expect_as_package({{"model", {{"vocab", gaps}}}, {"added_tokens", {token("[T]", 5, true), token("[w]", 6, true)}}});
}

TEST(TokenizerParts, UnknownCharactersEqualThePackages) {
  for (const bool fuse : {false, true}) {
    for (const json& unk : {json("<unk>"), json()}) {
      expect_as_package({{"model", {{"fuse_unk", fuse}, {"unk_token", unk}}}});
      json bytes = {{"<0x78>", 200}, {"<0xE4>", 201}, {"<0xBD>", 202}};  // 'x', and two of the three bytes of U+4F60
      expect_as_package(
          {{"model", {{"fuse_unk", fuse}, {"unk_token", unk}, {"byte_fallback", true}, {"vocab", bytes}}}});
    }
  }
}

// These are the parts that transformers 5.17 writes for a GGUF with a byte-level vocabulary
// (AutoTokenizer.from_pretrained(DIR, gguf_file=...).save_pretrained). The vocabulary around them lacks most bytes. The
// characters that fall back to bytes are those of GPT-2's alphabet.
TEST(TokenizerParts, ByteFallbackBesideByteLevelEqualsThePackages) {
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", true}};
  const json marks = {{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}};
  const json strip = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
  const json decoders = {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}, marks, byte_level, strip};
  const json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const json parts = {{"normalizer", {{"type", "Sequence"}, {"normalizers", json::array()}}},
                      {"pre_tokenizer", byte_level},
                      {"post_processor",
                       {{"type", "TemplateProcessing"},
                        {"single", json::array({text})},
                        {"pair", {text, {{"Sequence", {{"id", "B"}, {"type_id", 1}}}}}},
                        {"special_tokens", json::object()}}},
                      {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}}};
  // The text U+00A0 has the bytes C2 A0. The first is U+00C2 in the alphabet, and there are tokens for both of its own
  // bytes, C3 82. The second is U+0142, bytes C5 82, and is unknown.
  const json few = {{"<0x78>", 200}, {"<0xC3>", 201}, {"<0x82>", 202}};
  json all = json::object();
  for (int byte = 0; byte < 256; ++byte) {
    constexpr const char* kDigits = "0123456789ABCDEF";
    all[std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">"] = 200 + byte;
  }
  for (const json& bytes : {json(json::object()), few, all}) {
    for (const bool fuse : {false, true}) {
      for (const json& unk : {json("<unk>"), json()}) {
        json changes = parts;
        changes["model"] = {{"fuse_unk", fuse}, {"unk_token", unk}, {"byte_fallback", true}, {"vocab", bytes}};
        expect_as_package(changes);
      }
    }
  }
}

TEST(TokenizerParts, PostProcessorsEqualThePackages) {
  const json token = {{"id", 0},         {"content", "<unk>"},  {"single_word", false}, {"lstrip", false},
                      {"rstrip", false}, {"normalized", false}, {"special", true}};
  const json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
             second = {{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
  const auto mark = [](const char* id) -> json { return {{"SpecialToken", {{"id", id}, {"type_id", 0}}}}; };
  const json special = {{"<s>", {{"id", "<s>"}, {"ids", {1, 2}}, {"tokens", {"a", "b"}}}},
                        {"</s>", {{"id", "</s>"}, {"ids", {0}}, {"tokens", {"<unk>"}}}}};
  const json both = {{"type", "TemplateProcessing"},
                     {"single", {mark("<s>"), text, mark("</s>")}},
                     {"pair", {text, second}},
                     {"special_tokens", special}};
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", false}, {"use_regex", true}};
  expect_as_package(
      {{"post_processor", {{"type", "Sequence"}, {"processors", {byte_level, both}}}}, {"added_tokens", {token}}});
}

TEST(TokenizerParts, WhatIsNotKnownIsRefusedByName) {
  const auto refused = [](const json& changes, std::initializer_list<std::string> parts) {
    expect_error<std::runtime_error>([&] { Tokenizer::parse(small_file(changes).dump(), "t.json"); }, parts);
  };
  refused({{"normalizer", {{"type", "Nmt"}}}}, {"t.json.normalizer", "'Nmt'", "NFC"});
  refused({{"normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "Nmt"}}}}}}}, {"normalizers[0]", "'Nmt'"});
  refused({{"pre_tokenizer", {{"type", "UnicodeScripts"}}}}, {"t.json.pre_tokenizer", "'UnicodeScripts'", "Split"});
  refused({{"decoder", {{"type", "CTC"}}}}, {"t.json.decoder", "'CTC'"});
  refused({{"post_processor", {{"type", "Other"}}}}, {"'Other'", "TemplateProcessing"});
  refused({{"model", {{"type", "WordLevel"}}}}, {"t.json.model", "'WordLevel'", "BPE"});
  refused({{"model", {{"dropout", 0.1}}}}, {"dropout", "0.1"});
  refused({{"model", {{"end_of_word_suffix", "</w>"}}}}, {"end_of_word_suffix", "</w>"});
  refused({{"version", "2.0"}}, {"version", "2.0"});
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}}, digits = {{"type", "Digits"}};
  refused({{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {byte_level, digits, byte_level}}}}},
          {"a second ByteLevel"});
  refused({{"pre_tokenizer", {{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Kept"}}}},
          {"'Kept'", "Isolated"});
}

// Looking for the end of the white space after each token would take 10^11 steps.
TEST(TokenizerParts, TokensThatSwallowWhiteSpaceAreNoLongWork) {
  const json added = {{{"id", 4}, {"content", " "}, {"rstrip", true}, {"special", true}}};
  const Tokenizer tokenizer = Tokenizer::parse(small_file({{"added_tokens", added}}).dump(), "t.json");
  const std::string spaces(500'000, ' ');
  const auto few = tokenizer.encode("   ", false), many = tokenizer.encode(spaces, false);
  EXPECT_EQ(few.size(), 3u);  // the search continues after a token, not after the white space that it takes
  EXPECT_EQ(many.size(), spaces.size());
}

TEST(TokenizerParts, DamagedFilesAreRefusedWithThePlace) {
  const auto refused = [](const json& changes, std::initializer_list<std::string> parts) {
    expect_error<std::runtime_error>([&] { Tokenizer::parse(small_file(changes).dump(), "t.json"); }, parts);
  };
  const auto token = [](const char* content, int64_t id) -> json { return {{{"id", id}, {"content", content}}}; };
  expect_error<std::runtime_error>([] { Tokenizer::parse("{\"model\": ", "t.json"); }, {"t.json", "not valid JSON"});
  expect_error<std::runtime_error>([] { Tokenizer::parse("[]", "t.json"); }, {"t.json", "an object"});
  expect_error<std::runtime_error>([] { Tokenizer::parse("{}", "t.json"); }, {"'model'"});
  refused({{"model", {{"vocab", {{"a", -5}}}}}}, {"'a'", "-5"});
  refused({{"model", {{"vocab", {{"a", 4000000000u}}}}}}, {"vocab.a", "2^31"});
  refused({{"model", {{"vocab", {{"a", 2000000000}}}}}}, {"'a'", "2000000000"});
  refused({{"model", {{"vocab", {{"a", "1"}}}}}}, {"vocab.a", "an integer"});
  refused({{"model", {{"vocab", {{"a", 2}}}}}}, {"same id 2"});
  refused({{"model", {{"merges", json::array({json::array({"a", "zz"})})}}}}, {"merge 0", "'zz'"});
  refused({{"model", {{"merges", json::array({"a b c"})}}}}, {"merges[0]", "left right"});
  refused({{"model", {{"unk_token", "<none>"}}}}, {"'<none>'"});
  refused({{"added_tokens", token("[T]", 21474836470)}}, {"added_tokens[0].id", "2^31"});
  refused({{"post_processor",
            {{"type", "TemplateProcessing"}, {"single", json::array()}, {"special_tokens", json::object()}}}},
          {"single", "'A'"});
  refused({{"post_processor",
            {{"type", "TemplateProcessing"},
             {"single", {{{"SpecialToken", {{"id", "x"}}}}, {{"Sequence", {{"id", "A"}}}}}},
             {"special_tokens", {{"x", {{"ids", {999}}}}}}}}},
          {"id 999"});
  json many = json::array();  // 40 pieces of 40 ids each
  for (int i = 0; i < 40; ++i) many.push_back({{"SpecialToken", {{"id", "x"}}}});
  many.push_back({{"Sequence", {{"id", "A"}}}});
  refused({{"post_processor",
            {{"type", "TemplateProcessing"},
             {"single", many},
             {"special_tokens", {{"x", {{"ids", std::vector<int>(40, 1)}}}}}}}},
          {"at most 1024 ids"});
  json nested = {{"type", "NFC"}};
  for (int i = 0; i < 20; ++i) nested = {{"type", "Sequence"}, {"normalizers", {nested}}};
  refused({{"normalizer", nested}}, {"Sequences inside one another"});
}

// Tokens may hold the character that ends messages. A message about one is still complete.
TEST(TokenizerParts, TokensOfAnyCharacterAreNamedWhole) {
  const auto refused = [](const std::string& text, std::initializer_list<std::string> parts) {
    expect_error<std::runtime_error>([&] { Tokenizer::parse(text, "t.json"); }, parts);
  };
  const std::string nul("a\0b", 3);
  refused(small_file({{"model", {{"vocab", {{nul, "1"}}}}}}).dump(), {"vocab.a\\x00b", "an integer"});
  refused(small_file({{"model", {{"vocab", {{nul, -5}}}}}}).dump(), {"'a\\x00b'", "-5"});
  refused(R"({"a\u0000b": 1, "a\u0000b": 1})", {"'a\\x00b' twice"});
  const auto with_template = [](const std::string& defined, const std::string& used) {
    const json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
               mark = {{"SpecialToken", {{"id", used}, {"type_id", 0}}}};
    return small_file({{"post_processor",
                        {{"type", "TemplateProcessing"},
                         {"single", {mark, text}},
                         {"special_tokens", {{defined, {{"id", defined}, {"ids", {1}}, {"tokens", {"a"}}}}}}}}})
        .dump();
  };
  EXPECT_EQ(Tokenizer::parse(with_template(nul, nul), "t.json").encode("a", true).size(), 2u);
  refused(with_template("a", nul), {"the key 'a\\x00b'"});
}

TEST(TokenizerParts, NormalizersThatExplodeAreStopped) {
  json steps = json::array();
  for (int i = 0; i < 40; ++i)
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}});
  const json sequence = {{"type", "Sequence"}, {"normalizers", steps}},
             decoder = {{"type", "Sequence"}, {"decoders", steps}};
  const Tokenizer tokenizer =
      Tokenizer::parse(small_file({{"normalizer", sequence}, {"decoder", decoder}}).dump(), "t.json");
  expect_error<std::runtime_error>([&] { tokenizer.encode("a", false); }, {"normalizer makes"});
  expect_error<std::runtime_error>([&] { tokenizer.decode(std::vector<int32_t>{1}, false); }, {"decoder makes"});
}

}  // namespace
}  // namespace pare
