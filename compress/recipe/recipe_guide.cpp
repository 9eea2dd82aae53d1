#include "compress/recipe/recipe_guide.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

#include "compress/recipe/recipe_keys.h"
#include "runtime/system/json_text.h"
#include "runtime/system/nearest_name.h"

namespace pare::compress {
namespace {

constexpr const char* kTop = "recipe";
constexpr size_t kTerminalWidth = 100, kPageWidth = 120;

constexpr const char* kHead = R"(# Recipes

<!-- `pare recipes --markdown` writes this page from the lists of options that recipes are read by. -->

A recipe is a YAML file that describes a run. `pare run RECIPE` follows it, and `pare run RECIPE --dry-run` says what it
will take. The folder [recipes](../recipes) has one for every published result. A recipe looks like this:

```yaml
model: models/smollm2-135m
output: out/smollm2-w4
calibration: {text: calibration_data/c4.jsonl, samples: 128, tokens: 512}
passes:
  - awq: {}
  - gptq: {bits: 4, group_size: 64}
    layers: {exclude: ["*.k_proj"], override: {"*.down_proj": {bits: 8}}}
evaluate:
  - perplexity: {text: calibration_data/wikitext2.txt, context: 2048, windows: 40}
fail_if: {perplexity_ratio: 1.1}
```

- Files are looked for in the working directory first, and then beside the recipe.
- An unknown key, a wrong type or a number out of range is refused before any work. The message names the line.
- A name such as `activations.range` stands for a map in a map: `activations: {range: token}`.
- A dash (–) as the default means that there is none. The meaning says what happens without the option.
- A code is the small whole number that a weight becomes. H is the matrix of products of a layer's inputs, summed over
  the calibration.
- `pare recipes PASS` prints the options of one pass on the terminal.

Editors complete and check recipes by [recipe.schema.json](recipe.schema.json), which `pare recipes --json-schema`
prints. Those that use the YAML language server find it by the first line of a recipe:

```yaml
# yaml-language-server: $schema=../docs/recipe.schema.json
```

## The top level

A recipe needs `passes`, `head` or `student`. `pare calibrate` needs only `calibration`.

)";

constexpr const char* kPasses = R"(## passes

Each item of the list has one key, which is the name of a pass, with a map of its options. `layers` may stand beside it.
Passes stand in this order:

1. one pass that prunes
2. one that scales inputs
3. one that rounds
4. `activation_sparsity`, or `reconstruct`

Each may be left out, but a pass that scales inputs needs one that rounds after it. `distill` ends such a group, and
another group may follow it.

)";

constexpr const char* kEvaluate = R"(## evaluate

Each item of the list has the name of an evaluation as its key, with a map of its options.

)";

std::string_view kind_text(PassKind kind) {
  switch (kind) {
    case PassKind::changes_weights:
      return "prunes";
    case PassKind::scales_inputs:
      return "scales inputs";
    case PassKind::rounds:
      return "rounds";
    case PassKind::drops_inputs:
      return "drops inputs";
    case PassKind::reconstructs:
      return "trains blocks";
    case PassKind::trains:
      return "trains the model";
  }
  return "";
}

// The rows below the map `name`, under their names in it.
std::vector<runtime::OptionRow> rows_within(const std::vector<runtime::OptionRow>& rows, const std::string& name) {
  std::vector<runtime::OptionRow> inner;
  for (const runtime::OptionRow& row : rows) {
    if (!row.name.starts_with(name + ".")) continue;
    inner.push_back(row);
    inner.back().name = row.name.substr(name.size() + 1);
  }
  return inner;
}

bool is_nested(const runtime::OptionRow& row) {
  return row.name.find('.') != std::string::npos;
}

void add_maps(const std::vector<runtime::OptionRow>& rows, const std::string& place,
              std::vector<GuideSection>& sections) {
  for (const runtime::OptionRow& row : rows) {
    if (row.type != runtime::OptionType::map || is_nested(row)) continue;
    sections.push_back(
        {.name = row.name, .place = place, .kind = "", .meaning = row.meaning, .rows = rows_within(rows, row.name)});
  }
}

GuideSection section_of(const PassRow& pass) {
  const std::unique_ptr<PassOptions> options = pass.make_options();
  return {.name = std::string(pass.key),
          .place = std::string(kPassesKey),
          .kind = std::string(kind_text(options->kind())),
          .meaning = std::string(options->meaning()),
          .rows = runtime::option_rows(runtime::fields_of(*options)),
          .overridable = overridable_options(*options)};
}

