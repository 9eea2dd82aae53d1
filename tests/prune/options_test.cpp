#include "prune/options.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/expect_error.h"

namespace pare {
using namespace prune;
using namespace runtime;
namespace {

TEST(PatternText, IsReadAndWritten) {
  EXPECT_EQ(parse_pattern("2:4"), kTwoOfFour);
  EXPECT_EQ(parse_pattern("4:8"), (SparsePattern{4, 8}));
  EXPECT_EQ(parse_pattern("1:2"), (SparsePattern{1, 2}));
  EXPECT_EQ(parse_pattern("7:1024"), (SparsePattern{7, 1024}));
  EXPECT_TRUE(parse_pattern("unstructured").is_dense());
  for (const char* text : {"2:4", "4:8", "15:16", "unstructured"}) EXPECT_EQ(pattern_text(parse_pattern(text)), text);
}

TEST(PatternText, RefusesOthers) {
  for (const char* text : {"", ":", "2", "2:", ":4", "4:4", "0:4", "-2:4", "5:4", "2:4:8", "2:4x", " 2:4", "2.0:4",
                           "2:1025", "99999999999999999999:4", "dense"}) {
    expect_error<std::invalid_argument>([&] { parse_pattern(text); }, {"N:M", "unstructured", "'" + std::string(text)});
  }
}

// Recipes and fingerprints are made from these lists. A name that occurs twice would hide an option.
TEST(PruneOptions, FieldsHaveNamesOfTheirOwn) {
  struct All {
    SparsityOptions sparsity;
    OwlOptions owl;
    ResolveOptions resolve;
    AlpsOptions alps;
    void fields(FieldVisitor& visit) {
      sparsity.fields(visit);
      owl.fields(visit);
      resolve.fields(visit);
      alps.fields(visit);
    }
  } all;
  std::vector<NamedField> fields = field_values(all);
  for (size_t i = 0; i < fields.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(fields[i].name, fields[j].name);
  }
}

}  // namespace
}  // namespace pare
