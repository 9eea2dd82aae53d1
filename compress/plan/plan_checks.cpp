#include "compress/plan/plan_checks.h"

#include <algorithm>
#include <stdexcept>

#include "compress/recipe/pattern_advice.h"
#include "runtime/commands/option_table.h"
#include "runtime/containers/container_table.h"
#include "runtime/export/export_gguf.h"

namespace pare::compress {
namespace {

// Returns whether the pass moves what it stores to the container that packs a pattern.
bool asks_to_pack(const PassRecipe& pass) {
  runtime::PackScheme scheme = runtime::dense_scheme();
  pass.options->store(scheme);
  return scheme.container == runtime::kPareSparse24;
}

bool matches_any(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return matches_glob(pattern, name); });
}

bool matches_any_name(const std::string& pattern, const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [&](const auto& name) { return matches_glob(pattern, name); });
}

// Refuses a container that the recipe names and in which nothing is stored.
void check_container_is_used(const Recipe& recipe, const std::vector<runtime::StoredModule>& modules) {
  if (!recipe.asks_for_container || recipe.has_other_form()) return;
  if (modules.empty()) {
    refuse_recipe(
        "container " + std::string(recipe.asked_container()) +
        ": no weight is rounded or packed and no input is rounded, so every tensor is stored as in the source: "
        "leave 'container' out");
  }
  const runtime::StoredModule& first = modules.front();
  if (std::any_of(modules.begin(), modules.end(),
                  [&](const runtime::StoredModule& module) { return module.scheme.container == recipe.container; })) {
    return;
  }
  refuse_recipe("container " + recipe.container + ": what the passes make of " + first.name + " is stored in " +
                first.scheme.container + ", and nothing in the one that the recipe names: leave 'container' out");
}

// A configuration must say of the other parts of a whole model that they are as they were. Patterns say it.
void check_other_parts(const runtime::Checkpoint& checkpoint, const runtime::ContainerFormat& container) {
  const std::vector<std::string> parts = checkpoint.other_parts();
  const bool is_read_by_others = container.unread_by(runtime::Engine::transformers, {}).empty();
  if (parts.empty() || !is_read_by_others || container.name() == runtime::kCompressedTensors) return;
  refuse_recipe("container " + std::string(container.name()) +
                ": the model has other parts than its text part, such as " + parts.front() + ", and only " +
                std::string(runtime::kCompressedTensors) +
                " can say that they are not quantized: leave 'container' out, or choose a pass that is stored there");
}

}  // namespace

[[noreturn]] void refuse_recipe(const std::string& message) {
  throw std::invalid_argument("recipe: " + message);
}

void check_mixtures(const Recipe& recipe, const runtime::ModelDescription& model, RunPlan& plan) {
  const auto mixture =
      std::find_if(model.blocks.begin(), model.blocks.end(), [](const auto& block) { return block.is_mixture(); });
  if (mixture == model.blocks.end()) {
    if (recipe.calibration && recipe.calibration->experts == ExpertTokens::all) {
      plan.events.push_back("calibration: 'experts: all' has no effect: the model has no mixtures of experts");
    }
    return;
  }
  const std::string what = mixture->name + " is a mixture of " + std::to_string(mixture->num_routed()) + " experts";
  if (recipe.budget) {
    refuse_recipe(
        "budget: " + what +
        ", whose experts must have the same bits for engines to run them: give bits by patterns with 'layers: "
        "{override: ...}'");
  }
  if (recipe.sensitivity && recipe.sensitivity->groups.empty()) {
    refuse_recipe("sensitivity: " + what +
                  "; measuring each of them apart takes too long: name what is measured together, such as 'groups: "
                  "[\"*.self_attn.*\", \"*.experts.*\"]'");
  }
}

void check_inputs_agree(const std::vector<LayerPlan>& layers) {
  for (const LayerPlan& layer : layers) {
    const auto first =
        std::find_if(layers.begin(), layers.end(), [&](const auto& l) { return l.stage == layer.stage; });
    const runtime::InputFormat input = layer.input(), other = first->input();
    if (input == other) continue;
    refuse_recipe(first->linear.name + " and " + layer.linear.name + " read the same input, but one takes it as " +
                  runtime::input_format_name(other) + " and the other as " + runtime::input_format_name(input) +
                  ": exclude both or neither");
  }
}