bool has_type(const std::vector<runtime::OptionRow>& rows, const std::string& map) {
  return std::any_of(rows.begin(), rows.end(),
                     [&](const runtime::OptionRow& row) { return row.name == map + ".type"; });
}

// The cell of a table that says what an option may be.
std::string allowed_cell(const runtime::OptionRow& row, const std::vector<runtime::OptionRow>& rows, bool is_top) {
  if (is_top && row.type == runtime::OptionType::map) return "[map](#" + row.name + ")";
  if (is_top && row.type == runtime::OptionType::other) return "[list](#" + row.name + ")";
  if (row.type == runtime::OptionType::map && has_type(rows, row.name)) return "map, or a type";
  if (row.type == runtime::OptionType::other) return row.name == kOverrideKey ? "map of maps" : "map of lists";
  return runtime::allowed_text(row, "`");
}

void append_table(const std::vector<runtime::OptionRow>& rows, bool is_top, std::ostringstream& page) {
  page << "| " << (is_top ? "key" : "option") << " | default | values | meaning |\n|---|---|---|---|\n";
  for (const runtime::OptionRow& row : rows) {
    if (is_top && is_nested(row)) continue;
    const std::string fallback = runtime::fallback_text(row);
    page << "| `" << row.name << "` | " << (fallback.empty() ? "–" : "`" + fallback + "`") << " | "
         << allowed_cell(row, rows, is_top) << " | " << row.meaning << " |\n";
  }
  page << '\n';
}

// In lines of at most `width` columns, each after `indent` spaces.
void append_wrapped(const std::string& text, size_t indent, size_t width, std::ostringstream& out) {
  std::istringstream words(text);
  std::string line;
  for (std::string word; words >> word;) {
    if (!line.empty() && indent + line.size() + 1 + word.size() > width) {
      out << std::string(indent, ' ') << line << '\n';
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  if (!line.empty()) out << std::string(indent, ' ') << line << '\n';
}

std::string overridable_text(const std::vector<std::string>& names, const std::string& quote) {
  std::vector<std::string> quoted;
  for (const std::string& name : names) {
    if (name.find('.') == std::string::npos) quoted.push_back(quote + name + quote);
  }
  return runtime::listed(quoted, "and");
}

}  // namespace

std::string first_sentence(const std::string& text) {
  const size_t end = text.find(". ");
  return end == std::string::npos ? text : text.substr(0, end + 1);
}

std::vector<GuideSection> guide_sections() {
  Recipe recipe;
  LayersRecipe layers;
  const std::vector<runtime::OptionRow> top = runtime::option_rows(runtime::fields_of(recipe));
  std::vector<GuideSection> sections = {
      {.name = kTop, .place = "", .kind = "", .meaning = "The keys of a recipe's top level.", .rows = top}};
  add_maps(top, "", sections);
  for (const PassRow* pass : pass_rows()) sections.push_back(section_of(*pass));
  sections.push_back({.name = kLayersKey,
                      .place = std::string(kPassesKey),
                      .kind = "",
                      .meaning = "This stands beside the name of a pass and says which layers the pass works on.",
                      .rows = runtime::option_rows(runtime::fields_of(layers))});
  add_maps(evaluation_option_rows(), std::string(kEvaluateKey), sections);
  return sections;
}

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const GuideSection& section : guide_sections()) names.push_back(section.name);
  return names;
}

