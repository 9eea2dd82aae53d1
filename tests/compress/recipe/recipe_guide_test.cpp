// Tests of what `pare recipes` says: the page and the schema in docs/ are what it prints, nothing is missing in them,
// and their ranges are those by which recipes are refused.
#include "compress/recipe/recipe_guide.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "compress/recipe/recipe.h"
#include "compress/recipe/recipe_keys.h"
#include "compress/recipe/recipe_schema.h"
#include "runtime/evaluate/evaluation.h"
#include "tests/compress/is_stranger.h"
#include "tests/compress/run_pare.h"
#include "tests/expect_error.h"
#include "tests/places.h"

namespace pare::test {
using namespace compress;
using namespace quant;
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string file_text(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A run writes nothing outside of its result: eval alone does this.
constexpr const char* kOfEvalAlone = "perplexity.store";

// The passes of the program, without those that extension_test.cpp adds.
std::vector<const PassRow*> own_passes() {
  std::vector<const PassRow*> rows(pass_rows().begin(), pass_rows().end());
  std::erase_if(rows, [](const PassRow* row) { return is_stranger(*row); });
  return rows;
}

TEST(RecipeGuide, PageAndSchemaInTheRepositoryAreWhatTheProgramPrints) {
  for (const auto& [option, name] :
       {std::pair{"--markdown", "docs/recipes.md"}, {"--json-schema", "docs/recipe.schema.json"}}) {
    const Outcome printed = run_pare({"recipes", option});
    ASSERT_EQ(printed.status, 0) << printed.err;
    EXPECT_TRUE(printed.out == file_text(fs::path(kSourceFolder) / name))
        << name << " is not what the program prints. Write it anew: build/pare recipes " << option << " > " << name;
  }
}

// Fields with their meanings, collected apart from what prints them.
class Meanings : public FieldVisitor {
 public:
  std::vector<std::pair<std::string, std::string>> found;

 protected:
  void visit_bool(std::string_view name, bool&) override { add(name); }
  void visit_integer(std::string_view name, int64_t&, const FieldLimits&) override { add(name); }
  void visit_number(std::string_view name, double&, const FieldLimits&) override { add(name); }
  void visit_optional(std::string_view name, std::optional<double>&, const FieldLimits&) override { add(name); }
  void visit_text(std::string_view name, std::string&) override { add(name); }
  void visit_texts(std::string_view name, std::vector<std::string>&) override { add(name); }
  void visit_choice(std::string_view name, std::span<const std::string_view>, size_t&) override { add(name); }
  void visit_integers(std::string_view name, std::vector<int64_t>&, const FieldLimits&) override { add(name); }
  void visit_other(std::string_view name) override { add(name); }
  bool enter(std::string_view name) override {
    add(name);
    prefix_ += std::string(name) + ".";
    return true;
  }
  void leave(std::string_view name) override { prefix_.resize(prefix_.size() - name.size() - 1); }
  bool visits_decided() const override { return false; }

 private:
  void add(std::string_view name) { found.emplace_back(prefix_ + std::string(name), meaning()); }
  std::string prefix_;
};

std::vector<std::pair<std::string, std::string>> meanings_of(const VisitFields& fields) {
  Meanings meanings;
  fields(meanings);
  return meanings.found;
}

// All lists of fields that a recipe has, with the heading that they stand below on the page. What extension_test.cpp
// adds is left out.
std::vector<std::pair<std::string, std::vector<std::pair<std::string, std::string>>>> all_lists() {
  std::vector<std::pair<std::string, std::vector<std::pair<std::string, std::string>>>> lists;
  Recipe recipe;
  EvaluationItem evaluation;
  LayersRecipe layers;
  const auto add_maps = [&](const std::vector<std::pair<std::string, std::string>>& all, const std::string& level) {
    for (const auto& [name, meaning] : all) {
      const size_t dot = name.find('.');
      const std::string heading = level + name.substr(0, dot);
      if (dot == std::string::npos || name.starts_with("test_") || name.find(".test_") != std::string::npos) continue;
      if (lists.empty() || lists.back().first != heading) lists.push_back({heading, {}});
      lists.back().second.emplace_back(name.substr(dot + 1), meaning);
    }
  };
  lists.push_back({"## The top level", {}});
  for (const auto& item : meanings_of(fields_of(recipe))) {
    if (item.first.find('.') == std::string::npos) lists.back().second.push_back(item);
  }
  add_maps(meanings_of(fields_of(recipe)), "## ");
  for (const PassRow* row : own_passes()) {
    const std::unique_ptr<PassOptions> options = row->make_options();
    lists.push_back({"### " + std::string(row->key), meanings_of(fields_of(*options))});
  }
  lists.push_back({"### layers", meanings_of(fields_of(layers))});
  auto of_evaluations = meanings_of(fields_of(evaluation));
  std::erase_if(of_evaluations, [](const auto& item) { return item.first == kOfEvalAlone; });
  add_maps(of_evaluations, "### ");
  return lists;
}

TEST(RecipeGuide, EveryOptionStandsOnThePageBelowItsPass) {
  const std::string page = file_text(fs::path(kSourceFolder) / "docs" / "recipes.md");
  int num_options = 0;
  for (const auto& [heading, options] : all_lists()) {
    const size_t begin = page.find("\n" + heading + "\n");
    ASSERT_NE(begin, std::string::npos) << heading << " is no heading of docs/recipes.md";
    const std::string section = page.substr(begin, page.find("\n#", begin + 1) - begin);
    for (const auto& [name, meaning] : options) {
      ++num_options;
      EXPECT_NE(section.find("\n| `" + name + "` | "), std::string::npos)
          << name << " does not stand below " << heading;
      EXPECT_NE(section.find(" | " + meaning + " |\n"), std::string::npos) << name << " of " << heading;
    }
  }
  EXPECT_GT(num_options, 150);
}

int num_words(const std::string& sentence) {
  std::istringstream words(sentence);
  return static_cast<int>(std::distance(std::istream_iterator<std::string>(words), {}));
}

// Whole sentences of at most 30 words, as tests/check_prose.py asks of the pages, of which it leaves tables out.
TEST(RecipeGuide, EveryOptionAndEveryPassHasAMeaning) {
  const auto check = [](const std::string& name, const std::string& meaning) {
    ASSERT_FALSE(meaning.empty()) << name << " has no meaning: give it one in its list of fields";
    EXPECT_EQ(meaning.back(), '.') << name;
    EXPECT_EQ(meaning.find('|'), std::string::npos) << name << ": it would end a cell of the table";
    for (size_t begin = 0; begin < meaning.size();) {
      const size_t end = std::min(meaning.find(". ", begin), meaning.size());
      EXPECT_LE(num_words(meaning.substr(begin, end - begin)), 30)
          << name << ": " << meaning.substr(begin, end - begin);
      begin = end + 2;
    }
  };
  for (const auto& [heading, options] : all_lists()) {
    for (const auto& [name, meaning] : options) check(heading + " " + name, meaning);
  }
  for (const PassRow* row : own_passes()) check(std::string(row->key), std::string(row->make_options()->meaning()));
}

TEST(RecipeGuide, TheProgramListsPassesAndExplainsOne) {
  const Outcome list = run_pare({"recipes"});
  ASSERT_EQ(list.status, 0) << list.err;
  for (const PassRow* row : own_passes()) {
    EXPECT_NE(list.out.find("\n  " + std::string(row->key) + " "), std::string::npos) << list.out;
  }
  const Outcome gptq = run_pare({"recipes", "gptq"});
  ASSERT_EQ(gptq.status, 0) << gptq.err;
  for (const char* part : {"bits: 2, 3, 4 or 8 (default: 4)", "activations: a map, or its type", "activations.range",
                           "may change code, bits, group_size"}) {
    EXPECT_NE(gptq.out.find(part), std::string::npos) << part << " in " << gptq.out;
  }
  EXPECT_NE(run_pare({"recipes", "budget"}).out.find("80MB"), std::string::npos);
  EXPECT_NE(run_pare({"recipes", "recipe"}).out.find("release_zeros"), std::string::npos);
  const Outcome unknown = run_pare({"recipes", "gptk"});
  EXPECT_EQ(unknown.status, 2);
  EXPECT_NE(unknown.err.find("did you mean 'gptq'?"), std::string::npos) << unknown.err;
  EXPECT_EQ(run_pare({"recipes", "gptq", "--markdown"}).status, 2);
  const Outcome json = run_pare({"recipes", "--json"});
  const Json sections = Json::parse(json.out).at("sections");
  EXPECT_TRUE(std::any_of(sections.begin(), sections.end(), [](const Json& item) { return item["name"] == "gptq"; }));
  EXPECT_NE(run_pare({"--help"}).out.find("\n  recipes "), std::string::npos);
  std::string names;  // shells complete these
  for (const Json& section : sections) names += (names.empty() ? "" : " ") + section.at("name").get<std::string>();
  EXPECT_NE(run_pare({"--generate", "complete-zsh"}).out.find("'1::PASS:(" + names + ")'"), std::string::npos);
}

// Another program's validator reads the schema: it accepts the repository's recipes, and refuses a set of wrong ones.
TEST(RecipeGuide, TheSchemaAcceptsRecipesAndRefusesWrongOnes) {
  const char* python = std::getenv("PARE_PYTHON");
  ASSERT_NE(python, nullptr) << "PARE_PYTHON is not set: it must name a Python with jsonschema (make test sets one up)";
  const fs::path source = kSourceFolder;
  const TemporaryFolder folder("recipe_schema");
  const std::string log = (folder / "log").string();
  std::string line = std::string("'") + python + "' '" +
                     (source / "tests/compress/recipe/check_recipe_schema.py").string() + "' '" +
                     (source / "docs/recipe.schema.json").string() + "'";
  int num_recipes = 0;
  for (const auto& entry : fs::directory_iterator(source / "recipes")) {
    if (entry.path().extension() != ".yaml") continue;
    line += " '" + entry.path().string() + "'";
    ++num_recipes;
  }
  EXPECT_GE(num_recipes, 20);
  EXPECT_EQ(std::system((line + " >'" + log + "' 2>&1").c_str()), 0) << file_text(log);
}

// --- The ranges of the schema, tried on the reader of recipes ---

// A value somewhere in a recipe: of an option and its map, the schema says which values it may have.
struct Place {
  std::string name;                                  // "gptq.bits"
  std::function<Json(const Json& value)> recipe_of;  // that is right but for the value
};

// The options that others need beside them, by "map.option".
const std::map<std::string, Json>& companions() {
  static const std::map<std::string, Json> kCompanions = [] {
    std::map<std::string, Json> all;
    for (const char* pass : {"rtn", "gptq"}) all[std::string(pass) + ".per_tensor"] = {{"group_size", -1}};
    all["gptq.mask"] = all["gptq.storage"] = {{"prune", "2:4"}};
    for (const char* pass : {"magnitude", "wanda", "sparsegpt"}) {
      const std::string name(pass);
      all[name + ".ratio"] = all[name + ".allocation"] = {{"pattern", "unstructured"}};
      all[name + ".owl_outlier"] = all[name + ".owl_bound"] = {{"pattern", "unstructured"}, {"allocation", "owl"}};
    }
    all["sparsegpt.block_size"] = {{"mask", "sweep"}};
    for (const char* option : {"minillm", "prompt_tokens", "sampled_tokens"}) {
      all["distill." + std::string(option)] = {{"loss", "minillm"}};
    }
    all["distill.minillm.importance_weights"] = {{"ratio_clip", "none"}};
    all["distill.beta"] = {{"loss", "jensen_shannon"}};
    all["distill.skew"] = {{"loss", "skew_kl"}};
    all["distill.slim_share"] = all["distill.slim_weight"] = {{"loss", "slim"}};
    all["distill.micro_batch"] = {{"batch", 65536}};
    all["distill.tail_label_weight"] = {{"text", nullptr}, {"logits", "l.h5"}};
    all["distill.logits"] = {{"text", nullptr}};
    all["student.choose"] = all["student.merge"] = {{"layers", 2}};
    all["student.widths"] = {{"heads", 2}};
    all["calibration.statistics"] = {{"text", nullptr}};
    all["budget.bits"] = {{"bits", nullptr}};
    all["budget.size"] = {{"bits", nullptr}};
    return all;
  }();
  return kCompanions;
}

// The map with the value, and with what it needs beside it; null takes a key away.
Json with(Json map, const std::string& place, const std::string& option, const Json& value) {
  if (const auto found = companions().find(place + "." + option); found != companions().end()) {
    for (const auto& [key, companion] : found->second.items()) {
      companion.is_null() ? static_cast<void>(map.erase(key)) : static_cast<void>(map[key] = companion);
    }
  }
  map[option] = value;
  return map;
}

struct Found {
  std::vector<Json> good, bad;
};

// Values at the ends of what a schema of one value allows, and just outside.
Found values_of(const Json& schema) {
  Found found;
  if (schema.contains("enum")) {
    for (const Json& value : schema["enum"]) found.good.push_back(value);
    found.bad.push_back("no-such-choice");
    if (schema["enum"][0].is_number()) {
      const std::vector<int64_t> allowed = schema["enum"];
      const auto [low, high] = std::minmax_element(allowed.begin(), allowed.end());
      for (int64_t value = *low - 1; value <= *high + 1; ++value) {
        if (std::find(allowed.begin(), allowed.end(), value) == allowed.end()) found.bad.push_back(value);
      }
    }
    return found;
  }
  const Json& type = schema.at("type");
  if (type == "boolean") {
    found.good = {true, false};
    found.bad = {"perhaps", 2};
  } else if (type == "integer") {
    const int64_t most = std::numeric_limits<int64_t>::max();
    const int64_t low = schema.at("minimum"), high = schema.value("maximum", most);
    found.good = {low, high};
    found.bad = {low - 1, "many", static_cast<double>(low) + 0.5};
    if (high < most) found.bad.push_back(high + 1);
  } else if (type == "number") {
    const double high = schema.at("maximum");
    const bool is_above = schema.contains("exclusiveMinimum");
    const double low = schema.at(is_above ? "exclusiveMinimum" : "minimum");
    found.good = {is_above ? std::nextafter(low, high) + std::numeric_limits<double>::min() : low, high};
    found.bad = {is_above ? low : std::nextafter(low, -1e300), std::nextafter(high, 1e300), "many"};
  } else if (schema.contains("pattern")) {
    found.good = {schema["pattern"].get<std::string>().find('B') == std::string::npos ? "1:1024" : "76.5MiB"};
    found.bad = {"4:2x", Json::array({"2:4"})};
  } else {
    found.good = {"a"};
    found.bad = {Json::object(), ""};
  }
  return found;
}

int num_tried = 0;

void expect_read(const Json& recipe, const std::string& name) {
  try {
    parse_recipe(recipe.dump(), "r.yaml");
  } catch (const std::exception& error) {
    ADD_FAILURE() << name << ": the schema allows " << recipe.dump() << ", which is refused: " << error.what();
  }
}

void expect_refused(const Json& recipe, const std::string& name) {
  const std::string option = name.substr(name.rfind('.') + 1);
  SCOPED_TRACE(recipe.dump());
  expect_error<std::invalid_argument>([&] { parse_recipe(recipe.dump(), "r.yaml"); }, {"r.yaml:1: ", option});
}

// Every option of a map, at the ends of its range and beyond. `recipe_of` puts the map into a recipe that is right.
void try_map(const Json& schema, const std::string& place, const Json& base,
             const std::function<Json(const Json& map)>& recipe_of) {
  if (schema.contains("anyOf") && schema["anyOf"][0].contains("enum")) {  // a type may stand for the map
    for (const Json& type : schema["anyOf"][0]["enum"]) expect_read(recipe_of(type), place);
    expect_refused(recipe_of("no-such-type"), place);
    try_map(schema["anyOf"][1], place, base, recipe_of);
    return;
  }
  ASSERT_EQ(schema.at("additionalProperties"), false) << place;
  expect_refused(recipe_of(with(base, place, "no_such_key", 1)), place + ".no_such_key");
  for (const auto& [option, value_schema] : schema.at("properties").items()) {
    const std::string name = place + "." + option;
    if (name == "sweep.grid") continue;  // sweep_test.cpp
    const auto recipe_with = [&, option = option](const Json& value) {
      return recipe_of(with(base, place, option, value));
    };
    ++num_tried;
    if (value_schema.contains("properties") ||
        (value_schema.contains("anyOf") && value_schema["anyOf"][1].contains("properties"))) {
      try_map(value_schema, name, Json::object(), recipe_with);
      continue;
    }
    if (value_schema.value("type", Json()) == "array") {
      const Found items = values_of(value_schema.at("items"));
      expect_read(recipe_with(items.good), name);
      for (const Json& bad : items.bad) expect_refused(recipe_with(Json::array({bad})), name);
      continue;
    }
    if (value_schema.contains("anyOf")) {  // a text, or a list of texts
      expect_read(recipe_with("a"), name);
      expect_read(recipe_with({"a", "b"}), name);
      expect_refused(recipe_with(Json::object()), name);
      continue;
    }
    Found found = values_of(value_schema);
    if (name == "recipe.base_model") found.good = {"ORG/NAME", "a/b.c-d_e"};
    if (name == "gptq.prune") found.good = {"2:4", "1:1024", "none"};
    if (name.ends_with(".pattern")) found.good = {"2:4", "1:1024", "unstructured"};
    for (const Json& good : found.good) expect_read(recipe_with(good), name);
    for (const Json& bad : found.bad) expect_refused(recipe_with(bad), name);
  }
}

// Without what extension_test.cpp adds to the evaluations.
Json own_schema() {
  Json schema = Json::parse(recipe_schema());
  Json& keys = schema["properties"];
  for (Json* map : {&keys["evaluate"]["items"]["properties"], &keys["fail_if"]["properties"]}) {
    for (auto item = map->begin(); item != map->end();)
      item = item.key().starts_with("test_") ? map->erase(item) : ++item;
  }
  return schema;
}

class RangesOfTheSchema : public testing::Test {
 protected:
  RangesOfTheSchema() : schema_(own_schema()) { num_tried = 0; }
  const Json& top(const std::string& key) { return schema_.at("properties").at(key); }
  const Json schema_;
};

const Json kText = {{"text", "t"}};

TEST_F(RangesOfTheSchema, AreThoseOfEveryPass) {
  for (const PassRow* row : own_passes()) {
    const std::string pass(row->key);
    const Json base = pass == "distill" ? kText : Json::object();
    try_map(schema_.at("$defs").at("pass-" + pass), pass, base, [&](const Json& options) {
      Json passes = Json::array({Json{{pass, options}}});
      if (pass == "awq") passes.push_back({{"rtn", Json::object()}});
      if (pass == "smoothquant") passes.push_back({{"rtn", {{"activations", "int8"}}}});
      if (pass == "reconstruct") passes.insert(passes.begin(), Json{{"rtn", Json::object()}});
      return Json{{"calibration", kText}, {"passes", passes}};
    });
  }
  EXPECT_GT(num_tried, 130);
}

TEST_F(RangesOfTheSchema, AreThoseOfOverrides) {
  for (const PassRow* row : own_passes()) {
    const std::string pass(row->key);
    const Json& layers = schema_.at("$defs").at("layers-" + pass).at("properties");
    const auto recipe_of = [&](const Json& options) {
      Json passes = Json::array({Json{{pass, Json::object()}, {"layers", {{"override", {{"*.o", options}}}}}}});
      if (pass == "magnitude" || pass == "wanda" || pass == "sparsegpt") passes[0][pass]["pattern"] = "unstructured";
      return Json{{"calibration", kText}, {"passes", passes}};
    };
    if (!layers.contains("override")) {
      EXPECT_TRUE(overridable_options(*row->make_options()).empty()) << pass;
      continue;
    }
    // `pattern: unstructured` is the pass's own here: a pattern beside a ratio would be two answers.
    Json properties = layers["override"]["additionalProperties"];
    // A type that stands for the whole map is refused by the name of the map.
    try_map(properties, properties.contains("anyOf") ? pass + ".override" : pass, Json::object(), recipe_of);
  }
  EXPECT_GE(num_tried, 20);
}

TEST_F(RangesOfTheSchema, AreThoseOfTheTopLevelAndItsMaps) {
  const Json rtn = Json::array({Json{{"rtn", Json::object()}}});
  Json evaluations = Json::array();  // any gate compares with one of them
  for (const runtime::EvaluationRow* row : runtime::evaluation_rows()) {
    evaluations.push_back({{std::string(row->key), {{std::string(row->data_key), "file"}}}});
  }
  std::set<std::string> tried;
  const auto try_key = [&](const std::string& key, const Json& base, Json rest) {
    tried.insert(key);
    try_map(top(key), key, base, [&](const Json& map) {
      rest[key] = map;
      return rest;
    });
  };
  try_key("calibration", kText, {{"passes", rtn}});
  try_key("student", Json::object(), {{"calibration", kText}});
  try_key("head", Json::object(), {{"passes", rtn}});
  try_key("sensitivity", kText, {{"passes", rtn}});
  try_key("budget", {{"bits", 4}}, {{"passes", rtn}, {"calibration", kText}});
  try_key("benchmark", Json::object(), {{"passes", rtn}});
  try_key("fail_if", Json::object(), {{"passes", rtn}, {"evaluate", evaluations}});
  try_key("sweep", {{"grid", {{"rtn.bits", {3, 4}}}}}, {{"passes", rtn}});
  Json values = {{"additionalProperties", false}, {"properties", Json::object()}};
  for (const char* key : {"model", "base_model", "output", "container", "release_zeros", "strict"}) {
    values["properties"][key] = top(key);
    tried.insert(key);
  }
  // A container goes with codes that it holds.
  try_map(values, "recipe", {{"passes", rtn}}, [](Json recipe) {
    const std::string container = recipe.value("container", "");
    if (container == "nvfp4" || container == "mxfp4") recipe["passes"][0]["rtn"]["code"] = container;
    if (container.ends_with("_k") || container == "iq4_nl") {
      recipe["calibration"] = kText;
      recipe["passes"] = Json::array({Json{{"gguf", {{"type", container}}}}});
    }
    return recipe;
  });
  for (const auto& [key, unused] : schema_.at("properties").items()) {
    if (key == kPassesKey || key == kEvaluateKey) continue;
    EXPECT_TRUE(tried.contains(key)) << "nobody tries the ranges of " << key;
  }
  EXPECT_TRUE(top("passes").contains("items"));
}

TEST_F(RangesOfTheSchema, AreThoseOfEveryEvaluation) {
  std::map<std::string, Json> bases = {{"perplexity", kText}, {"embeddings", {{"pairs", "p.tsv"}}}};
  for (const runtime::EvaluationRow* row : runtime::evaluation_rows()) {
    if (row->data_key == "file") bases[std::string(row->key)] = {{"file", "i.jsonl"}};
  }
  for (const auto& [name, schema] : top("evaluate").at("items").at("properties").items()) {
    ASSERT_TRUE(bases.contains(name)) << name;
    try_map(schema, name, bases.at(name), [name = name](const Json& map) {
      return Json{{"passes", Json::array({Json{{"rtn", Json::object()}}})},
                  {"evaluate", Json::array({Json{{name, map}}})}};
    });
  }
}

TEST(RecipeSchema, LeavesOutWhatEvalAloneDoes) {
  const Json schema = own_schema();
  EXPECT_FALSE(schema["properties"]["evaluate"]["items"]["properties"]["perplexity"]["properties"].contains("store"));
  const Json evaluation = {{"perplexity", {{"text", "t"}, {"store", "a"}}}};
  const Json recipe = {{"passes", Json::array({Json{{"rtn", Json::object()}}})},
                       {"evaluate", Json::array({evaluation})}};
  expect_error<std::invalid_argument>([&] { parse_recipe(recipe.dump(), "r.yaml"); }, {"outside", "pare eval"});
}

}  // namespace
}  // namespace pare::test
