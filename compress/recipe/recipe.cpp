#include "compress/recipe/recipe.h"

#include <algorithm>
#include <limits>
#include <set>
#include <stdexcept>

#include "compress/recipe/recipe_passes.h"
#include "compress/recipe/yaml_value.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/byte_count.h"

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
    value.fail("'text' is missing: the .txt, .jsonl or .npy file to calibrate on");
  }
  return calibration;
}

PerplexityRecipe read_perplexity(const Value& value) {
  PerplexityRecipe perplexity;
  bool has_context = false;
  value.read_map({{"text", [&](const Value& v) { perplexity.text = v.text(); }},
                  {"context",
                   [&](const Value& v) {
                     perplexity.context = v.integer(2, 1 << 20);
                     has_context = true;
                   }},
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
  if (perplexity.text.empty()) value.fail("'text' is missing: the .txt, .jsonl or .npy file to evaluate on");
  if (!has_context && perplexity.protocol == "llama.cpp") perplexity.context = 512;
  return perplexity;
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
                     sensitivity.sites = read_activations(v, InputType::int8);
                     if (!sensitivity.sites.is_rowwise() || sensitivity.sites.range == InputRange::fixed) {
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
                     if (budget.allowed.empty()) list.fail("expected some of 2, 3, 4 and 8 bits, and 16 for the model's own type");
                   }}});
  if (budget.bits.has_value() == budget.size_bytes.has_value()) {
    value.fail("expected either 'bits' (per weight of the blocks' linears) or 'size' (of all weight files)");
  }
  return budget;
}

// What both measure, and on what.
void check_sensitivity(const Recipe& recipe, const std::optional<Value>& passes, const Value& top) {
  const char* key = recipe.budget ? "budget" : "sensitivity";
  if (recipe.passes.empty() || recipe.passes.front().defaults.method == Method::activations) {
    top.fail("'" + std::string(key) + "' needs a pass that says how weights are rounded");
  }
  const bool has_windows = recipe.calibration && recipe.calibration->statistics.empty();
  if (!has_windows && (!recipe.sensitivity || recipe.sensitivity->text.empty())) {
    top.fail("'" + std::string(key) + "' measures losses on text: add 'sensitivity: {text: ...}'");
  }
  if (!recipe.budget) return;
  if (!recipe.calibration) top.fail("'budget' weighs errors with calibration statistics: add 'calibration:'");
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
  for (const LayerOverride& item : recipe.passes.front().overrides) {
    if (item.bits || item.group_size) {
      top.fail("'budget' chooses bits and group sizes: take them out of the override of '" + item.pattern + "'");
    }
  }
}

}  // namespace

std::string_view method_name(Method method) {
  switch (method) {
    case Method::rtn:
      return "rtn";
    case Method::gptq:
      return "gptq";
    case Method::fp8:
      return "fp8";
    case Method::llm_int8:
      return "llm_int8";
    case Method::activations:
      return "activations";
  }
  throw std::invalid_argument("no such method");
}

bool rounds_to_grid(Method method) {
  return method == Method::rtn || method == Method::gptq;
}

