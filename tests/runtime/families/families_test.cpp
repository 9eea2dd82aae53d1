#include "runtime/families/families.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "runtime/model/checkpoint.h"
#include "tests/expect_error.h"
#include "tests/runtime/engine/tiny_models.h"

namespace pare {
using namespace runtime;
namespace {

std::string in_order(const std::set<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return all;
}

TEST(Families, EachDecoderHasACheckpointWithLogitsOfTransformers) {
  std::set<std::string> with_golden, in_table;
  for (const std::string& folder : families()) {
    with_golden.insert(Checkpoint::open(family_path(folder)).description().family);
  }
  std::istringstream names(decoder_families().list(&DecoderFamily::name));
  for (std::string name; std::getline(names >> std::ws, name, ',');) in_table.insert(name);
  EXPECT_EQ(in_order(with_golden), in_order(in_table));
}

TEST(Families, ARowIsFoundByWhatItHas) {
  EXPECT_EQ(decoder_families().find(&DecoderFamily::model_type, "gemma3_text")->name, "gemma3");
  EXPECT_EQ(decoder_families().find(&DecoderFamily::gguf, "mixtral"), nullptr);
  EXPECT_EQ(decoder_families().find(&DecoderFamily::gguf, ""), nullptr);  // several rows have none
  EXPECT_EQ(decoder_families().list(&DecoderFamily::model_type, &DecoderFamily::local_rope_key), "gemma3_text");
  const std::string architectures = decoder_families().list(&DecoderFamily::gguf);  // each once
  EXPECT_EQ(architectures.find("llama"), architectures.rfind("llama"));
  const std::vector<std::string_view> all = decoder_families().all(&DecoderFamily::gguf);
  EXPECT_EQ(std::ranges::count(all, "llama"), 1);
}

TEST(Families, ARowThatNothingComputesIsRefused) {
  const auto refused = [](const DecoderFamily& row, std::initializer_list<std::string> words) {
    expect_error<std::invalid_argument>([&] { decoder_families().add(row); }, words);
    EXPECT_NE(decoder_families().find(&DecoderFamily::name, row.name), &row);
  };
  const DecoderFamily sound = {.name = "other", .model_type = "other", .architecture = "OtherForCausalLM"};
  DecoderFamily row = sound;
  row.norms.attention = "";
  refused(row, {"'other'", "halves of blocks without a norm"});
  row = sound;
  row.mixture = MixtureTraits{};
  row.feed_forward_bias_key = "mlp_bias";
  refused(row, {"'other'", "biases of experts"});
  row = sound;
  row.norms.feed_forward = "";
  refused(row, {"'other'", "halves of blocks without a norm"});
  row.parallel_key = "is_parallel";
  row.is_parallel = true;
  refused(row, {"'other'", "one norm where halves may not be parallel"});
  row.parallel_key = "";
  row.factors.residual = "residual_multiplier";
  refused(row, {"'other'", "a factor behind parallel halves"});
  row.factors = {};
  row.norms.attention_output = "post_attention_layernorm";
  refused(row, {"'other'", "norms of the outputs of parallel halves"});
  row = sound;
  row.centers_norms = true;
  row.has_head_norms = true;
  refused(row, {"'other'", "LayerNorms of heads"});
  row = sound;
  row.is_gated = false;
  row.stacks.gate_up = "gate_up_proj";
  refused(row, {"'other'", "a stack with a gate where there is none"});
  row = sound;
  row.name = "llama";
  refused(row, {"'llama'", "there already"});
  const DecoderFamily* llama = decoder_families().find(&DecoderFamily::name, "llama");
  EXPECT_NO_THROW(decoder_families().add(*llama));  // adding it again changes nothing
  expect_error<std::invalid_argument>([] { encoder_families().add({.name = "bert", .architecture = ""}); },
                                      {"'bert'", "there already"});
}

}  // namespace
}  // namespace pare
