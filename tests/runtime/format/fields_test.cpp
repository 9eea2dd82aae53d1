// Field lists (fields.h): what they list, describe and assign, on a type that has every kind of field.
#include "runtime/format/fields.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

namespace pare {
using namespace runtime;
namespace {

enum class Color { red, green, blue };
std::span<const EnumName<Color>> enum_names(Color) {
  static constexpr std::array<EnumName<Color>, 3> kNames = {
      {{Color::red, "red"}, {Color::green, "green"}, {Color::blue, "blue"}}};
  return kNames;
}

struct Inner {
  int depth = 2;
  void fields(FieldVisitor& visit) { visit("depth", depth); }
};

struct Everything {
  bool flag = true;
  int small = -3;
  int64_t large = int64_t{1} << 40;
  float single = 0.1f;
  double number = 0.1;
  std::optional<double> maybe;
  std::string text = "a \"b\"";
  std::vector<std::string> texts = {"x", "y,z"};
  Color color = Color::green;
  Inner inner;
  int secret = 7;
  void fields(FieldVisitor& visit) {
    visit("flag", flag);
    visit("small", small);
    visit("large", large);
    visit("single", single);
    visit("number", number);
    visit("maybe", maybe);
    visit("text", text);
    visit("texts", texts);
    visit("color", color);
    visit("inner", inner);
    visit.decided("secret", secret);
  }
};

TEST(Fields, AreDescribedInTheirOrderAndExactly) {
  EXPECT_EQ(describe_fields(Everything{}),
            "flag=true small=-3 large=1099511627776 single=0.10000000149011612 number=0.10000000000000001 maybe=none "
            "text=\"a \\\"b\\\"\" texts=[\"x\",\"y,z\"] color=green inner.depth=2 secret=7");
}

// A value that looks like the end of its field is not taken for it.
TEST(Fields, DescriptionsOfDifferentValuesDiffer) {
  Everything a, b;
  a.texts = {"x\",\"y"};
  b.texts = {"x", "y"};
  EXPECT_NE(describe_fields(a), describe_fields(b));
}

TEST(Fields, EveryFieldIsListedAndAssignedByName) {
  Everything value;
  const std::vector<NamedField> before = field_values(value);
  std::set<std::string> names;
  for (const NamedField& field : before) EXPECT_TRUE(names.insert(field.name).second) << field.name;
  EXPECT_EQ(names.size(), 11u);
  EXPECT_TRUE(names.contains("inner.depth"));

  const std::vector<NamedField> given = {{"flag", false},
                                         {"large", int64_t{5}},
                                         {"maybe", std::optional(0.5)},
                                         {"inner.depth", int64_t{9}},
                                         {"color", std::string("blue")}};
  assign_fields(std::span<const NamedField>(given), value);
  EXPECT_FALSE(value.flag);
  EXPECT_EQ(value.large, 5);
  EXPECT_EQ(value.maybe, 0.5);
  EXPECT_EQ(value.inner.depth, 9);
  EXPECT_EQ(value.color, Color::blue);
  EXPECT_EQ(value.small, -3) << "the others stay";
}

TEST(Fields, WrongTypesAndUnknownChoicesAreRefused) {
  Everything value;
  const std::vector<NamedField> wrong_type = {{"flag", int64_t{1}}};
  EXPECT_THROW(assign_fields(std::span<const NamedField>(wrong_type), value), std::invalid_argument);
  const std::vector<NamedField> unknown = {{"color", std::string("mauve")}};
  EXPECT_THROW(assign_fields(std::span<const NamedField>(unknown), value), std::invalid_argument);
  EXPECT_EQ(describe_fields(value), describe_fields(Everything{})) << "nothing has changed";
}

TEST(Fields, EnumerationsGoByName) {
  EXPECT_EQ(name_of(Color::blue), "blue");
  EXPECT_THROW(name_of(static_cast<Color>(17)), std::invalid_argument);
}

}  // namespace
}  // namespace pare