Recipe parse_recipe(const std::string& yaml, const std::filesystem::path& file) {
  Recipe recipe;
  recipe.text = yaml;
  recipe.file = file;
  const Value top = Value::parse(yaml, file);
  // Passes depend on whether there is calibration data, wherever in the file either stands.
  std::optional<Value> passes;
  top.read_map(
      {{"model", [&](const Value& v) { recipe.model = v.text(); }},
       {"output", [&](const Value& v) { recipe.output = v.text(); }},
       {"calibration", [&](const Value& v) { recipe.calibration = read_calibration(v); }},
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
          recipe.container = v.choice<Container>(
              {{"compressed-tensors", Container::compressed_tensors}, {"awq-gemm", Container::awq_gemm}});
        }},
       {"sensitivity", [&](const Value& v) { recipe.sensitivity = read_sensitivity(v); }},
       {"budget", [&](const Value& v) { recipe.budget = read_budget(v); }},
       {"evaluate",
        [&](const Value& v) {
          for (const Value& item : v.list()) {
            item.read_map({{"perplexity", [&](const Value& p) { recipe.evaluate.push_back(read_perplexity(p)); }},
                           {"embeddings", [&](const Value& e) { recipe.embeddings.push_back(read_embeddings(e)); }}});
          }
        }},
       {"fail_if",
        [&](const Value& v) {
          v.read_map({{"kl", [&](const Value& kl) { recipe.fail_if.kl = kl.number(0.0, 1e6); }},
                      {"perplexity_ratio",
                       [&](const Value& ratio) { recipe.fail_if.perplexity_ratio = ratio.number(0.0, 1e6); }},
                      {"cosine", [&](const Value& cosine) { recipe.fail_if.cosine = cosine.number(-1.0, 1.0); }}});
        }},
       {"strict", [&](const Value& v) { recipe.strict = v.boolean(); }}});
  if (passes) {
    for (const Value& item : passes->list()) {
      if (!item.has_key("awq") && !item.has_key("smoothquant")) {
        recipe.passes.push_back(read_pass(item, recipe.calibration.has_value()));
        continue;
      }
      if (recipe.scaling) item.fail("two scaling passes: keep one");
      if (!recipe.passes.empty()) {
        item.fail("inputs are scaled before weights are rounded: put awq or smoothquant before the method that rounds");
      }
      recipe.scaling = read_scaling(item, recipe.calibration.has_value());
    }
    if (recipe.scaling) check_scaling(recipe, *passes);
  }
  if (recipe.passes.empty() && !recipe.head && !recipe.calibration) {
    top.fail("nothing to do: give 'passes:' with at least one of " + method_names() + ", or 'head:'");
  }
  if (recipe.passes.size() > 1) {
    passes->fail("two quantization passes: weights can be rounded only once. Use one pass with 'layers.override'");
  }
  if (recipe.sensitivity || recipe.budget) check_sensitivity(recipe, passes, top);
  // Until the budget has chosen, what fits every layer.
  if (recipe.budget) recipe.passes.front().defaults.gptq.grid.group_size = kPerChannel;
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
  return recipe;
}

Recipe read_recipe(const std::filesystem::path& path) {
  return parse_recipe(read_text_file(path, kMaxRecipeBytes), path);
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

std::optional<LayerOptions> layer_options(const PassRecipe& pass, const std::string& layer, int64_t num_out,
                                          int64_t num_in) {
  for (const std::string& pattern : pass.exclude) {
    if (matches_glob(pattern, layer)) return std::nullopt;
  }
  LayerOptions options = pass.defaults;
  GridOptions& grid = options.gptq.grid;
  for (const LayerOverride& override_ : pass.overrides) {
    if (!matches_glob(override_.pattern, layer)) continue;
    if (override_.bits) grid.bits = *override_.bits;
    if (override_.group_size) grid.group_size = *override_.group_size;
    if (override_.symmetric) grid.symmetric = *override_.symmetric;
    if (override_.input) options.input = *override_.input;
  }
  if (grid.per_tensor && grid.group_size != kPerChannel) {
    throw std::invalid_argument("layer " + layer + ": per_tensor leaves no room for groups of " +
                                std::to_string(grid.group_size) + ": drop one of them");
  }
  if (grid.group_size != kPerChannel && num_in % grid.group_size != 0) {
    std::string fitting;
    for (const int64_t size : {32, 64, 128}) {
      if (num_in % size == 0) fitting += std::to_string(size) + ", ";
    }
    throw std::invalid_argument("layer " + layer + " [" + std::to_string(num_out) + ", " + std::to_string(num_in) +
                                "]: group size " + std::to_string(grid.group_size) + " does not divide its " +
                                std::to_string(num_in) + " inputs; use " + fitting + (fitting.empty() ? "" : "or ") +
                                "-1 (one scale per output channel), for this layer alone with 'layers: {override: {\"" +
                                layer + "\": {group_size: -1}}}'");
  }
  return options;
}

}  // namespace pare
