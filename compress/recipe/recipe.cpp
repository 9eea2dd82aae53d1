#include "compress/recipe/recipe.h"

#include <algorithm>
#include <limits>
#include <set>
#include <stdexcept>

#include "compress/recipe/pass_options.h"
#include "compress/recipe/recipe_passes.h"
#include "compress/recipe/yaml_value.h"
#include "runtime/format/container_format.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/byte_count.h"
#include "runtime/tokenizer/unicode.h"

namespace pare {
namespace {

using Value = YamlValue;

constexpr size_t kMaxRecipeBytes = size_t{1} << 20;

CalibrationRecipe read_calibration(const Value& value) {
  CalibrationRecipe calibration;
  value.read_map(
      {{"text", [&](const Value& v) { calibration.text = v.text(); }},
       {"statistics", [&](const Value& v) { calibration.statistics = v.text(); }},
       {"samples", [&](const Value& v) { calibration.num_samples = v.integer(1, 1 << 20); }},
       {"tokens", [&](const Value& v) { calibration.num_tokens = v.integer(1, 1 << 20); }},
       {"seed",
        [&](const Value& v) {
          calibration.seed = static_cast<uint64_t>(v.integer(0, std::numeric_limits<int64_t>::max()));
        }},
       {"experts", [&](const Value& v) {
          calibration.experts = v.choice<ExpertTokens>({{"routed", ExpertTokens::routed}, {"all", ExpertTokens::all}});
        }}});
  if (!calibration.statistics.empty()) {
    for (const char* key : {"text", "samples", "tokens", "seed", "experts"}) {
      if (value.has_key(key))
        value.fail("'statistics' already holds what '" + std::string(key) + "' would give: keep one");
    }
  } else if (calibration.text.empty()) {
    value.fail("'text' is missing: the text, .jsonl or .npy file to calibrate on");
  }
  return calibration;
}

PerplexityRecipe read_perplexity(const Value& value) {
  PerplexityRecipe perplexity;
  value.read_map({{"text", [&](const Value& v) { perplexity.text = v.text(); }},
                  {"context", [&](const Value& v) { perplexity.context = v.integer(2, 1 << 20); }},
                  {"windows", [&](const Value& v) { perplexity.num_windows = v.integer(0, 1 << 30); }},
                  {"protocol",
                   [&](const Value& v) {
                     perplexity.protocol = v.choice<std::string>({{"gptq", "gptq"}, {"llama.cpp", "llama.cpp"}});
                   }},
                  {"kv_bits",
                   [&](const Value& v) {
                     perplexity.kv_bits = v.choice<int>({{"32", 32}, {"8", 8}});
                   }},
                  {"attention_bits",
                   [&](const Value& v) {
                     perplexity.attention_bits = v.choice<int>({{"32", 32}, {"8", 8}});
                   }},
                  {"reference", [&](const Value& v) { perplexity.reference = v.boolean(); }}});
  if (perplexity.text.empty()) value.fail("'text' is missing: the text, .jsonl or .npy file to evaluate on");
  return perplexity;
}

InstructionsRecipe read_instructions_recipe(const Value& value) {
  InstructionsRecipe instructions;
  InstructionOptions& options = instructions.options;
  std::vector<std::pair<std::string, PromptTemplate>> templates;
  for (const PromptTemplate prompt_template : kPromptTemplates) {
    templates.emplace_back(prompt_template_name(prompt_template), prompt_template);
  }
  value.read_map(
      {{"file", [&](const Value& v) { instructions.file = v.text(); }},
       {"examples", [&](const Value& v) { instructions.num_examples = v.integer(0, 1 << 30); }},
       {"max_new_tokens", [&](const Value& v) { options.max_new_tokens = v.integer(1, 1 << 20); }},
       {"temperature", [&](const Value& v) { options.temperature = v.number(0.0, 1e6); }},
       {"seed",
        [&](const Value& v) {
          options.seed = static_cast<uint64_t>(v.integer(0, std::numeric_limits<int64_t>::max()));
        }},
       {"prompt_template", [&](const Value& v) { options.prompt_template = v.choice<PromptTemplate>(templates); }},
       {"stem", [&](const Value& v) { options.stem = v.boolean(); }},
       {"reference", [&](const Value& v) { instructions.reference = v.boolean(); }}});
  if (instructions.file.empty()) {
    value.fail("'file' is missing: the .json or .jsonl file of instructions with their answers");
  }
  return instructions;
}

EmbeddingsRecipe read_embeddings(const Value& value) {
  EmbeddingsRecipe embeddings;
  value.read_map({{"pairs", [&](const Value& v) { embeddings.pairs = v.text(); }},
                  {"reference", [&](const Value& v) { embeddings.reference = v.boolean(); }}});
  if (embeddings.pairs.empty()) value.fail("'pairs' is missing: the .tsv file of pairs of texts to compare");
  return embeddings;
}

SensitivityRecipe read_sensitivity(const Value& value) {
  SensitivityRecipe sensitivity;
  value.read_map({{"text", [&](const Value& v) { sensitivity.text = v.text(); }},
                  {"context", [&](const Value& v) { sensitivity.context = v.integer(2, 1 << 20); }},
                  {"windows", [&](const Value& v) { sensitivity.num_windows = v.integer(1, 1 << 20); }},
                  {"groups",
                   [&](const Value& list) {
                     for (const Value& item : list.list()) sensitivity.groups.push_back(item.text());
                   }},
                  {"sites", [&](const Value& v) {
                     sensitivity.sites = read_activations(v);
                     if (!sensitivity.sites.is_rowwise() || sensitivity.sites.range == InputRange::static_) {
                       v.fail("sites are measured with a range of each token's own: use 'range: token'");
                     }
                   }}});
  return sensitivity;
}

BudgetRecipe read_budget(const Value& value) {
  BudgetRecipe budget;
  value.read_map({{"bits", [&](const Value& v) { budget.bits = v.number(1.0, 16.0); }},
                  {"size",
                   [&](const Value& v) {
                     budget.size_bytes = parse_bytes(v.text());
                     if (!budget.size_bytes) v.fail("expected a size such as 80MB or 76MiB, found '" + v.text() + "'");
                   }},
                  {"allow", [&](const Value& list) {
                     budget.allowed.clear();
                     for (const Value& item : list.list()) {
                       const int64_t bits = item.integer(2, 16);
                       budget.allowed.push_back(bits == 16 ? 16 : read_bits(item));
                     }
                     if (budget.allowed.empty())
                       list.fail("expected some of 2, 3, 4 and 8 bits, and 16 for the model's own type");
                   }}});
  if (budget.bits.has_value() == budget.size_bytes.has_value()) {
    value.fail("expected either 'bits' (per weight of the blocks' linears) or 'size' (of all weight files)");
  }
  return budget;
}

// What both measure, and on what.
void check_sensitivity(const Recipe& recipe, const std::optional<Value>& passes, const Value& top) {
  const std::string key = recipe.budget ? "budget" : "sensitivity";
  const PassRecipe* rounding = find_pass(recipe, PassKind::rounds);
  PackScheme scheme{.format = StoredFormat::dense};
  if (rounding != nullptr) rounding->options->store(scheme);
  if (scheme.format == StoredFormat::dense) top.fail("'" + key + "' needs a pass that says how weights are rounded");
  const bool has_windows = recipe.calibration && recipe.calibration->statistics.empty();
  if (!has_windows && (!recipe.sensitivity || recipe.sensitivity->text.empty())) {
    top.fail("'" + key + "' measures losses on text: add 'sensitivity: {text: ...}'");
  }
  if (!recipe.budget) return;
  if (!recipe.calibration) top.fail("'budget' weighs errors with calibration statistics: add 'calibration:'");
  if (find_pass(recipe, PassKind::changes_weights) != nullptr) {
    top.fail(
        "'budget' chooses bits of weights that are all kept: leave out the pass that prunes, or give bits yourself");
  }
  if (std::as_const(*rounding->options).grid() == nullptr) {
    top.fail("'budget' chooses bits and group sizes, of which " + std::string(rounding->row->key) +
             " has none: use rtn or gptq");
  }
  if (const auto* gptq = dynamic_cast<const GptqPass*>(rounding->options.get()); gptq != nullptr) {
    if (gptq->gptq.act_order == ActOrder::group) {
      top.fail("'budget' counts codes and scales; act_order group stores an index for each input besides: use static");
    }
    if (!gptq->pattern().is_dense()) {
      top.fail("'budget' chooses bits of weights that are all kept: leave gptq's 'prune' out, or give bits yourself");
    }
  }
  if (recipe.sensitivity && !recipe.sensitivity->groups.empty()) {
    top.fail("'budget' measures every stage of every block: leave 'sensitivity.groups' out");
  }
  if (recipe.sensitivity && !recipe.sensitivity->sites.is_plain()) {
    top.fail("'budget' chooses bits of weights: leave 'sensitivity.sites' out");
  }
  for (const Value& pass : passes->list()) {
    for (const auto& [name, options] : pass.entries()) {
      if (!options.has_key("bits") && !options.has_key("group_size")) continue;
      options.fail("'budget' chooses bits and group sizes: leave them out here");
    }
  }
  for (const LayerOverride& item : rounding->overrides) {
    for (const NamedField& field : item.values) {
      if (field.name == "prune") {
        top.fail("'budget' chooses bits of weights that are all kept: take 'prune' out of the override of '" +
                 item.pattern + "', or give bits yourself");
      }
      if (field.name != "bits" && field.name != "group_size") continue;
      top.fail("'budget' chooses bits and group sizes: take them out of the override of '" + item.pattern + "'");
    }
  }
}

// A list of evaluations; an item without one is a mistake.
void read_evaluations(const Value& value, Recipe& recipe) {
  for (const Value& item : value.list()) {
    const auto count = [&] { return recipe.evaluate.size() + recipe.instructions.size() + recipe.embeddings.size(); };
    const size_t before = count();
    item.read_map(
        {{"perplexity", [&](const Value& v) { recipe.evaluate.push_back(read_perplexity(v)); }},
         {"instructions", [&](const Value& v) { recipe.instructions.push_back(read_instructions_recipe(v)); }},
         {"embeddings", [&](const Value& v) { recipe.embeddings.push_back(read_embeddings(v)); }}});
    if (count() == before) {
      item.fail("expected an evaluation, perplexity, instructions or embeddings, found none");
    }
  }
}

std::string read_container(const Value& value) {
  std::vector<std::pair<std::string, std::string>> choices;
  for (const ContainerFormat* format : container_formats()) {
    choices.emplace_back(format->name(), format->name());
  }
  return value.choice<std::string>(choices);
}

// Until the budget has chosen, what fits every layer.
void use_fitting_groups(Recipe& recipe) {
  for (PassRecipe& pass : recipe.passes) {
    if (pass.options->kind() != PassKind::rounds) continue;
    const std::shared_ptr<PassOptions> options = copy_of(*pass.options);
    options->grid()->group_size = kPerChannel;
    pass.options = options;
  }
}

// Gates compare with what some evaluation measures.
void check_gates(const Recipe& recipe, const Value& top) {
  const bool gates = recipe.fail_if.kl || recipe.fail_if.perplexity_ratio;
  const bool has_reference =
      std::any_of(recipe.evaluate.begin(), recipe.evaluate.end(), [](const auto& e) { return e.reference; });
  if (gates && !has_reference) {
    top.fail(
        "'fail_if' compares with the uncompressed model: add 'evaluate: [perplexity: {text: ...}]' with 'reference: "
        "true'");
  }
  const bool has_reference_encoder =
      std::any_of(recipe.embeddings.begin(), recipe.embeddings.end(), [](const auto& e) { return e.reference; });
  if (recipe.fail_if.cosine && !has_reference_encoder) {
    top.fail("'fail_if.cosine' compares with the uncompressed encoder: add 'evaluate: [embeddings: {pairs: ...}]'");
  }
}

}  // namespace

const PassRecipe* find_pass(const Recipe& recipe, PassKind kind) {
  const auto found = std::find_if(recipe.passes.begin(), recipe.passes.end(),
                                  [&](const PassRecipe& pass) { return pass.options->kind() == kind; });
  return found == recipe.passes.end() ? nullptr : &*found;
}

Recipe parse_recipe(const std::string& yaml, const std::filesystem::path& file) {
  Recipe recipe;
  recipe.text = yaml;
  recipe.file = file;
  // The recipe is stored in pare.json, which is UTF-8.
  if (const std::optional<size_t> bad = find_invalid_utf8(yaml)) {
    throw std::invalid_argument(
        file.string() + ":" +
        std::to_string(1 + std::count(yaml.begin(), yaml.begin() + static_cast<int64_t>(*bad), '\n')) +
        ": expected UTF-8, found a byte that is none: save the recipe as UTF-8");
  }
  const Value top = Value::parse(yaml, file);
  // Passes depend on whether there is calibration data, wherever in the file either stands.
  std::optional<Value> passes, student;
  top.read_map({{"model", [&](const Value& v) { recipe.model = v.text(); }},
                {"output", [&](const Value& v) { recipe.output = v.text(); }},
                {"calibration", [&](const Value& v) { recipe.calibration = read_calibration(v); }},
                {"student", [&](const Value& v) { student.emplace(v); }},
                {"passes", [&](const Value& v) { passes.emplace(v); }},
                {"head",
                 [&](const Value& v) {
                   HeadRecipe head;
                   v.read_map({{"bits", [&](const Value& bits) { head.bits = read_bits(bits); }},
                               {"group_size", [&](const Value& size) { head.group_size = read_group_size(size); }}});
                   recipe.head = head;
                 }},
                {"container",
                 [&](const Value& v) {
                   recipe.container = read_container(v);
                   recipe.asks_for_container = true;
                 }},
                {"sensitivity", [&](const Value& v) { recipe.sensitivity = read_sensitivity(v); }},
                {"budget", [&](const Value& v) { recipe.budget = read_budget(v); }},
                {"evaluate", [&](const Value& v) { read_evaluations(v, recipe); }},
                {"fail_if",
                 [&](const Value& v) {
                   v.read_map(
                       {{"kl", [&](const Value& kl) { recipe.fail_if.kl = kl.number(0.0, 1e6); }},
                        {"perplexity_ratio",
                         [&](const Value& ratio) { recipe.fail_if.perplexity_ratio = ratio.number(0.0, 1e6); }},
                        {"cosine", [&](const Value& cosine) { recipe.fail_if.cosine = cosine.number(-1.0, 1.0); }}});
                 }},
                {"release_zeros",
                 [&](const Value& v) {
                   recipe.kept_zeros = v.boolean() ? KeptZeros::none : KeptZeros::pruned;
                   recipe.asks_for_zeros = true;
                 }},
                {"strict", [&](const Value& v) { recipe.strict = v.boolean(); }}});
  if (student) recipe.student = read_student(*student, recipe.calibration);
  if (passes) {
    for (const Value& item : passes->list()) {
      recipe.passes.push_back(read_pass(item, recipe.calibration));
    }
    check_order(recipe, *passes);
  }
  if (recipe.passes.empty() && !recipe.head && !recipe.calibration && !recipe.student) {
    top.fail("nothing to do: give 'passes:' with at least one of " + pass_names(PassKind::rounds) + ", or 'head:'");
  }
  const bool has_layerwise = std::any_of(recipe.passes.begin(), recipe.passes.end(), [](const PassRecipe& pass) {
    return pass.options->kind() != PassKind::trains;
  });
  const bool has_phases = recipe.student || !recipe.passes.empty();
  const bool has_layerwise_keys = recipe.head || recipe.budget || recipe.sensitivity || recipe.asks_for_container;
  if (!has_layerwise && has_phases && has_layerwise_keys) {
    top.fail(
        "'head', 'budget', 'sensitivity' and 'container' belong to passes that work layer by layer: add one, or leave "
        "them out");
  }
  if (recipe.sensitivity || recipe.budget) check_sensitivity(recipe, passes, top);
  if (recipe.budget) use_fitting_groups(recipe);
  check_gates(recipe, top);
  return recipe;
}

Recipe read_recipe(const std::filesystem::path& path) {
  return parse_recipe(read_file_or_pipe(path, kMaxRecipeBytes), path);
}

bool matches_glob(std::string_view pattern, std::string_view name) {
  size_t p = 0;
  size_t n = 0;
  size_t star = std::string_view::npos;
  size_t retry = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++retry;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::shared_ptr<PassOptions> layer_options(const PassRecipe& pass, const std::string& layer, int64_t num_out,
                                           int64_t num_in) {
  for (const std::string& pattern : pass.exclude) {
    if (matches_glob(pattern, layer)) return nullptr;
  }
  std::shared_ptr<PassOptions> options = copy_of(*pass.options);
  for (const LayerOverride& item : pass.overrides) {
    if (matches_glob(item.pattern, layer)) assign_fields(item.values, *options);
  }
  options->check_layer(layer, num_out, num_in);
  return options;
}

}  // namespace pare
