#include "compress/recipe/recipe_passes.h"

#include <array>
#include <cmath>

namespace pare {
namespace {

using Value = YamlValue;

constexpr std::array<Method, 5> kMethods = {Method::rtn, Method::gptq, Method::fp8, Method::llm_int8,
                                            Method::activations};

}  // namespace

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

namespace {

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

}  // namespace

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

namespace {

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

}  // namespace

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

namespace {

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
        "symmetrically: use 'layout: pare' for relative thresholds, static columns or asymmetric inputs");
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

}  // namespace

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

}  // namespace pare
