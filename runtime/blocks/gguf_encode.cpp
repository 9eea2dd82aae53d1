#include "runtime/blocks/gguf_encode.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "runtime/blocks/gguf_block_search.h"
#include "runtime/blocks/gguf_grids.h"
#include "runtime/blocks/gguf_k_encode.h"
#include "runtime/blocks/gguf_parts.h"
#include "runtime/format/dtype.h"

namespace pare::runtime {
namespace {

constexpr int kSize = 32;  // elements of a block
constexpr float kLargestHalf = 65504.0f;

// --- Searches ------------------------------------------------------------------------------------------------------

// The nearest levels of x, and the scale that then fits best.
struct LevelFit {
  std::array<float, kSize> levels;
  float with_x = 0.0f, with_itself = 0.0f;  // sums of w x level and of w level^2
  float gain() const { return with_itself > 0.0f ? with_x * with_x / with_itself : 0.0f; }
  float scale() const { return with_itself > 0.0f ? as_half(with_x / with_itself) : 0.0f; }
};

LevelFit fit_levels(const float* x, const float* w, float inverse) {
  LevelFit fit;
  fit.levels.fill(static_cast<float>(kIq4Levels.front()));
  // Each level whose lower half begins below x adds its distance from the one before: so compilers make vectors of it.
  for (size_t level = 1; level < kIq4Levels.size(); ++level) {
    const auto below = static_cast<float>(kIq4Levels[level - 1]), above = static_cast<float>(kIq4Levels[level]);
    const float middle = 0.5f * (below + above), distance = above - below;
    for (int i = 0; i < kSize; ++i) {
      fit.levels[static_cast<size_t>(i)] += x[i] * inverse > middle ? distance : 0.0f;
    }
  }
  const ScaleSums sums = scale_sums<kSize>(x, w, fit.levels);
  fit.with_x = sums.with_x;
  fit.with_itself = sums.with_itself;
  return fit;
}

uint8_t code_of_level(float level) {
  const auto found = std::ranges::lower_bound(kIq4Levels, static_cast<int>(level));
  return static_cast<uint8_t>(found - kIq4Levels.begin());
}

// As search_scale, with levels that are not evenly spaced.
GgufParts search_levels(const float* x, const float* w) {
  GgufParts best;
  const float extreme = largest_magnitude<kSize>(x);
  std::fill_n(best.codes.begin(), kSize, code_of_level(1.0f));
  if (extreme == 0.0f) return best;
  BestStarts starts;
  for (const float sign : {1.0f, -1.0f}) {
    for (float end = 120.0f * kMostEnd; end > 120.0f * kLeastEnd; end -= 4.0f) {
      const float inverse = sign * end / extreme;
      keep_best({inverse, fit_levels(x, w, inverse).gain()}, starts);
    }
  }
  float best_error = -1.0f;
  for (const Start& start : starts) {
    LevelFit fit = fit_levels(x, w, start.inverse);
    float scale = fit.scale();
    for (int turn = 0; turn < 3 && scale != 0.0f; ++turn) {
      const float before = scale;
      fit = fit_levels(x, w, 1.0f / scale);
      if (turn < 2) scale = fit.scale();
      if (scale == before) break;
    }
    if (scale == 0.0f) continue;
    const float error = scale_error<kSize>(x, w, fit.levels, scale);
    if (best_error >= 0.0f && error >= best_error) continue;
    best_error = error;
    std::ranges::transform(fit.levels, best.codes.begin(), code_of_level);
    best.scale = scale;
  }
  return best;
}

GgufParts search_block(GgufType type, const float* x, const float* w) {
  if (type == GgufType::IQ4_NL) return search_levels(x, w);
  GgufParts block;
  const auto take = [&](const auto& found, int least) {
    for (size_t i = 0; i < kSize; ++i) block.codes[i] = static_cast<uint8_t>(found.codes[i] - least);
    block.scale = found.scale;
  };
  if (type == GgufType::Q4_1 || type == GgufType::Q5_1) {
    const MinimumFit<kSize> found =
        search_with_minimum<kSize>(x, w, type == GgufType::Q4_1 ? 15 : 31, MinimumSign::any);
    take(found, 0);
    block.minimum = found.minimum;
    return block;
  }
  const CodeRange range = type == GgufType::Q4_0   ? CodeRange{-8, 7}
                          : type == GgufType::Q5_0 ? CodeRange{-16, 15}
                                                   : CodeRange{-127, 127};
  take(search_scale<kSize>(x, w, range), type == GgufType::Q8_0 ? -128 : range.least);
  return block;
}

}  // namespace

bool is_encoded(GgufType type) {
  return type == GgufType::F32 || type == GgufType::F16 || type == GgufType::BF16 || find_gguf_grid(type) != nullptr;
}

void encode_gguf_row(GgufType type, std::span<const float> x_I, std::span<const float> importance_I,
                     std::span<std::byte> blocks) {
  const GgufBlock of_type = gguf_block(static_cast<uint32_t>(type));
  const auto size = static_cast<size_t>(of_type.num_elements), bytes = static_cast<size_t>(of_type.size_bytes);
  if (!is_encoded(type)) {
    throw std::invalid_argument("pare does not round weights to " + std::string(of_type.name));
  }
  if (x_I.size() % size != 0 || blocks.size() != x_I.size() / size * bytes ||
      (!importance_I.empty() && importance_I.size() != x_I.size())) {
    throw std::invalid_argument("a row of " + std::to_string(x_I.size()) + " elements, " +
                                std::to_string(importance_I.size()) + " importances and " +
                                std::to_string(blocks.size()) + " bytes do not make blocks of " +
                                std::string(of_type.name));
  }
  if (type == GgufType::F32) return convert_from_float(DType::F32, x_I, blocks);
  if (type == GgufType::F16) return convert_from_float(DType::F16, x_I, blocks);
  if (type == GgufType::BF16) return convert_from_float(DType::BF16, x_I, blocks);
  const auto too_large = std::ranges::find_if(x_I, [](float x) { return !(std::abs(x) <= kLargestHalf); });
  if (too_large != x_I.end()) {
    throw std::runtime_error("a weight of " + std::to_string(*too_large) +
                             " is beyond float16, in which blocks hold their scales: expected at most 65504");
  }
  const GgufGrid& grid = *find_gguf_grid(type);
  static const std::vector<float> kOnes(kMostGgufElements, 1.0f);
  for (size_t begin = 0; begin < x_I.size(); begin += size, blocks = blocks.subspan(bytes)) {
    const float* const x = x_I.data() + begin;
    const float* const w = importance_I.empty() ? kOnes.data() : importance_I.data() + begin;
    const GgufParts parts = grid.is_super() ? search_super_block(type, x, w) : search_block(type, x, w);
    put_together(grid, parts, blocks.first(bytes));
  }
}

}  // namespace pare::runtime