void check_packing(const Recipe& recipe) {
  const auto packing = std::find_if(recipe.passes.begin(), recipe.passes.end(), asks_to_pack);
  if (packing == recipe.passes.end()) return;
  const std::string advice = ": leave 'storage' out of " + std::string(packing->row->key) + ", and zeros are stored";
  if (recipe.container != runtime::kCompressedTensors && recipe.container != runtime::kPareSparse24) {
    refuse_recipe("storage: packed belongs to the container " + std::string(runtime::kPareSparse24) +
                  ", found 'container: " + recipe.container + "'" + advice);
  }
  const PassRecipe* const rounding = find_pass(recipe, PassKind::rounds);
  if (rounding == nullptr || rounding->options->grid() != nullptr || !stores_codes(*rounding->options)) return;
  refuse_recipe("storage: packed holds dense values and integer codes of rtn and gptq, not those of " +
                std::string(rounding->row->key) + advice);
}

void check_pattern_names(const Recipe& recipe, const std::vector<std::string>& names) {
  const auto check = [&](const std::string& key, const std::string& pattern) {
    if (matches_any_name(pattern, names)) return;
    refuse_recipe(key + ": the pattern '" + pattern + "' matches no layer; layers are named like '" + names.front() +
                  "', and a pattern's * stands for any characters" + pattern_advice(pattern, names));
  };
  for (const PassRecipe& pass : recipe.passes) {
    for (const std::string& pattern : pass.exclude) check("layers.exclude", pattern);
    for (const LayerOverride& item : pass.overrides) check("layers.override", item.pattern);
  }
  if (!recipe.sensitivity) return;
  for (const std::string& pattern : recipe.sensitivity->groups) check("sensitivity.groups", pattern);
}

void check_pattern_effects(const Recipe& recipe, const std::vector<std::string>& names, const RunPlan& plan) {
  for (const PassRecipe& pass : recipe.passes) {
    for (const LayerOverride& item : pass.overrides) {
      const auto is_changed = [&](const LayerPlan& layer) {
        return matches_glob(item.pattern, layer.linear.name) && !matches_any(pass.exclude, layer.linear.name);
      };
      if (std::any_of(plan.blocks.begin(), plan.blocks.end(),
                      [&](const auto& layers) { return std::any_of(layers.begin(), layers.end(), is_changed); })) {
        continue;
      }
      const auto named =
          std::find_if(names.begin(), names.end(), [&](const auto& name) { return matches_glob(item.pattern, name); });
      refuse_recipe("layers.override: the pattern '" + item.pattern + "' matches only what " +
                    std::string(pass.row->key) + " leaves alone, such as '" + *named + "': drop it" +
                    (matches_any(pass.exclude, *named) ? ", or the exclusion" : "; the head is quantized by 'head:'"));
    }
  }
  if (!recipe.sensitivity) return;
  for (const std::string& pattern : recipe.sensitivity->groups) {
    const auto is_measured = [&](const LayerPlan& layer) {
      return layer.is_compressed() && matches_glob(pattern, layer.linear.name);
    };
    if (std::none_of(plan.blocks.begin(), plan.blocks.end(),
                     [&](const auto& layers) { return std::any_of(layers.begin(), layers.end(), is_measured); })) {
      refuse_recipe("sensitivity.groups: the pattern '" + pattern + "' matches no layer that the pass rounds");
    }
  }
}

void check_zeros_are_held(const LayerPlan& layer) {
  const Step* const rounding = layer.find_step(PassKind::rounds);
  const bool has_zeros = layer.kept_zeros.has_value() || layer.step(PassKind::changes_weights) != nullptr;
  if (!has_zeros || rounding == nullptr || rounding->options->holds_zeros()) return;
  refuse_recipe(
      std::string(rounding->options->words(rounding->row->key)) + ": " + layer.linear.name +
      (layer.kept_zeros ? " is pruned in the source" : " is pruned before it") +
      ", and its codes have none that stands for 0: take a type without minima (q4_0, q5_0, q8_0, q3_k, q6_k)" +
      (layer.kept_zeros ? ", or 'release_zeros: true'" : ""));
}

