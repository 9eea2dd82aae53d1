#include "compress/sweep/sweep_points.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>

#include "compress/recipe/given_options.h"
#include "compress/recipe/recipe_keys.h"
#include "compress/recipe/yaml_value.h"
#include "runtime/system/nearest_name.h"
#include "runtime/system/sha256.h"

namespace pare::compress {
namespace {

constexpr const char* kHeader = "# Written by pare sweep.\n";

// A key of the grid with its values.
struct Axis {
  std::string name;               // "bits"; empty: the values alone name the points
  std::vector<std::string> path;  // where the values go
  std::vector<YamlValue> values;
};

std::string short_hash(const std::string& text) {
  return runtime::sha256_hex(std::as_bytes(std::span(text))).substr(0, 8);
}

std::vector<std::string> split(const std::string& key) {
  std::vector<std::string> steps;
  for (size_t begin = 0; begin <= key.size();) {
    const size_t end = std::min(key.find('.', begin), key.size());
    steps.push_back(key.substr(begin, end - begin));
    begin = end + 1;
  }
  return steps;
}

// From "gptq.bits" to its place. `value` says where a message points to.
std::vector<std::string> path_of(const std::string& key, const YamlValue& value) {
  std::vector<std::string> path = split(key);
  Recipe recipe;
  std::vector<std::string> known;
  for (const std::string& name : names_of_fields(runtime::fields_of(recipe))) {
    if (name.find('.') == std::string::npos) known.push_back(name);
  }
  if (std::ranges::find(path, "") != path.end()) {
    value.fail("expected keys with a dot between them, such as gptq.bits, found '" + key + "'");
  }
  for (const char* shared : {"model", "base_model", "output", "calibration", "sweep"}) {
    if (path.front() == shared) {
      value.fail("all points have one '" + std::string(shared) + "': leave it out of the grid");
    }
  }
  if (std::ranges::find(known, path.front()) != known.end()) return path;
  for (const PassRow* row : pass_rows()) {
    if (row->key == path.front()) {
      path.insert(path.begin(), std::string(kPassesKey));
      return path;
    }
    known.emplace_back(row->key);
  }
  value.fail("expected a key of the recipe, or of one of its passes such as gptq.bits, found '" + key + "'" +
             runtime::did_you_mean(path.front(), known));
}

std::vector<Axis> axes_of(const YamlValue& map) {
  std::vector<Axis> axes;
  const auto entries = map.entries();
  if (entries.empty()) map.fail("expected at least one key with its values, such as {gptq.bits: [3, 4]}");
  for (const auto& [key, values] : entries) {
    Axis axis{key, path_of(key, values), values.list()};
    if (axis.values.empty()) values.fail("expected at least one value, found an empty list");
    if (std::ranges::any_of(axes, [&](const Axis& other) { return other.path == axis.path; })) {
      values.fail("'" + key + "' stands twice; keep one");
    }
    const bool is_whole = axis.path.size() == 1 && axis.path.front() == kPassesKey;
    axis.name = is_whole ? "" : axis.path.back();
    axes.push_back(std::move(axis));
  }
  return axes;
}

// The value as a part of a file's name. Of maps and lists each word stays: "gptq-bits-3".
std::string words_of(const YamlValue& value) {
  const bool is_scalar = !value.is_map() && !value.is_list();
  std::string words;
  for (const char c : value.changed({})) {
    const bool is_kept = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
                         c == '_' || (c == '-' && is_scalar);
    if (is_kept) {
      words += c;
    } else if (c != '\n' && !words.empty() && words.back() != '-') {
      words += '-';
    }
  }
  while (words.ends_with('-')) words.pop_back();
  return words;
}

std::string name_of_point(const std::vector<Axis>& axes, const std::vector<size_t>& choice) {
  constexpr size_t kMostCharacters = 100;
  std::string name;
  for (size_t i = 0; i < axes.size(); ++i) {
    name += (i > 0 ? "_" : "") + axes[i].name + (axes[i].name.empty() ? "" : "-") + words_of(axes[i].values[choice[i]]);
  }
  if (name.empty() || name.front() == '.' || name.front() == '-') name = "point-" + name;
  return name.size() <= kMostCharacters ? name : name.substr(0, kMostCharacters) + "-" + short_hash(name);
}

// Every choice of one value for each axis.
void add_points(const YamlValue& top, const std::vector<Axis>& axes, const YamlValue* statistics,
                std::vector<SweepPoint>& points) {
  std::vector<size_t> choice(axes.size(), 0);
  while (true) {
    std::vector<YamlChange> changes = {{{"sweep"}, nullptr}, {{"output"}, nullptr}};
    for (size_t i = 0; i < axes.size(); ++i) changes.push_back({axes[i].path, &axes[i].values[choice[i]]});
    SweepPoint point{name_of_point(axes, choice), "", kHeader + top.changed(changes)};
    if (statistics != nullptr) changes.push_back({{"calibration"}, statistics});
    point.recipe = kHeader + top.changed(changes);
    points.push_back(std::move(point));
    size_t i = axes.size();
    while (i > 0 && ++choice[i - 1] == axes[i - 1].values.size()) choice[--i] = 0;
    if (i == 0) return;
  }
}

// Names that several points have get a part of their recipe's hash.
void make_unique(const YamlValue& grid, std::vector<SweepPoint>& points) {
  std::map<std::string, std::string> name_of_recipe;
  std::map<std::string, int> counts;
  for (const SweepPoint& point : points) {
    if (!name_of_recipe.emplace(point.recipe, point.name).second) {
      grid.fail("the point " + point.name + " is there twice; keep one");
    }
    ++counts[point.name];
  }
  for (SweepPoint& point : points) {
    if (counts[point.name] > 1) point.name += "-" + short_hash(point.alone);
  }
}

}  // namespace

SweepPoints sweep_points(const std::string& yaml, const std::filesystem::path& file) {
  const YamlValue top = YamlValue::parse(yaml, file);
  if (!top.has_key("sweep")) {
    top.fail("expected 'sweep: {grid: {gptq.bits: [3, 4]}}' or the like, found no 'sweep': 'pare run' runs one recipe");
  }
  SweepPoints result;
  std::optional<YamlValue> sweep, calibration;
  for (const auto& [key, value] : top.entries()) {
    if (key == "sweep") sweep = value;
    if (key == "calibration") calibration = value;
    if (key == "output") result.output = value.text();
  }
  SweepRecipe options;
  const GivenOptions given = read_fields(*sweep, runtime::fields_of(options));
  const auto found = given.find("grid");
  if (found == given.end()) sweep->fail("'grid' is missing: a map of lists such as {gptq.bits: [3, 4]}");
  const YamlValue& grid = found->second;
  const std::vector<YamlValue> maps = grid.is_list() ? grid.list() : std::vector<YamlValue>{grid};
  if (maps.empty()) grid.fail("expected a map of lists such as {gptq.bits: [3, 4]}, found an empty list");

  std::optional<YamlValue> statistics;
  if (options.statistics && calibration && calibration->has_key("text")) {
    result.statistics = "statistics-" + short_hash(calibration->changed({})) + ".h5";
    statistics = YamlValue::parse("{statistics: " + result.statistics + "}", file);
  }
  std::vector<std::vector<Axis>> grids;
  double num_points = 0.0;
  for (const YamlValue& map : maps) {
    grids.push_back(axes_of(map));
    double num_choices = 1.0;
    for (const Axis& axis : grids.back()) num_choices *= static_cast<double>(axis.values.size());
    num_points += num_choices;
  }
  if (num_points > static_cast<double>(kMostPoints)) {
    grid.fail("the grid has more than " + std::to_string(kMostPoints) + " points: give fewer values");
  }
  for (const std::vector<Axis>& axes : grids) add_points(top, axes, statistics ? &*statistics : nullptr, result.points);
  make_unique(grid, result.points);
  return result;
}

}  // namespace pare::compress
