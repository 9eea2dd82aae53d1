// Everything that may stand in a recipe, explained to people: `pare recipes` and docs/recipes.md. Made of the lists of
// fields that recipes are read by (option_table.h), so that it says what is read.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/commands/option_table.h"

namespace pare::compress {

// One map of a recipe with its options.
struct GuideSection {
  std::string name;     // "gptq", "calibration", "perplexity"; of the top level "recipe"
  std::string place;    // where it stands: "passes" or "evaluate", as an item; empty: at the top level
  std::string kind;     // of a pass: "rounds weights"
  std::string meaning;  // whole sentences
  std::vector<runtime::OptionRow> rows = {};
  std::vector<std::string> overridable = {};  // options that `layers: {override: ...}` may change
};

// The top level, its maps, every pass, what stands beside a pass, and every evaluation; in the order of the page.
std::vector<GuideSection> guide_sections();

// Their names, which section_text takes.
std::vector<std::string> section_names();

// Returns a text up to its first full stop.
std::string first_sentence(const std::string& text);

// docs/recipes.md.
std::string recipe_page();
// A line for each pass.
std::string pass_list();
// One section for a terminal. Throws std::invalid_argument for a name that there is none of, with those that there are.
std::string section_text(const std::string& name);
// All sections as a JSON object.
std::string guide_json();

}  // namespace pare::compress
