// Which codes a GGUF file is said to hold, against the blocks that are made: the transcoder looks at every number.
#include "runtime/export/gguf_formats.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/export/gguf_codes.h"
#include "runtime/format/linear_weights.h"

namespace pare {
using namespace runtime;
namespace {

// A weight whose rows have the extreme codes beside the extreme zeros.
LinearWeights extreme_codes(int bits, bool symmetric) {
  QuantizedWeight weight;
  weight.num_out = 2;
  weight.num_in = 64;
  weight.bits = bits;
  weight.group_size = 32;
  weight.symmetric = symmetric;
  weight.scale_dtype = DType::F16;
  const auto most = static_cast<uint8_t>((1 << bits) - 1);
  for (int i = 0; i < 2 * 64; ++i) weight.codes_OI.push_back(i % 2 == 0 ? 0 : most);
  weight.scales_OG = {1.0f, 1.0f, 1.0f, 1.0f};
  if (!symmetric) weight.zeros_OG = {0, most, 0, most};
  return {.name = "w", .weight = weight, .bias_O = {}};
}

PackScheme scheme_of(int bits, bool symmetric) {
  PackScheme scheme;
  scheme.bits = bits;
  scheme.group_size = 32;
  scheme.symmetric = symmetric;
  return scheme;
}

TEST(GgufFormats, HoldTheCodesThatTheirBlocksTake) {
  for (const GgufFormat& format : gguf_formats()) {
    if (format.type && (gguf_block(static_cast<uint32_t>(*format.type)).num_elements == 1)) continue;
    for (const int bits : {2, 3, 4, 8}) {
      for (const bool symmetric : {true, false}) {
        const LinearWeights linear = extreme_codes(bits, symmetric);
        const auto takes = [&](GgufType type) { return GgufTranscoder(linear, type).holds_codes(); };
        const bool expected = format.type ? takes(*format.type) : std::ranges::any_of(code_types(), takes);
        const Acceptance held = holds_codes(format, scheme_of(bits, symmetric));
        EXPECT_EQ(static_cast<bool>(held), expected) << format.name << " " << bits << " " << symmetric << held.reason;
      }
    }
  }
}

TEST(GgufFormats, SayWhatToChange) {
  const auto reason = [](const char* format, const PackScheme& scheme, int64_t width = 0) {
    return holds_codes(*find_gguf_format(format), scheme, width).reason;
  };
  const auto contains = [](const std::string& text, const char* word) { return text.find(word) != std::string::npos; };
  EXPECT_TRUE(contains(reason("q4_0", scheme_of(8, true)), "change 'bits'"));
  EXPECT_TRUE(contains(reason("q4_k", scheme_of(4, true)), "'gguf: {type: q4_k}'"));
  EXPECT_TRUE(contains(reason("gguf", scheme_of(8, false)), "'symmetric: false'"));
  EXPECT_TRUE(contains(reason("q8_0", scheme_of(8, true), 172), "172"));
  PackScheme scheme = scheme_of(8, true);
  scheme.input.type = InputType::int8;
  EXPECT_TRUE(contains(reason("f16", scheme), "'activations'"));
  scheme = scheme_of(4, true);
  scheme.act_order = StoredActOrder::group;
  EXPECT_TRUE(contains(reason("q4_0", scheme), "'act_order: static'"));
  scheme = {.code = &kNvfp4Code, .bits = 4, .group_size = 16};
  EXPECT_TRUE(contains(reason("gguf", scheme), "whole numbers"));
  scheme = {.code = &kMxfp4Code, .bits = 4, .group_size = 32};
  EXPECT_EQ(reason("gguf", scheme), "");
  EXPECT_TRUE(contains(reason("q4_0", scheme), "'container: gguf'"));
  EXPECT_EQ(reason("bf16", scheme), "");  // decoded
  EXPECT_EQ(reason("gguf", dense_scheme()), "");
  EXPECT_TRUE(contains(reason("q4_0", dense_scheme()), "floating point"));
}

}  // namespace
}  // namespace pare