void check_measured_layers(const Recipe& recipe, const std::string& layer) {
  if (!recipe.budget && !recipe.sensitivity) return;
  const std::string key = recipe.budget ? "budget" : "sensitivity";
  refuse_recipe(key + ": it measures what rounding costs, and no pass rounds " + layer +
                ", whose small inputs are dropped: exclude the layer from both passes, or from neither");
}

void check_fits_agree(const LayerPlan& layer) {
  std::string_view fitted, unfitted;  // the passes that ask for it, and against it
  for (const Step& step : layer.steps) {
    const quant::FitOptions* const fit = step.options->fit();
    if (fit != nullptr && fit->is_asked) (fit->fit ? fitted : unfitted) = step.row->key;
  }
  if (fitted.empty() || unfitted.empty()) return;
  refuse_recipe(std::string(fitted) + " says 'fit: true' for " + layer.linear.name + " and " + std::string(unfitted) +
                " 'fit: false': a layer is fitted once, before its first pass: keep one of them");
}

void check_calibration(const Recipe& recipe, const RunPlan& plan) {
  if (plan.needs_calibration && !recipe.calibration) {
    refuse_recipe("the passes need calibration data: add 'calibration:'");
  }
}

void check_container(const Recipe& recipe, const runtime::Checkpoint& checkpoint, const RunPlan& plan) {
  std::vector<runtime::StoredModule> modules;
  for (const auto& layers : plan.blocks) {
    for (const LayerPlan& layer : layers) {
      if (!layer.is_compressed() || layer.scheme.is_plain()) continue;
      modules.push_back({layer.linear.name, layer.scheme, true});
    }
  }
  for (const TablePlan& table : plan.tables) {
    modules.push_back({table.linear.name, table.scheme, table.is_linear});
  }
  check_container_is_used(recipe, modules);
  if (modules.empty()) return;
  const runtime::ContainerFormat& container = runtime::container_format(modules.front().scheme.container);
  check_other_parts(checkpoint, container);
  const runtime::PackScheme& first = modules.front().scheme;
  if (!first.is_dense() && first.code->is_blocks()) runtime::gguf_family(checkpoint);  // or nobody could export it
  if (const runtime::Acceptance accepted = container.accepts_together(modules); !accepted) {
    refuse_recipe("container " + std::string(container.name()) + ": " + accepted.reason);
  }
}

void check_form(const Recipe& recipe, const runtime::Checkpoint& checkpoint, const RunPlan& plan) {
  if (recipe.gguf_format != nullptr) runtime::gguf_family(checkpoint);
  const auto require = [&](const runtime::LinearDescription& linear, const runtime::PackScheme& scheme) {
    const runtime::Acceptance held =
        recipe.gguf_format != nullptr     ? runtime::holds_codes(*recipe.gguf_format, scheme, linear.num_in)
        : recipe.folder_format != nullptr ? runtime::holds_codes(*recipe.folder_format, scheme)
                                          : runtime::Acceptance();
    if (held) return;
    refuse_recipe("container " + std::string(recipe.asked_container()) + ": " + linear.name + ": " + held.reason);
  };
  for (const auto& layers : plan.blocks) {
    for (const LayerPlan& layer : layers) {
      if (layer.is_compressed() && !layer.scheme.is_plain()) require(layer.linear, layer.scheme);
    }
  }
  for (const TablePlan& table : plan.tables) require(table.linear, table.scheme);
}

