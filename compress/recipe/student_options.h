// The options of a recipe's `student:`, a smaller model made of the teacher's weights, and their defaults.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "compress/recipe/pass.h"
#include "runtime/format/fields.h"

namespace pare::compress {

// every: evenly spaced, the first and the last among them. first: the first ones. block_error: those that change the
// hidden state most on the recipe's text (compress/student/measure.h).
enum class LayerChoice { every, first, block_error };
inline std::span<const runtime::EnumName<LayerChoice>> enum_names(LayerChoice) {
  static constexpr std::array<runtime::EnumName<LayerChoice>, 3> kNames = {
      {{LayerChoice::every, "every"}, {LayerChoice::first, "first"}, {LayerChoice::block_error, "block_error"}}};
  return kNames;
}

// What a kept layer is: a copy of that layer, or the mean of the run of layers that it stands for.
enum class LayerMerge { copy, average };
inline std::span<const runtime::EnumName<LayerMerge>> enum_names(LayerMerge) {
  static constexpr std::array<runtime::EnumName<LayerMerge>, 2> kNames = {
      {{LayerMerge::copy, "copy"}, {LayerMerge::average, "average"}}};
  return kNames;
}

// What becomes of heads and channels: the most important stay, or neighbours are averaged.
enum class WidthChoice { importance, average };
inline std::span<const runtime::EnumName<WidthChoice>> enum_names(WidthChoice) {
  static constexpr std::array<runtime::EnumName<WidthChoice>, 2> kNames = {
      {{WidthChoice::importance, "importance"}, {WidthChoice::average, "average"}}};
  return kNames;
}

struct StudentOptions {
  static constexpr int64_t kOfTeacher = 0;  // as many as the teacher has; a recipe says so by leaving the key out

  int64_t layers = kOfTeacher;
  LayerChoice choose = LayerChoice::every;
  LayerMerge merge = LayerMerge::copy;
  int64_t heads = kOfTeacher;
  int64_t kv_heads = kOfTeacher;
  int64_t hidden_size = kOfTeacher;
  int64_t feed_forward_size = kOfTeacher;
  WidthChoice widths = WidthChoice::importance;

  bool changes_widths() const {
    return heads != kOfTeacher || kv_heads != kOfTeacher || hidden_size != kOfTeacher ||
           feed_forward_size != kOfTeacher;
  }
  void fields(runtime::FieldVisitor& visit);
  // What can be refused without the model: options without effect, and a choice that has no text.
  void check(const PassCheck& check) const;
};

}  // namespace pare::compress
