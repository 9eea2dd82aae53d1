#include "runtime/system/json_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/expect_error.h"

namespace pare {
using namespace runtime;
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

TEST(JsonText, IsWrittenWhateverItsStringsHold) {
  const std::string bytes =
      "a\xff"
      "b\xc3";
  EXPECT_EQ(json_text(Json(bytes)),
            "\"a\xef\xbf\xbd"
            "b\xef\xbf\xbd\"");
  EXPECT_EQ(json_text(OrderedJson{{"z", 1}, {"a", bytes}}, 2),
            "{\n  \"z\": 1,\n  \"a\": \"a\xef\xbf\xbd"
            "b\xef\xbf\xbd\"\n}");
}

// The library reads the texts in another way, with its own parser and its own builder.
TEST(JsonText, GivesTheValuesOfTheLibrary) {
  for (const std::string text :
       {"null", "true", "false", "0", "-0", "-7", "18446744073709551615", "-9223372036854775808", "1e3", "-0.5e-7",
        "1000000000000000019884624838656", R"("a\u00e9\ud83d\ude00\n\"\\")", "[]", "{}", " [ 1 , [ ] , { } ] ",
        R"({"z":{"b":[1,2,{"y":null,"x":[[]]}],"a":"text"},"a":[{},{"k":-1.25}],"":0})"}) {
    EXPECT_EQ(parse_json(text, "here"), Json::parse(text)) << text;
    EXPECT_EQ(parse_json(text, "here").dump(), Json::parse(text).dump()) << text;
    EXPECT_EQ(parse_ordered_json(text, "here").dump(), OrderedJson::parse(text).dump()) << text;
  }
  const OrderedJson ordered = parse_ordered_json(R"({"z":1,"a":2,"m":{"y":3,"b":4}})", "here");
  EXPECT_EQ(ordered.dump(), R"({"z":1,"a":2,"m":{"y":3,"b":4}})");
  EXPECT_EQ(ordered.at("m").at("b"), 4);
}

template <typename Parse>
void refuses_all_that_is_no_json(const Parse& parse) {
  const auto refused = [&](const std::string& text, std::initializer_list<std::string> parts) {
    expect_error<BadJson>([&] { parse(text); }, parts);
  };
  for (const std::string text : {"", " ", "{", "[1,", "{\"a\"}", "{\"a\":}", "[1 2]", "nul", "'a'", "[1,]", "01", "NaN",
                                 "Infinity", "// text\n1", "\"\\x\"", "\"\n\""}) {
    refused(text, {"file.json", "not valid JSON"});
  }
  refused("{} x", {"file.json", "not valid JSON", "expected end of input"});
  refused("1 1", {"not valid JSON", "expected end of input"});
  refused("[\"a\xFF\"]", {"file.json", "not valid JSON", "UTF-8"});
  refused("[1e999]", {"file.json", "not valid JSON", "1e999"});
  refused("[" + std::string(1'000'000, '9') + "]", {"file.json", "not valid JSON", "..."});
  refused(R"({"a":1,"b":{"a":1},"a":2})", {"file.json", "not valid JSON", "the key 'a' twice"});
  refused(R"([{"b":{"c":1,"\u0063":1}}])", {"the key 'c' twice"});
  refused(R"({")" + std::string(1000, 'k') + R"(":1,")" + std::string(1000, 'k') + R"(":1})", {"kkk...' twice"});
}

TEST(JsonText, RefusesAllThatIsNoJson) {
  refuses_all_that_is_no_json([](const std::string& text) { return parse_json(text, "file.json"); });
  refuses_all_that_is_no_json([](const std::string& text) { return parse_ordered_json(text, "file.json"); });
}

std::string nested(size_t depth, const std::string& open, const std::string& close, const std::string& inner) {
  std::string text, end;
  for (size_t i = 0; i < depth; ++i) {
    text += open;
    end += close;
  }
  return text + inner + end;
}

TEST(JsonText, RefusesWhatIsNestedTooDeeplyAndSaysHowDeeply) {
  for (const auto& [open, close] : {std::pair{"[", "]"}, {"{\"a\":", "}"}, {"[{\"]]\\\"]\":", "}]"}}) {
    const size_t step = open[1] == '{' ? 2 : 1;
    const std::string allowed = nested(kMaxJsonDepth / step, open, close, "1");
    EXPECT_EQ(parse_json(allowed, "here").dump(), allowed);
    EXPECT_EQ(parse_ordered_json(allowed, "here").dump(), allowed);
    for (const std::string& end : {std::string(close), std::string()}) {  // unclosed texts as well
      const std::string deep = nested(80'000, open, end, "1");
      const std::string depth = std::to_string(80'000 * step);
      expect_error<BadJson>([&] { parse_json(deep, "file.json"); },
                            {"file.json", "nested too deeply", depth + " arrays", "at most 64"});
      expect_error<BadJson>([&] { parse_ordered_json(deep, "file.json"); }, {depth + " arrays"});
    }
  }
}

// Looking through all members after each of them would take 10^12 steps.
TEST(JsonText, AMillionMembersAreNoLongWork) {
  constexpr int kNumMembers = 1'000'000;
  std::string text = "{";
  for (int i = 0; i < kNumMembers; ++i) text += "\"" + std::to_string(i) + (i % 2 == 0 ? "\":{}," : "\":[1],");
  text.back() = '}';
  EXPECT_EQ(parse_json(text, "here").size(), kNumMembers);
  EXPECT_EQ(parse_ordered_json(text, "here").size(), kNumMembers);
  text.insert(text.size() - 1, ",\"7\":0");
  expect_error<BadJson>([&] { parse_json(text, "here"); }, {"the key '7' twice"});
  expect_error<BadJson>([&] { parse_ordered_json(text, "here"); }, {"the key '7' twice"});
}

// A message that quotes such a text would end in the middle.
TEST(JsonText, OnlyTextsHoldTheCharacterThatEndsMessages) {
  for (const std::string text : {R"({"a\u0000b": 1})", R"([["a\u0000b"]])"}) {
    expect_error<BadJson>([&] { parse_json(text, "file.json"); }, {"file.json", "'a\\x00b'", "U+0000"});
    expect_error<BadJson>([&] { parse_ordered_json(text, "file.json"); }, {"file.json", "'a\\x00b'", "U+0000"});
  }
  EXPECT_EQ(parse_json(R"(["a\u0000b"])", "here", Nul::allowed)[0].get<std::string>(), std::string("a\0b", 3));
}

}  // namespace
}  // namespace pare
