#include "compress/recipe/recipe_keys.h"

#include <algorithm>
#include <set>

#include "compress/recipe/given_options.h"
#include "runtime/containers/container_table.h"
#include "runtime/system/byte_count.h"

namespace pare::compress {
namespace {

namespace fs = std::filesystem;

constexpr runtime::TextForm kSizeForm = {"a size, such as 80MB or 76MiB", "^[0-9]+(\\.[0-9]*)?([kKMGT]B|[KMGT]iB|B)?$"};
// is_hub_name
constexpr runtime::TextForm kHubForm = {"a name such as ORG/NAME",
                                        "^[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}$"};

void visit_path(runtime::FieldVisitor& visit, std::string_view name, fs::path& path, std::string_view meaning) {
  std::string text = path.string();
  visit(name, text, meaning);
  path = text;
}

// A count of at least one; 0 stands for none given.
void visit_count(runtime::FieldVisitor& visit, std::string_view name, std::optional<int64_t>& count,
                 const runtime::FieldLimits& limits, std::string_view meaning) {
  int64_t value = count.value_or(0);
  visit(name, value, limits, meaning);
  count.reset();
  if (value != 0) count = value;
}

bool holds(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

void CalibrationRecipe::fields(runtime::FieldVisitor& visit) {
  const std::string samples = std::to_string(kCalibrationSamples), tokens = std::to_string(kCalibrationTokens);
  visit_path(
      visit, "text", text,
      "Statistics are taken on this file: a `.txt`, a `.jsonl` of texts or conversations, or a `.npy` of token ids.");
  visit_path(visit, "statistics", statistics,
             "This file of `pare calibrate` takes the place of a text and of all other keys here.");
  visit_count(visit, "samples", num_samples, {.low = 1, .high = 1 << 20},
              "This many windows are taken. Without it there are " + samples + ", or fewer where the text has fewer.");
  visit_count(visit, "tokens", num_tokens, {.low = 1, .high = 1 << 20},
              "A window has this many tokens. Without it there are " + tokens + ", or what a `.npy` has.");
  visit(
      "seed", seed, {.low = 0},
      "Windows are drawn with this seed from a text that has more than are taken. From a `.npy` the first are taken.");
  visit("experts", experts,
        "`routed` calibrates an expert on the tokens that its router sends it. `all` gives every expert all tokens.");
}

void HeadRecipe::fields(runtime::FieldVisitor& visit) {
  visit("bits", bits, quant::bits_limits(), "Each of their weights becomes a code of this many bits.");
  visit("group_size", group_size, quant::group_limits(),
        "This many neighbouring inputs of a row share one scale. With -1 a whole row shares one.");
}

EvaluationItem::EvaluationItem() {
  for (const runtime::EvaluationRow* row : runtime::evaluation_rows()) all.push_back(row->make_options());
}

void EvaluationItem::fields(runtime::FieldVisitor& visit) {
  for (size_t i = 0; const runtime::EvaluationRow* row : runtime::evaluation_rows())
    visit(row->key, *all[i++], row->meaning);
}

std::vector<runtime::OptionRow> evaluation_option_rows() {
  EvaluationItem evaluation;
  std::vector<runtime::OptionRow> rows = runtime::option_rows(runtime::fields_of(evaluation));
  for (size_t i = 0; const runtime::EvaluationRow* row : runtime::evaluation_rows()) {
    const std::string written = std::string(row->key) + "." + std::string(evaluation.all[i++]->written_key());
    std::erase_if(rows, [&](const runtime::OptionRow& option) { return option.name == written; });
  }
  return rows;
}

void SensitivityRecipe::fields(runtime::FieldVisitor& visit) {
  struct Sites {
    runtime::InputFormat& format;
    void fields(runtime::FieldVisitor& inner) {
      static const runtime::InputChoices kChoices = {.types = {runtime::InputType::plain, runtime::InputType::int8},
                                                     .ranges = {runtime::InputRange::token}};
      format.fields(inner, kChoices);
    }
  };
  visit_path(visit, "text", text,
             "Losses are measured on this file. Without it, the first windows of the calibration are read.");
  visit_count(visit, "context", context, {.low = 2, .high = 1 << 20},
              "A window has this many tokens. Without it there are 512, or what a `.npy` has.");
  visit("windows", num_windows, {.low = 1, .high = 1 << 20}, "This many windows are read.");
  visit(
      "groups", groups,
      "The layers whose names match one of these patterns are one group. Without it, each stage of each block is one.");
  Sites of_format{sites};
  visit("sites", of_format,
        "Each kind of activation is rounded alone as well, to this format. A type alone stands for a map with that "
        "type.");
}

void BudgetRecipe::fields(runtime::FieldVisitor& visit) {
  visit("bits", bits, {.low = 1.0, .high = 16.0},
        "A weight of the blocks' linears takes this many bits on average, with its share of the scales.");
  std::string size = size_bytes ? std::to_string(*size_bytes) : "";
  visit("size", size, kSizeForm, "All weight files together have at most this size.");
  size_bytes = size.empty() ? std::nullopt : runtime::parse_bytes(size);
  std::vector<int64_t> bits_of_stages(allowed.begin(), allowed.end());
  visit("allow", bits_of_stages, {.values = {2, 3, 4, 8, 16}},
        "The bits of each stage are chosen from these. 16 leaves weights in the model's own type.");
  allowed.assign(bits_of_stages.begin(), bits_of_stages.end());
}

void BenchmarkRecipe::fields(runtime::FieldVisitor& visit) {
  visit("prefill_tokens", options.prefill_tokens, {.low = 1, .high = 1 << 20},
        "The speed of prefill is measured on a prompt of this many tokens.");
  visit("decode_tokens", options.decode_tokens, {.low = 1, .high = 1 << 20},
        "The speed of decode is measured on this many tokens, one by one.");
  visit("repetitions", options.repetitions, {.low = 1, .high = 1000},
        "Both are measured this often. The best and the median are reported.");
  visit("reference", reference, "The uncompressed model is measured as well.");
}

void SweepRecipe::fields(runtime::FieldVisitor& visit) {
  visit.other("grid",
              "This maps keys of the recipe to lists of values, such as `gptq.bits: [3, 4]`. Each choice of one value "
              "for every key is a point. A list of such maps has the points of all of them.");
  visit("statistics", statistics,
        "All points start from one file of statistics, taken once. With `false` each point calibrates by itself.");
}

void FailIf::fields(runtime::FieldVisitor& visit) {
  std::set<std::string_view> visited;  // rows may share a gate
  for (const runtime::EvaluationRow* row : runtime::evaluation_rows()) {
    for (const runtime::Gate& gate : row->gates) {
      if (!visited.insert(gate.name).second) continue;
      std::optional<double> bound;
      if (const auto found = bounds.find(gate.name); found != bounds.end()) bound = found->second;
      visit(gate.name, bound, gate.limits, gate.meaning);
      if (bound) bounds[std::string(gate.name)] = *bound;
    }
  }
}

void LayersRecipe::fields(runtime::FieldVisitor& visit) {
  visit("exclude", exclude,
        "Layers whose names match one of these patterns are left alone. In a pattern, `*` stands for any text and `?` "
        "for one character.");
  visit.other(
      kOverrideKey,
      "This maps patterns to options that layers with matching names get instead. The last pattern that matches "
      "counts.");
}

std::string_view Recipe::asked_container() const {
  if (folder_format != nullptr) return folder_format->name;
  return gguf_format != nullptr ? gguf_format->name : std::string_view(container);
}

void Recipe::fields(runtime::FieldVisitor& visit) {
  std::vector<std::string_view> containers;
  for (const runtime::ContainerFormat* format : runtime::container_formats()) {
    if (format->is_for_recipes()) containers.push_back(format->name());
  }
  const std::vector<std::string_view> own = containers;
  for (const runtime::FolderFormat& format : runtime::folder_formats()) {
    if (std::ranges::find(own, format.name) == own.end()) containers.push_back(format.name);
  }
  for (const runtime::GgufFormat& format : runtime::gguf_formats()) containers.push_back(format.name);
  visit_path(visit, "model", model,
             "This checkpoint is compressed: a directory or a `.gguf` file. `--model` takes its place.");
  visit("base_model", base_model, kHubForm,
        "The model has this name on the Hugging Face Hub, which the result's model card gives. A hub's cache says it "
        "itself.");
  visit_path(visit, "output", output,
             "The result goes to this directory, which must not exist. `--out` takes its place.");
  visit("calibration", calibration, "Passes that need data take their statistics from it.");
  visit("student", student, "The model is first made smaller, from copies and means of its own weights.");
  visit.other(kPassesKey, "These passes are applied one after the other.");
  visit("head", head, "The embedding and the head are rounded to codes as well. Only pare loads such a model.");
  std::string asked(asked_container());
  visit(
      "container", asked, std::span<const std::string_view>(containers),
      "The result is stored in this format, which must hold the passes' codes. `gguf` and the types of GGUF write one "
      "`.gguf` file, and `dense` what the codes stand for. `llm_int8` has layouts of its own.");
  const bool is_own = std::ranges::find(own, asked) != own.end();
  folder_format = is_own ? nullptr : runtime::find_folder_format(asked);
  gguf_format = is_own || folder_format != nullptr ? nullptr : runtime::find_gguf_format(asked);
  container = is_own ? asked : std::string(runtime::kCompressedTensors);
  visit("sensitivity", sensitivity, "This measures what rounding each group of layers alone adds to the loss.");
  visit("budget", budget,
        "Bits and group sizes are chosen for each stage of each block, to keep to a size. This takes either `bits` or "
        "`size`.");
  visit.other(kEvaluateKey, "The result is measured by these evaluations.");
  visit("benchmark", benchmark,
        "The result's speed is measured, and the highest speeds of the machine beside it. Both are in the report "
        "alone.");
  visit("fail_if", fail_if, "The run fails where the result is worse than this.");
  visit("sweep", sweep,
        "`pare sweep` runs a recipe for each point of a grid. `pare run` refuses a recipe that has this key.");
  bool releases_zeros = kept_zeros == KeptZeros::none;
  visit("release_zeros", releases_zeros, "Zeros that pruning has made in the source may change.");
  if (releases_zeros) kept_zeros = KeptZeros::none;
  visit("strict", strict, "Events, such as a fallback or a raised damping, are errors.");
}

std::vector<std::string> overridable_options(const PassOptions& options) {
  std::vector<std::string> names;
  for (const std::string& name : names_of_fields(runtime::fields_of(*copy_of(options)))) {
    if (options.is_overridable(name.substr(0, name.find('.')))) names.push_back(name);
  }
  return names;
}

std::string where_it_belongs(const std::string& key) {
  std::vector<std::string> places, passes;
  for (const PassRow* row : pass_rows()) {
    if (row->key == key) places.push_back("'passes', as the name of an item");
    const std::unique_ptr<PassOptions> options = row->make_options();
    if (holds(names_of_fields(runtime::fields_of(*options)), key)) passes.emplace_back(row->key);
  }
  if (!passes.empty())
    places.push_back((passes.size() > 1 ? "the passes " : "the pass ") + runtime::listed(passes, "and"));
  Recipe recipe;
  EvaluationItem evaluation;
  LayersRecipe layers;
  const auto look = [&](const runtime::VisitFields& fields, const std::string& top, const std::string& inner) {
    for (const std::string& name : names_of_fields(fields)) {
      const size_t dot = name.rfind('.');
      if (name == key && !top.empty()) places.push_back(top);
      if (dot != std::string::npos && name.substr(dot + 1) == key) {
        places.push_back("'" + inner + name.substr(0, dot) + "'");
      }
    }
  };
  look(runtime::fields_of(recipe), "the top level of the recipe", "");
  look(runtime::fields_of(evaluation), "'evaluate', as the name of an item", "evaluate.");
  look(runtime::fields_of(layers), "'layers', beside the name of a pass", "");
  if (key == kLayersKey) places.push_back("an item of 'passes', beside the name of its pass");
  return places.empty() ? "" : "it belongs to " + runtime::listed(places, "or");
}

}  // namespace pare::compress