std::string recipe_page() {
  const std::vector<GuideSection> sections = guide_sections();
  std::ostringstream page;
  page << kHead;
  append_table(sections.front().rows, /*is_top=*/true, page);
  for (const GuideSection& section : sections) {
    if (!section.place.empty() || section.name == kTop) continue;
    page << "## " << section.name << "\n\n";
    append_wrapped(section.meaning, 0, kPageWidth, page);
    page << '\n';
    append_table(section.rows, /*is_top=*/false, page);
  }
  page << kPasses << "| pass | what it is | meaning |\n|---|---|---|\n";
  for (const GuideSection& section : sections) {
    if (section.kind.empty()) continue;
    page << "| [`" << section.name << "`](#" << section.name << ") | " << section.kind << " | " << section.meaning
         << " |\n";
  }
  page << '\n';
  for (const GuideSection& section : sections) {
    if (section.place != kPassesKey) continue;
    page << "### " << section.name << "\n\n";
    append_wrapped(section.meaning, 0, kPageWidth, page);
    page << '\n';
    append_table(section.rows, /*is_top=*/false, page);
    if (section.overridable.empty()) continue;
    append_wrapped("`layers: {override: ...}` may change " + overridable_text(section.overridable, "`") + ".", 0,
                   kPageWidth, page);
    page << '\n';
  }
  page << kEvaluate << "| evaluation | meaning |\n|---|---|\n";
  for (const GuideSection& section : sections) {
    if (section.place != kEvaluateKey) continue;
    page << "| [`" << section.name << "`](#" << section.name << ") | " << section.meaning << " |\n";
  }
  for (const GuideSection& section : sections) {
    if (section.place != kEvaluateKey) continue;
    page << "\n### " << section.name << "\n\n";
    append_wrapped(section.meaning, 0, kPageWidth, page);
    page << '\n';
    std::ostringstream table;
    append_table(section.rows, /*is_top=*/false, table);
    std::string rows = table.str();
    rows.pop_back();  // the empty line stands before the next heading
    page << rows;
  }
  return page.str();
}

std::string pass_list() {
  std::ostringstream list;
  constexpr size_t kNameColumn = 21;  // the longest name, and two spaces
  list << "The passes of a recipe:\n";
  for (const GuideSection& section : guide_sections()) {
    if (section.kind.empty()) continue;
    std::string name = section.name;
    name.resize(kNameColumn, ' ');
    list << "  " << name << first_sentence(section.meaning) << '\n';
  }
  list << "'pare recipes PASS' explains one with its options, 'pare recipes recipe' the keys of the top level.\n";
  return list.str();
}

std::string section_text(const std::string& name) {
  const std::vector<GuideSection> sections = guide_sections();
  const auto found =
      std::find_if(sections.begin(), sections.end(), [&](const auto& item) { return item.name == name; });
  if (found == sections.end()) {
    const std::vector<std::string> names = section_names();
    throw std::invalid_argument("no pass and no key of a recipe is called '" + name + "'" +
                                runtime::did_you_mean(name, names) + "; there are " + runtime::listed(names, "and"));
  }
  std::ostringstream text;
  append_wrapped(name + ": " + found->meaning, 0, kTerminalWidth, text);
  for (const runtime::OptionRow& row : found->rows) {
    if (name == kTop && is_nested(row)) continue;
    const std::string fallback = runtime::fallback_text(row);
    text << "\n  " << row.name << ": ";
    if (row.type == runtime::OptionType::map) {
      text << (has_type(found->rows, row.name) ? "a map, or its type" : "a map");
    } else if (row.type == runtime::OptionType::other) {
      text << (row.name == kOverrideKey ? "a map of maps" : name == kTop ? "a list" : "a map of lists");
    } else {
      text << runtime::allowed_text(row, "");
    }
    text << (fallback.empty() ? "" : " (default: " + fallback + ")") << '\n';
    append_wrapped(row.meaning, 6, kTerminalWidth, text);
  }
  if (found->rows.empty()) text << "\n  It has no options.\n";
  if (!found->overridable.empty()) {
    text << '\n';
    append_wrapped("'layers: {override: ...}' may change " + overridable_text(found->overridable, "") + ".", 0,
                   kTerminalWidth, text);
  }
  return text.str();
}

std::string guide_json() {
  nlohmann::ordered_json guide = nlohmann::ordered_json::array();
  for (const GuideSection& section : guide_sections()) {
    nlohmann::ordered_json options = nlohmann::ordered_json::array();
    for (const runtime::OptionRow& row : section.rows) {
      nlohmann::ordered_json option = {{"name", row.name}};
      const std::string fallback = runtime::fallback_text(row), allowed = runtime::allowed_text(row, "");
      if (!fallback.empty()) option["default"] = fallback;
      if (!allowed.empty()) option["values"] = allowed;
      option["meaning"] = row.meaning;
      options.push_back(std::move(option));
    }
    nlohmann::ordered_json item = {{"name", section.name}};
    if (!section.place.empty()) item["place"] = section.place;
    if (!section.kind.empty()) item["kind"] = section.kind;
    item["meaning"] = section.meaning;
    item["options"] = std::move(options);
    guide.push_back(std::move(item));
  }
  return runtime::json_text(nlohmann::ordered_json{{"sections", std::move(guide)}});
}

}  // namespace pare::compress
