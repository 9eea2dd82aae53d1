#include "runtime/export/gguf_formats.h"

#include <algorithm>
#include <array>
#include <string>

#include "runtime/blocks/gguf_parts.h"
#include "runtime/export/gguf_codes.h"

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

constexpr int64_t kBlock = 32;  // columns, of the types that hold integers

bool is_float(const GgufFormat& format) {
  return format.type && block_of(*format.type).num_elements == 1;
}

// A type without minima holds the numbers code - zero, which take a bit more where zeros are anything.
bool holds_integers(GgufType type, const PackScheme& scheme) {
  const GgufGrid* const grid = find_gguf_grid(type);
  if (grid == nullptr || !grid->has_integers()) return false;
  return scheme.bits + (grid->has_minimum || scheme.symmetric ? 0 : 1) <= grid->bits;
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

Acceptance holds_codes(const GgufFormat& format, const PackScheme& scheme, int64_t num_in) {
  if (!scheme.input.is_plain()) {
    return {"a GGUF file rounds no input, found " + input_format_name(scheme.input) +
            (scheme.input.has_outliers() ? ": take rtn or gptq with 'bits: 8'" : ": leave 'activations' out")};
  }
  if (is_float(format) || (!scheme.is_dense() && scheme.code->is_blocks())) return {};
  if (scheme.is_dense() && !format.type) return {};
  const std::string name(format.name);
  const std::string found = scheme.is_dense()     ? "weights in floating point"
                            : scheme.is_integer() ? std::to_string(scheme.bits) + " bits"
                                                  : std::string(scheme.code->name);
  const std::string others = format.type ? ", or take 'container: gguf'" : "";
  if (scheme.code == &kMxfp4Code && !format.type) return {};
  if (!scheme.is_integer())
    return {"it holds whole numbers, found " + found + ": take rtn or gptq with 'bits'" + others};
  const std::string width = std::to_string(num_in);
  if (num_in % kBlock != 0) return {"rows of " + width + " do not fill blocks of 32: exclude the layer"};
  if (scheme.act_order == StoredActOrder::group || (scheme.group_size > 0 && scheme.group_size % kBlock != 0)) {
    return {"the 32 columns of a block share a scale, found act_order group: take 'act_order: static'"};
  }
  std::span<const GgufType> types = code_types();
  if (format.type) types = {&*format.type, 1};
  if (std::ranges::any_of(types, [&](GgufType type) { return holds_integers(type, scheme); })) return {};
  const std::string kind = (scheme.symmetric ? "" : "asymmetric ") + found;
  const GgufGrid* const grid = format.type ? find_gguf_grid(*format.type) : nullptr;
  if (grid != nullptr && !grid->has_integers()) {
    return {"its blocks are made by the pass gguf, found " + kind + ": take 'gguf: {type: " + name + "}'" + others};
  }
  if (grid == nullptr) return {"no type holds " + kind + ": leave 'symmetric: false' out"};
  return {"it holds " + std::to_string(grid->bits) + " bits" +
          (grid->has_minimum ? "" : ", or " + std::to_string(grid->bits - 1) + " asymmetric ones") + ", found " + kind +
          ": change 'bits'" + others};
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
