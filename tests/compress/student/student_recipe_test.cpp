#include <gtest/gtest.h>

#include <sstream>

#include "compress/recipe/recipe.h"
#include "compress/run/calibrate.h"
#include "tests/expect_error.h"

namespace pare {
using namespace compress;
using namespace runtime;
namespace {

const std::string kText = "calibration: {text: t}\n";

StudentOptions student_of(const std::string& yaml) {
  return parse_recipe(yaml, "r.yaml").student.value();
}

TEST(StudentRecipe, EveryOptionIsRead) {
  const StudentOptions all =
      student_of(kText +
                 "student: {layers: 10, choose: block_error, merge: average, heads: 6, kv_heads: 3, hidden_size: 384, "
                 "feed_forward_size: 1024, widths: average}\n");
  EXPECT_EQ(all.layers, 10);
  EXPECT_EQ(all.choose, LayerChoice::block_error);
  EXPECT_EQ(all.merge, LayerMerge::average);
  EXPECT_EQ(all.heads, 6);
  EXPECT_EQ(all.kv_heads, 3);
  EXPECT_EQ(all.hidden_size, 384);
  EXPECT_EQ(all.feed_forward_size, 1024);
  EXPECT_EQ(all.widths, WidthChoice::average);
  EXPECT_FALSE(parse_recipe("passes: [{rtn: {bits: 4}}]", "r.yaml").student);
}

TEST(StudentRecipe, WhatIsNotGivenIsTheTeachers) {
  const StudentOptions none = student_of("student: {}\n");
  EXPECT_EQ(describe_fields(none), describe_fields(StudentOptions{}));
  EXPECT_EQ(none.layers, StudentOptions::kOfTeacher);
  EXPECT_FALSE(none.changes_widths());
}

TEST(StudentRecipe, EveryOptionIsInItsDescription) {
  for (const char* option : {"layers: 3", "layers: 2, choose: first", "layers: 2, merge: average", "heads: 2",
                             "kv_heads: 2", "hidden_size: 2", "feed_forward_size: 2", "heads: 2, widths: average"}) {
    EXPECT_NE(describe_fields(student_of("student: {" + std::string(option) + "}\n")),
              describe_fields(StudentOptions{}))
        << option;
  }
}

TEST(StudentRecipe, MistakesAreNamedWithTheirLine) {
  const auto refused = [](const std::string& yaml, std::initializer_list<std::string> parts) {
    expect_error<std::invalid_argument>([&] { parse_recipe(yaml, "r.yaml"); }, parts);
  };
  refused("student:\n  layers: 0\n", {"r.yaml:2", "student.layers", "0"});
  refused("student:\n  layers: ten\n", {"r.yaml:2", "student.layers"});
  refused("student:\n  layer: 3\n", {"r.yaml:2", "layer", "layers"});
  refused("student:\n  layers: 3\n  choose: best\n", {"r.yaml:3", "every", "first", "block_error", "best"});
  refused("student:\n  merge: average\n", {"r.yaml:2", "merge", "give 'layers'"});
  refused("student:\n  choose: first\n", {"r.yaml:2", "choose", "give 'layers'"});
  refused("student:\n  layers: 3\n  widths: average\n", {"r.yaml:3", "widths", "'hidden_size'"});
  refused("student:\n  layers: 3\n  choose: block_error\n", {"r.yaml:3", "add 'calibration:'", "use every"});
  refused("calibration: {statistics: s}\nstudent:\n  layers: 3\n  choose: block_error\n",
          {"r.yaml:4", "statistics file", "use every"});
}

TEST(StudentRecipe, CalibratingDoesNotPassItOver) {
  std::ostringstream out;
  Progress progress(ProgressStyle::silent, out);
  for (const std::string passes : {"", "passes: [{rtn: {bits: 4}}]\n"}) {
    const Recipe recipe = parse_recipe("model: m\noutput: o\n" + kText + "student: {layers: 2}\n" + passes, "r.yaml");
    expect_error<std::invalid_argument>([&] { calibrate(recipe, "o", {}, progress); }, {"r.yaml", "'student'"});
  }
}

}  // namespace
}  // namespace pare
