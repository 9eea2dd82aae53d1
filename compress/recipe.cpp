#include "compress/recipe.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <stdexcept>

#include "compress/yaml_value.h"
#include "runtime/atomic_file.h"
#include "runtime/byte_count.h"

namespace pare {
namespace {

using Value = YamlValue;

constexpr size_t kMaxRecipeBytes = size_t{1} << 20;
constexpr std::array<Method, 5> kMethods = {Method::rtn, Method::gptq, Method::fp8, Method::llm_int8,
                                            Method::activations};

std::string method_names() {
  std::string names;
  for (const Method method : kMethods) names += (names.empty() ? "" : ", ") + std::string(method_name(method));
  return names;
}

int read_bits(const Value& value) {
  const int64_t bits = value.integer(2, 8);
  if (bits != 2 && bits != 3 && bits != 4 && bits != 8) {
    value.fail("expected 2, 3, 4 or 8 bits, found " + std::to_string(bits));
  }
  return static_cast<int>(bits);
}

int64_t read_group_size(const Value& value) {
  const int64_t size = value.integer(-1, 128);
  if (size != kPerChannel && size != 32 && size != 64 && size != 128) {
    value.fail("expected a group size of 32, 64, 128, or -1 for one scale per output channel, found " +
               std::to_string(size));
  }
  return size;
}

Value::Handlers grid_handlers(GridOptions& grid) {
  return {{"bits", [&](const Value& v) { grid.bits = read_bits(v); }},
          {"group_size", [&](const Value& v) { grid.group_size = read_group_size(v); }},
          {"symmetric", [&](const Value& v) { grid.symmetric = v.boolean(); }},
          {"per_tensor", [&](const Value& v) { grid.per_tensor = v.boolean(); }}};
}

InputRange read_range(const Value& value) {
  return value.choice<InputRange>(
      {{"token", InputRange::token}, {"tensor", InputRange::sequence}, {"static", InputRange::fixed}});
}

// `activations:` of integer weights: `int8`, or a map of how.
InputFormat read_activations(const Value& value, InputType type) {
  InputFormat format{.type = type};
  const std::string type_name = type == InputType::fp8 ? "fp8" : "int8";
  if (!value.is_map()) {
    return value.choice<InputFormat>({{"none", {}}, {type_name, format}});
  }
  Value::Handlers handlers = {{"range", [&](const Value& v) { format.range = read_range(v); }}};
  if (type == InputType::int8) {
    handlers.emplace_back("symmetric", [&](const Value& v) { format.symmetric = v.boolean(); });
  }
  value.read_map(handlers);
  return format;
}

AwqOptions read_awq(const Value& value) {
  AwqOptions awq;
  value.read_map(
      {{"duo_scaling", [&](const Value& v) { awq.duo_scaling = v.boolean(); }},
       {"grid_points", [&](const Value& v) { awq.num_grid_points = static_cast<int>(v.integer(1, 1000)); }}});
  return awq;
}

SmoothQuantOptions read_smoothquant(const Value& value) {
  SmoothQuantOptions smooth;
  value.read_map({{"alpha", [&](const Value& v) {
                     const double alpha = v.number(-1.0, 1.0);
                     if (alpha < 0.0) v.fail("expected a number from 0 to 1; leave it out to have it searched");
                     smooth.alpha = alpha;
                   }}});
  return smooth;
}

void read_exclude(const Value& list, std::vector<std::string>& exclude) {
  for (const Value& item : list.list()) exclude.push_back(item.text());
}

void require_calibration(const Value& value, bool has_calibration, const std::string& what,
                         const std::string& instead) {
  if (has_calibration) return;
  value.fail(what + ": add 'calibration:' to the recipe" + (instead.empty() ? "" : ", or " + instead));
}

// A static range is measured; all others are found as inputs come.
void check_range(const InputFormat& input, const Value& value, bool has_calibration) {
  if (input.range != InputRange::fixed) return;
  require_calibration(value, has_calibration, "a static range is measured on calibration data", "use token or tensor");
}

LayerOverride read_override(const std::string& pattern, const Value& value, bool has_calibration) {
  LayerOverride override_{.pattern = pattern, .bits = {}, .group_size = {}, .symmetric = {}, .input = {}};
  value.read_map({{"bits", [&](const Value& v) { override_.bits = read_bits(v); }},
                  {"group_size", [&](const Value& v) { override_.group_size = read_group_size(v); }},
                  {"symmetric", [&](const Value& v) { override_.symmetric = v.boolean(); }},
                  {"activations", [&](const Value& v) {
                     override_.input = read_activations(v, InputType::int8);
                     check_range(*override_.input, v, has_calibration);
                   }}});
  return override_;
}

// fp8 and llm_int8 leave nothing of the grid to choose: 8 bits, a scale per output, no refinement of codes.
void use_eight_bits_per_channel(LayerOptions& layer) {
  layer.refine.sweeps = 0;
  layer.gptq.grid.bits = 8;
  layer.gptq.grid.group_size = kPerChannel;
  layer.gptq.grid.scales = ScaleSearch::minmax;
}

// `awq:` or `smoothquant:` with its options, and `layers:` beside it.
ScalingRecipe read_scaling(const Value& value, bool has_calibration) {
  ScalingRecipe scaling;
  int num_methods = 0;
  const auto check = [&](const Value& v, const std::string& name) {
    if (++num_methods > 1) v.fail("one pass has one method; keep awq or smoothquant");
    require_calibration(v, has_calibration, name + " needs calibration data", "");
  };
  value.read_map({{"awq",
                   [&](const Value& v) {
                     check(v, "awq");
                     scaling.options = read_awq(v);
                   }},
                  {"smoothquant",
                   [&](const Value& v) {
                     check(v, "smoothquant");
                     scaling.options = read_smoothquant(v);
                   }},
                  {"layers", [&](const Value& layers) {
                     layers.read_map({{"exclude", [&](const Value& v) { read_exclude(v, scaling.exclude); }}});
                   }}});
  return scaling;
}

// The options of rtn and gptq.
void read_integer_method(const Value& options, bool has_calibration, LayerOptions& layer) {
  GptqOptions& gptq = layer.gptq;
  bool chose_scales = false;
  Value::Handlers handlers = grid_handlers(gptq.grid);
  handlers.emplace_back("scales", [&](const Value& v) {
    chose_scales = true;
    gptq.grid.scales = v.choice<ScaleSearch>({{"minmax", ScaleSearch::minmax},
                                              {"squared_error", ScaleSearch::squared_error},
                                              {"hessian_diagonal", ScaleSearch::hessian_diagonal},
                                              {"hessian", ScaleSearch::hessian}});
    if (gptq.grid.scales == ScaleSearch::hessian_diagonal || gptq.grid.scales == ScaleSearch::hessian) {
      require_calibration(v, has_calibration, v.text() + " weighs errors with calibration statistics",
                          "use squared_error");
    }
  });
  handlers.emplace_back("refine", [&](const Value& v) {
    layer.refine.sweeps = static_cast<int>(v.integer(0, kMaxRefineSweeps));
    if (layer.refine.sweeps > 0) {
      require_calibration(v, has_calibration, "refine needs calibration data", "leave it out");
    }
  });
  handlers.emplace_back("activations", [&](const Value& v) {
    layer.input = read_activations(v, InputType::int8);
    check_range(layer.input, v, has_calibration);
  });
  if (layer.method == Method::rtn) layer.refine.sweeps = 0;
  if (layer.method == Method::gptq) {
    handlers.emplace_back("act_order", [&](const Value& v) {
      gptq.act_order = v.choice<ActOrder>(
          {{"none", ActOrder::none}, {"static", ActOrder::static_groups}, {"group", ActOrder::group}});
    });
    handlers.emplace_back("damping", [&](const Value& v) { gptq.damping = v.number(0.0, 1.0); });
    handlers.emplace_back("block_size", [&](const Value& v) { gptq.block_size = v.integer(1, 4096); });
  }
  options.read_map(handlers);
  if (layer.method == Method::gptq) require_calibration(options, has_calibration, "gptq needs calibration data", "");
  if (gptq.grid.per_tensor) {
    if (gptq.grid.group_size != kPerChannel) {
      options.fail("per_tensor: one scale for the whole weight leaves no room for groups: add 'group_size: -1'");
    }
    if (gptq.grid.scales == ScaleSearch::hessian)
      options.fail("per_tensor: 'scales: hessian' searches groups of a row");
    layer.refine.grids = false;  // rows share their scale
  }
  if (!chose_scales && !has_calibration) gptq.grid.scales = ScaleSearch::squared_error;
}

void read_fp8(const Value& options, bool has_calibration, LayerOptions& layer) {
  use_eight_bits_per_channel(layer);
  layer.input = {.type = InputType::fp8};
  options.read_map({{"per_tensor", [&](const Value& v) { layer.gptq.grid.per_tensor = v.boolean(); }},
                    {"activations", [&](const Value& v) {
                       layer.input = read_activations(v, InputType::fp8);
                       check_range(layer.input, v, has_calibration);
                     }}});
}

void read_llm_int8(const Value& options, bool has_calibration, LayerOptions& layer) {
  use_eight_bits_per_channel(layer);
  layer.input = {.type = InputType::int8, .outliers = OutlierRule::absolute};
  LlmInt8Options& llm_int8 = layer.llm_int8;
  std::optional<LlmInt8Layout> layout;
  options.read_map(
      {{"threshold", [&](const Value& v) { llm_int8.value = v.number(0.0, 1e6); }},
       {"measure",
        [&](const Value& v) {
          llm_int8.measure = v.choice<OutlierMeasure>({{"absolute", OutlierMeasure::absolute},
                                                       {"rms", OutlierMeasure::rms},
                                                       {"median", OutlierMeasure::median_absmax}});
          if (llm_int8.measure == OutlierMeasure::median_absmax) {
            require_calibration(v, has_calibration, "the median channel is known from calibration", "use rms");
          }
        }},
       {"outliers",
        [&](const Value& v) {
          llm_int8.time = v.choice<OutlierTime>({{"dynamic", OutlierTime::dynamic}, {"static", OutlierTime::fixed}});
          if (llm_int8.time == OutlierTime::fixed) {
            require_calibration(v, has_calibration, "static outlier columns are found in calibration data",
                                "use dynamic");
          }
        }},
       {"activations",
        [&](const Value& v) {
          const InputFormat input = read_activations(v, InputType::int8);
          if (input.is_plain() || input.range != InputRange::token) {
            v.fail("LLM.int8 rounds inputs to int8 per token: expected int8 or {symmetric: false}");
          }
          layer.input.symmetric = input.symmetric;
        }},
       {"layout", [&](const Value& v) {
          layout =
              v.choice<LlmInt8Layout>({{"bitsandbytes", LlmInt8Layout::bitsandbytes}, {"pare", LlmInt8Layout::own}});
        }}});
  // bitsandbytes' file has one threshold for all layers and finds its columns itself, with symmetric inputs.
  const bool fits =
      llm_int8.measure == OutlierMeasure::absolute && llm_int8.time == OutlierTime::dynamic && layer.input.symmetric;
  if (layout == LlmInt8Layout::bitsandbytes && !fits) {
    options.fail(
        "layout bitsandbytes stores one absolute threshold, finds outliers dynamically and rounds inputs "
        "symmetrically: "
        "use 'layout: pare' for relative thresholds, static columns or asymmetric inputs");
  }
  llm_int8.layout = layout.value_or(fits ? LlmInt8Layout::bitsandbytes : LlmInt8Layout::own);
}

// `activations: int8`, or a map of how.
void read_activations_alone(const Value& value, bool has_calibration, LayerOptions& layer) {
  layer.refine.sweeps = 0;
  layer.gptq.grid.bits = kDenseBits;
  layer.gptq.grid.group_size = kPerChannel;
  layer.gptq.grid.scales = ScaleSearch::minmax;
  layer.input = read_activations(value, InputType::int8);
  if (layer.input.is_plain()) value.fail("inputs are left alone as well: expected int8");
  if (layer.input.range == InputRange::fixed) {
    require_calibration(value, has_calibration, "a static range is measured on calibration data",
                        "use token or tensor");
  }
}

// `rtn:`, `gptq:`, `fp8:`, `llm_int8:` or `activations:` with its options, and `layers:` beside it.
PassRecipe read_pass(const Value& value, bool has_calibration) {
  PassRecipe pass;
  int num_methods = 0;
  Value::Handlers handlers;
  for (const char* scaling : {"awq", "smoothquant"}) {
    handlers.emplace_back(scaling, [](const Value& v) { v.fail("a pass of its own: start a new list item with '-'"); });
  }
  for (const Method method : kMethods) {
    handlers.emplace_back(method_name(method), [&, method](const Value& v) {
      if (++num_methods > 1) v.fail("one pass has one method; start a new list item with '-' for the next");
      pass.defaults.method = method;
      if (method == Method::fp8) return read_fp8(v, has_calibration, pass.defaults);
      if (method == Method::llm_int8) return read_llm_int8(v, has_calibration, pass.defaults);
      if (method == Method::activations) return read_activations_alone(v, has_calibration, pass.defaults);
      read_integer_method(v, has_calibration, pass.defaults);
    });
  }
  handlers.emplace_back("layers", [&](const Value& layers) {
    layers.read_map({{"exclude", [&](const Value& v) { read_exclude(v, pass.exclude); }},
                     {"override", [&](const Value& map) {
                        for (const auto& [pattern, options] : map.entries()) {
                          pass.overrides.push_back(read_override(pattern, options, has_calibration));
                        }
                      }}});
  });
  value.read_map(handlers);
  if (num_methods == 0) value.fail("expected a method: " + method_names());
  if (!rounds_to_grid(pass.defaults.method) && !pass.overrides.empty()) {
    value.fail("'layers.override' changes bits and groups of rtn and gptq; " +
               std::string(method_name(pass.defaults.method)) + " has neither");
  }
  return pass;
}

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

void check_scaling(const Recipe& recipe, const Value& passes) {
  const std::string name(recipe.scaling->name());
  if (recipe.passes.empty()) {
    passes.fail(name + " only prepares the weights: add a pass that rounds them, rtn or gptq, after it");
  }
  const LayerOptions& options = recipe.passes.front().defaults;
  if (!rounds_to_grid(options.method)) {
    passes.fail(name + " prepares weights for rtn or gptq; " + std::string(method_name(options.method)) +
                " deals with outliers itself");
  }
  if (name == "smoothquant" && options.input.is_plain()) {
    passes.fail("smoothquant moves the difficulty of rounding from inputs to weights: add 'activations: int8' to " +
                std::string(method_name(options.method)) + ", or use awq for weights alone");
  }
  if (name == "awq" && options.gptq.grid.per_tensor)
    passes.fail("awq searches scales of rows or groups: not per_tensor");
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
                     if (budget.allowed.empty()) list.fail("expected some of 2, 3, 4, 8 and 16 bits");
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
