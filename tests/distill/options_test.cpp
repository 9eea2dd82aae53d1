#include "distill/options.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace pare {
using namespace distill;
using namespace runtime;
namespace {

template <typename E>
void expect_names_of_their_own(E first) {
  std::set<std::string_view> names;
  std::set<E> values;
  for (const EnumName<E>& item : enum_names(first)) {
    names.insert(item.name);
    values.insert(item.value);
  }
  EXPECT_EQ(names.size(), enum_names(first).size());
  EXPECT_EQ(values.size(), enum_names(first).size());
}

TEST(DistillOptions, EnumerationsGoByName) {
  expect_names_of_their_own(DistillLoss::hard_label);
  expect_names_of_their_own(SoftForm::divergence);
  expect_names_of_their_own(ImportanceWeights::none);
  expect_names_of_their_own(RatioClip::none);
  EXPECT_EQ(name_of(DistillLoss::skew_reverse_kl), "skew_reverse_kl");
  EXPECT_EQ(name_of(DistillLoss::minillm), "minillm");
}

// Recipes and fingerprints are made from these lists. A name that occurs twice would hide an option.
TEST(DistillOptions, FieldsHaveNamesOfTheirOwnAndAreAllDescribed) {
  struct All {
    DistillLossOptions loss;
    MiniLlmOptions minillm;
    void fields(FieldVisitor& visit) {
      loss.fields(visit);
      minillm.fields(visit);
    }
  } all;
  const std::vector<NamedField> fields = field_values(all);
  EXPECT_EQ(fields.size(), 18u);
  for (size_t i = 0; i < fields.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(fields[i].name, fields[j].name);
  }
  all.minillm.reward_limit.reset();
  all.loss.loss = DistillLoss::slim;
  const std::string text = describe_fields(all);
  for (const char* part : {"loss=slim", "importance_weights=single_step", "ratio_clip=surrogate"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
  MiniLlmOptions read;
  const std::vector<NamedField> given = {{"importance_weights", std::string("exact")}, {"single_step", false}};
  assign_fields(given, read);
  EXPECT_EQ(read.weights, ImportanceWeights::exact);
  EXPECT_FALSE(read.single_step);
}

}  // namespace
}  // namespace pare
