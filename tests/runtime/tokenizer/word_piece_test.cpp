// BERT's tokenizer, compared with the `tokenizers` package, and its parts, compared with their definitions.
#include "runtime/tokenizer/word_piece.h"

#include <gtest/gtest.h>

#include "runtime/text/unicode.h"
#include "runtime/tokenizer/bert.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/runtime/tokenizer/tokenizer_oracle.h"

namespace pare {
using namespace runtime;
namespace {

using Ids = std::vector<int32_t>;

TEST(WordPiece, EqualsThePackageOnAwkwardTexts) {
  const auto file = family_file("minilm");
  const Tokenizer tokenizer = Tokenizer::open(file);
  const std::vector<std::string> more = {"[CLS]",
                                         "[MASK]",
                                         "[unused1]",
                                         "don't",
                                         "isn't it ?",
                                         " do not",
                                         "\u0130stanbul",
                                         "STRASSE \u1E9E",
                                         "\u03A3\u03AF\u03C3\u03C5\u03C6\u03BF\u03C2",
                                         "\uD55C\uAD6D\uC5B4",
                                         "unaffable",
                                         "\u302E\u302F",
                                         std::string(100, 'b'),
                                         std::string(101, 'b'),
                                         "\u201Cquoted\u201D \u2014 dash",
                                         "\u1D40\u02B0\u1D49",
                                         "caf\u00E9s"};
  const auto texts = awkward_texts(1500, more);
  expect_as_oracle(tokenizer, ask_oracle("encode", file, texts), texts);
}

TEST(WordPiece, WordsOfMoreCharactersThanAnyFileAllowsAreRefused) {
  const auto file = [](int64_t most) {
    return R"({"model": {"type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "##", "vocab": {"?": 0},
      "max_input_chars_per_word": )" +
           std::to_string(most) + "}}";
  };
  EXPECT_NO_THROW(Tokenizer::parse(file(1000), "t.json"));
  for (const int64_t most : {0, 1001, 2000000000}) {
    expect_error<std::runtime_error>([&] { Tokenizer::parse(file(most), "t.json"); },
                                     {"t.json.model.max_input_chars_per_word", "1 to 1000", std::to_string(most)});
  }
}

TEST(WordPiece, EqualsThePackageOnWikiText2) {
  const auto file = family_file("minilm");
  const std::string text =
      read_text_file(std::filesystem::path(kSourceFolder) / "calibration_data/wikitext2.txt").substr(0, 300000);
  const auto expected = ask_oracle("ids", file, {text})[0].get<Ids>();
  EXPECT_TRUE(Tokenizer::open(file).encode(text, false) == expected);
  EXPECT_GT(expected.size(), 50000u);
}

// Every code point stands where its class decides how its neighbours are split.
TEST(WordPiece, EveryCharacterHasThePackagesClass) {
  const auto file = family_file("minilm");
  std::vector<std::string> texts(1);
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    const bool alike = (c >= 0x3400 && c < 0xD800) || (c >= 0x17000 && c < 0x19000) || c >= 0x20000;
    if (alike && c % 16 != 0) continue;
    std::string character;
    utf8_append(c, character);
    if (texts.back().size() > 20000) texts.emplace_back();
    texts.back() += "ab" + character + "le e" + character + "1 ";
  }
  ASSERT_GT(texts.size(), 20u);
  const auto expected = ask_oracle("ids", file, texts);
  const Tokenizer tokenizer = Tokenizer::open(file);
  for (size_t i = 0; i < texts.size(); ++i) ASSERT_EQ(tokenizer.encode(texts[i], false), expected[i].get<Ids>()) << i;
}

TEST(WordPiece, TheLongestTokenIsTakenFirst) {
  const WordPieceModel model({{"[UNK]", 0}, {"a", 1}, {"ab", 2}, {"##b", 3}, {"##bc", 4}, {"##c", 5}, {"\u00E9", 6}},
                             {.max_characters_per_word = 4}, "test");
  const auto ids = [&](std::string_view word) {
    WordCache cache;
    Ids found;
    model.encode(word, cache, found);
    Ids again;
    model.encode(word, cache, again);  // from the cache
    EXPECT_EQ(found, again);
    return found;
  };
  EXPECT_EQ(ids("a"), (Ids{1}));
  EXPECT_EQ(ids("abc"), (Ids{2, 5}));
  EXPECT_EQ(ids("abbc"), (Ids{2, 4}));
  EXPECT_EQ(ids("abd"), (Ids{0}));  // a part is missing, so the whole word is unknown
  EXPECT_EQ(ids("\u00E9"), (Ids{6}));
  EXPECT_EQ(ids("\u00E9b"), (Ids{6, 3}));
  EXPECT_EQ(ids("abbb"), (Ids{2, 3, 3}));
  EXPECT_EQ(ids("abbbb"), (Ids{0}));  // five characters
}

TEST(WordPiece, BertNormalizesStepByStep) {
  const std::string text = "A\u0001\tCaf\u00C9 \u4E2D";
  const auto apply = [&](bool clean, bool space, bool strip, bool lower) {
    return BertNormalize{clean, space, strip, lower}.apply(text);
  };
  EXPECT_EQ(apply(false, false, false, false), text);
  EXPECT_EQ(apply(true, false, false, false), "A Caf\u00C9 \u4E2D");
  EXPECT_EQ(apply(false, true, false, false), "A\u0001\tCaf\u00C9  \u4E2D ");
  EXPECT_EQ(apply(false, false, true, false), "A\u0001\tCafE \u4E2D");
  EXPECT_EQ(apply(false, false, false, true), "a\u0001\tcaf\u00E9 \u4E2D");
}

TEST(WordPiece, TruncationKeepsWhatStandsAroundTheText) {
  const Tokenizer tokenizer = Tokenizer::open(family_file("minilm"));
  const Ids whole = tokenizer.encode("one two three", true);
  ASSERT_EQ(whole.size(), 5u);
  EXPECT_EQ(tokenizer.encode_truncated("one two three", 5), whole);
  EXPECT_EQ(tokenizer.encode_truncated("one two three", 4), (Ids{whole[0], whole[1], whole[2], whole[4]}));
  EXPECT_EQ(tokenizer.encode_truncated("one two three", 2), (Ids{whole[0], whole[4]}));
  expect_error<std::invalid_argument>([&] { tokenizer.encode_truncated("one", 1); }, {"1 tokens", "2 around"});
}

TEST(WordPiece, ImpossibleVocabulariesAreRefused) {
  expect_error<std::runtime_error>([] { WordPieceModel({{"a", 0}}, {}, "file"); }, {"file", "[UNK]"});
  expect_error<std::runtime_error>([] { WordPieceModel({{"[UNK]", -1}}, {}, "file"); }, {"file", "-1"});
}

}  // namespace
}  // namespace pare