void check_budget_fits(const Recipe& recipe, const RunPlan& plan) {
  if (!recipe.budget) return;
  const runtime::ContainerFormat& container = runtime::container_format(recipe.container);
  const runtime::PackScheme wide = container.adapted({.group_size = runtime::kPerChannel}),
                            narrow = container.adapted({.group_size = 32});
  if (const runtime::StoredModule pair[] = {{"a", wide}, {"b", narrow}}; !container.accepts_together(pair)) {
    refuse_recipe("budget: it chooses bits and group size of each stage, and the container " +
                  std::string(container.name()) +
                  " has one group size for all layers: leave 'container' out, or 'budget'");
  }
  std::vector<runtime::StoredModule> modules;
  for (const LayerPlan& layer : plan.blocks.front()) {
    if (!layer.is_compressed()) continue;
    for (const int bits : recipe.budget->allowed) {
      if (bits == runtime::kDenseBits) continue;
      for (const int64_t group_size : {runtime::kPerChannel, int64_t{32}}) {
        runtime::PackScheme scheme = layer.scheme;
        scheme.bits = bits;
        scheme.group_size = group_size;
        scheme = container.adapted(scheme);
        runtime::Acceptance accepted = container.accepts(scheme);
        modules.push_back({layer.linear.name, scheme, true});
        if (accepted) accepted = container.accepts_together(modules);
        if (accepted) continue;
        refuse_recipe("budget: it may choose " + std::to_string(bits) + " bits " +
                      (group_size == runtime::kPerChannel ? "per channel" : "in groups") + ", which the container " +
                      std::string(container.name()) + " does not hold: " + accepted.reason);
      }
    }
  }
}

void check_evaluations(const Recipe& recipe, const runtime::Checkpoint& checkpoint) {
  const runtime::EvaluatedKind kind =
      checkpoint.is_encoder() ? runtime::EvaluatedKind::encoder : runtime::EvaluatedKind::decoder;
  std::vector<std::string> right;
  for (const runtime::EvaluationRow* row : runtime::evaluation_rows()) {
    if (row->kind != kind && row->kind != runtime::EvaluatedKind::either) continue;
    right.push_back("'" + std::string(row->key) + ": {" + std::string(row->data_key) + ": FILE}'");
  }
  for (const EvaluationRecipe& item : recipe.evaluate) {
    if (item.row->kind == kind || item.row->kind == runtime::EvaluatedKind::either) continue;
    refuse_recipe("evaluate: '" + checkpoint.directory().string() + "': " + std::string(item.row->key) + " is for " +
                  std::string(runtime::name_of(item.row->kind)) + "s, and this is a model of the kind " +
                  std::string(runtime::name_of(kind)) + ": use " + runtime::listed(right, "or"));
  }
}

void refuse_what_encoders_lack(const Recipe& recipe, const runtime::EncoderDescription& model) {
  if (recipe.benchmark) {
    refuse_recipe("benchmark: this is an encoder (" + model.family +
                  "), and speeds of prefill and decode are those of decoders: leave 'benchmark' out");
  }
  const auto refuse_if = [&](bool is_asked, const std::string& what) {
    if (is_asked) refuse_recipe(what);
  };
  if (const PassRecipe* scaling = find_pass(recipe, PassKind::scales_inputs)) {
    const std::string who = std::string(scaling->row->key) + ": this encoder (" + model.family + ")";
    if (model.blocks.front().normalizes_first) {
      refuse_recipe(who + " is not scaled: expected a decoder. Leave the pass out");
    }
    refuse_recipe(who +
                  " normalizes after its residual sums, so a norm's output feeds the residual stream as well as the "
                  "next linears: dividing it has no exact inverse there, and nothing is scaled. Leave the pass out");
  }
  if (const PassRecipe* dropping = find_pass(recipe, PassKind::drops_inputs)) {
    refuse_recipe(std::string(dropping->row->key) +
                  ": columns are skipped while tokens are decoded, and an encoder decodes none: leave it out");
  }
  refuse_if(
      find_pass(recipe, PassKind::reconstructs) != nullptr,
      "reconstruct: blocks are trained to match the original model's states, which are carried only for decoders: "
      "leave it out");
  refuse_if(recipe.head.has_value(), "head: an encoder has no head, and its embeddings stay as they are: leave it out");
  refuse_if(recipe.container != runtime::kCompressedTensors || recipe.gguf_format != nullptr,
            "container " + std::string(recipe.asked_container()) + " is only for decoders: use compressed-tensors");
  refuse_if(recipe.sensitivity.has_value() || recipe.budget.has_value(),
            "sensitivity and budget measure the loss of a next token, which an encoder does not predict: leave them "
            "out");
  refuse_if(recipe.calibration && !recipe.calibration->statistics.empty(),
            "calibration: statistics files are only for decoders: give an encoder 'text'");
  refuse_if(recipe.passes.empty(), "nothing to do: give 'passes:' with a method that rounds weights or inputs");
}

}  // namespace pare::compress
