#include "runtime/export/gguf_formats.h"

#include <algorithm>
#include <array>

namespace pare::runtime {
namespace {

constexpr std::array kFormats{
    GgufFormat{"f32", GgufType::F32, 0},        GgufFormat{"f16", GgufType::F16, 1},
    GgufFormat{"bf16", GgufType::BF16, 32},     GgufFormat{"q8_0", GgufType::Q8_0, 7},
    GgufFormat{"q4_0", GgufType::Q4_0, 2},      GgufFormat{"q4_1", GgufType::Q4_1, 3},
    GgufFormat{"q5_0", GgufType::Q5_0, 8},      GgufFormat{"q5_1", GgufType::Q5_1, 9},
    GgufFormat{"iq4_nl", GgufType::IQ4_NL, 25}, GgufFormat{"q2_k", GgufType::Q2_K, 10},
    GgufFormat{"q3_k", GgufType::Q3_K, 11},     GgufFormat{"q4_k", GgufType::Q4_K, 14},
    GgufFormat{"q5_k", GgufType::Q5_K, 16},     GgufFormat{"q6_k", GgufType::Q6_K, 18},
    GgufFormat{"gguf", std::nullopt, 0},
};

GgufBlock block_of(GgufType type) {
  return gguf_block(static_cast<uint32_t>(type));
}

GgufType with_small_blocks(GgufType type) {
  switch (type) {
    case GgufType::Q2_K:
    case GgufType::Q3_K:
      return GgufType::Q4_0;
    case GgufType::Q4_K:
      return GgufType::Q5_0;
    case GgufType::Q5_K:
      return GgufType::Q5_1;
    default:
      return GgufType::Q8_0;
  }
}

}  // namespace

std::span<const GgufFormat> gguf_formats() {
  return kFormats;
}

const GgufFormat* find_gguf_format(std::string_view name) {
  const auto found = std::ranges::find(kFormats, name, &GgufFormat::name);
  return found == kFormats.end() ? nullptr : &*found;
}

ChosenType type_for(GgufType asked, int64_t width, bool is_head) {
  if (block_of(asked).num_elements == 1) return {asked};
  ChosenType chosen{asked};
  if (is_head && asked != GgufType::Q8_0) {
    chosen = {GgufType::Q6_K, "it makes the logits"};
  }
  const auto multiples_of = [&](int64_t size) {
    return "rows of " + std::to_string(width) + " are no multiples of " + std::to_string(size);
  };
  if (const int64_t size = block_of(chosen.type).num_elements; width % size != 0 && size > 32) {
    chosen = {with_small_blocks(chosen.type), (chosen.why.empty() ? "" : chosen.why + ", and ") + multiples_of(size)};
  }
  if (const int64_t size = block_of(chosen.type).num_elements; width % size != 0) {
    chosen = {GgufType::F16, multiples_of(size)};
  }
  return chosen;
}

}  // namespace pare::runtime
