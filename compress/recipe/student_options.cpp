#include "compress/recipe/student_options.h"

namespace pare::compress {
namespace {

constexpr double kMaxLayers = 1024.0;
constexpr double kMaxHeads = 4096.0;
constexpr double kMaxWidth = 1048576.0;

}  // namespace

void StudentOptions::fields(runtime::FieldVisitor& visit) {
  visit("layers", layers, {.low = 1.0, .high = kMaxLayers},
        "The student has this many layers. Without it, it has as many as the teacher.");
  visit("choose", choose,
        "`every` keeps layers at even distances and `first` the first ones. `block_error` keeps those that change the "
        "hidden states most on the calibration text.");
  visit(
      "merge", merge,
      "`copy` makes a layer a copy of the one that is kept. `average` makes it the mean of those that it stands for.");
  visit("heads", heads, {.low = 1.0, .high = kMaxHeads},
        "The student has this many heads of attention. Without it, it has as many as the teacher.");
  visit("kv_heads", kv_heads, {.low = 1.0, .high = kMaxHeads},
        "The student has this many heads of keys and values. Without it, it has as many as the teacher.");
  visit("hidden_size", hidden_size, {.low = 1.0, .high = kMaxWidth},
        "The student's hidden states have this width. Without it, they are as wide as the teacher's.");
  visit("feed_forward_size", feed_forward_size, {.low = 1.0, .high = kMaxWidth},
        "The student's feed-forward layers have this width. Without it, they are as wide as the teacher's.");
  visit("widths", widths,
        "`importance` keeps the heads and channels that matter most. `average` takes means of neighbours.");
}

void StudentOptions::check(const PassCheck& check) const {
  for (const char* key : {"choose", "merge"}) {
    if (!check.was_given(key) || check.was_given("layers")) continue;
    check.fail(key, "says which layers stay and what they become: give 'layers' as well, or leave it out");
  }
  if (check.was_given("widths") && !changes_widths()) {
    check.fail("widths",
               "says how widths are reduced: give 'heads', 'kv_heads', 'hidden_size' or 'feed_forward_size' as well, "
               "or leave it out");
  }
  if (choose != LayerChoice::block_error) return;
  check.require_calibration("choose", "block_error compares hidden states on a text", "use every");
  if (check.has_statistics_file()) {
    check.fail("choose",
               "block_error compares hidden states on a text, which a statistics file does not have: use every");
  }
}

}  // namespace pare::compress
