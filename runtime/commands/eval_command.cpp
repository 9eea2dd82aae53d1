#include "runtime/commands/eval_command.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "runtime/commands/artifact_files.h"
#include "runtime/commands/command_parts.h"
#include "runtime/commands/option_table.h"
#include "runtime/evaluate/evaluation.h"
#include "runtime/system/memory_usage.h"
#include "runtime/system/partial_output.h"
#include "runtime/system/private_files.h"
#include "runtime/system/visible_text.h"

namespace pare::runtime {
namespace {

constexpr const char* kReference = "reference";

// Options that mean the same for every evaluation, and perhaps for other commands. Fields of these names get them.
std::vector<OptionSpec> shared_options() {
  return {
      {.name = kReference,
       .kind = OptionKind::text,
       .value_name = "MODEL",
       .help = "also load this model, usually the uncompressed one, and compare token by token, or answer by answer "
               "(its keys and values stay float32)"},
      {.name = "no-verify", .help = "do not check first that the files match pare.json; damaged models are read too"},
      device_option(),
      kv_bits_option(KvBitsDefault::floats),
      attention_bits_option(),
      activations_option()};
}

// The option of a field. One that is true by default is switched off by --no-NAME.
std::string option_of(const EvaluationRow& row, const std::string& key, bool is_negated) {
  if (key == row.data_key) return std::string(row.option);
  std::string name = key;
  std::replace(name.begin(), name.end(), '_', '-');
  return (is_negated ? "no-" : "") + name;
}

// The evaluations that have a field of this name: "--text", "--instructions or a task".
std::string takers(const std::string& key) {
  std::vector<std::string> names;
  for (const EvaluationRow* row : evaluation_rows()) {
    const std::unique_ptr<EvaluationOptions> options = row->make_options();
    const std::vector<NamedField> fields = field_values(*options);
    if (std::none_of(fields.begin(), fields.end(), [&](const auto& field) { return field.name == key; })) continue;
    const std::string name = row->group.empty() ? "--" + std::string(row->option) : std::string(row->group);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return listed(names, "or");
}

// The default stands in the help alone, so that options that were typed are known.
OptionSpec option_of(const EvaluationRow& row, const EvaluationOptions& options, const OptionRow& field) {
  const bool is_truth = field.type == OptionType::truth, has_list = !field.limits.values.empty();
  OptionSpec option = {.name = option_of(row, field.name, is_truth && std::get<bool>(field.fallback.value())),
                       .kind = OptionKind::text,
                       .value_name = "FILE",
                       .help = options.help(field.name),
                       .choices = field.choices};
  if (option.help.empty()) option.help = field.meaning;
  if (field.name != row.data_key) option.help = "with " + takers(field.name) + ": " + option.help;
  if (!is_truth && field.fallback) option.help += " (default: " + fallback_text(field) + ")";
  for (const int64_t value : field.limits.values) option.choices.push_back(std::to_string(value));
  if (!option.choices.empty()) option.value_name = "NAME";
  if (is_truth) {
    option.kind = OptionKind::flag;
    option.value_name = "";
  } else if ((field.type == OptionType::whole && !has_list) || field.type == OptionType::number) {
    option.kind = field.type == OptionType::whole ? OptionKind::integer : OptionKind::number;
    option.value_name = field.type == OptionType::whole ? "N" : "X";
    option.above_minimum = field.limits.low == kAboveZero;
    if (field.limits.low > FieldLimits{}.low) option.minimum = option.above_minimum ? 0.0 : field.limits.low;
    if (field.limits.high < FieldLimits{}.high) option.maximum = field.limits.high;
  } else if (field.type != OptionType::text && option.choices.empty()) {
    throw std::logic_error("evaluation " + std::string(row.key) + ": '" + field.name +
                           "' is a list or a map, which a command line cannot give");
  }
  return option;
}

std::vector<OptionSpec> options_of(const EvaluationRow& row) {
  const std::unique_ptr<EvaluationOptions> options = row.make_options();
  options->reference = false;  // unless it is asked for
  std::vector<OptionSpec> all;
  for (const OptionRow& field : option_rows(fields_of(*options))) all.push_back(option_of(row, *options, field));
  return all;
}

// Gives the fields what was typed.
void take_options(const Arguments& arguments, const EvaluationRow& row, EvaluationOptions& options) {
  options.reference = false;
  std::vector<NamedField> given;
  for (NamedField& field : field_values(options)) {
    bool* const truth = std::get_if<bool>(&field.value);
    const std::string option = option_of(row, field.name, truth != nullptr && *truth);
    if (!arguments.given(option)) continue;
    if (truth != nullptr) {
      *truth = !*truth;
    } else if (std::holds_alternative<int64_t>(field.value)) {
      field.value = static_cast<int64_t>(std::stoll(arguments.text(option)));
    } else if (std::holds_alternative<std::string>(field.value)) {
      field.value = arguments.text(option);
    } else if (std::holds_alternative<double>(field.value)) {
      field.value = arguments.number(option);
    } else {
      field.value = std::optional(arguments.number(option));
    }
    given.push_back(std::move(field));
  }
  assign_fields(given, options);
}

bool holds(const std::vector<OptionSpec>& options, const std::string& name) {
  return std::any_of(options.begin(), options.end(), [&](const OptionSpec& option) { return option.name == name; });
}

std::string data_option(const EvaluationRow& row) {
  return "--" + std::string(row.option);
}

// Returns the evaluation that is asked for. Throws WrongUsage if there is none, for two, and for options of another.
const EvaluationRow& asked_evaluation(const Arguments& arguments) {
  const std::span<const EvaluationRow* const> rows = evaluation_rows();
  const auto is_chosen = [&](const EvaluationRow* row) { return arguments.given(std::string(row->option)); };
  const auto found = std::find_if(rows.begin(), rows.end(), is_chosen);
  if (found == rows.end()) {
    std::vector<std::string> names;
    for (const EvaluationRow* row : rows) {
      names.push_back(data_option(*row) + " FILE" +
                      (row->kind == EvaluatedKind::decoder ? "" : " (for a model of embeddings)"));
    }
    throw WrongUsage("missing option: expected one of " + listed(names, "and"));
  }
  const EvaluationRow& chosen = **found;
  const auto measures = [](const EvaluationRow& row) {
    return data_option(row) + " measures " + std::string(row.subject) +
           (row.kind == EvaluatedKind::either ? "" : " (" + std::string(name_of(row.kind)) + "s)");
  };
  const std::vector<OptionSpec> own = options_of(chosen), shared = shared_options();
  const auto is_asked = [&](const std::string& name) {
    const auto common = std::find_if(shared.begin(), shared.end(), [&](const auto& item) { return item.name == name; });
    return arguments.given(name) &&
           (common == shared.end() || common->default_value.empty() || arguments.text(name) != common->default_value);
  };
  for (const EvaluationRow* row : rows) {
    if (row != &chosen && is_chosen(row)) {
      throw WrongUsage(measures(chosen) + ", and " + measures(*row) + ": give one of them, and run eval once for each");
    }
    for (const OptionSpec& option : options_of(*row)) {
      if (holds(own, option.name) || !is_asked(option.name)) continue;
      throw WrongUsage(measures(chosen) + ", and --" + option.name + " belongs to " + data_option(*row) +
                       ", which measures " + std::string(row->subject) + ": leave one out");
    }
  }
  return chosen;
}

// Throws std::invalid_argument for a model of another kind.
void require_kind(const Checkpoint& checkpoint, EvaluatedKind kind) {
  if (kind == EvaluatedKind::either) return;
  kind == EvaluatedKind::encoder ? void(checkpoint.encoder()) : void(checkpoint.description());
}

void run_eval(const Arguments& arguments, Console& console) {
  MemorySampler memory;
  const EvaluationRow& row = asked_evaluation(arguments);
  const std::unique_ptr<EvaluationOptions> options = row.make_options();
  take_options(arguments, row, *options);

  if (const std::string written = options->written_file(); !written.empty()) {
    refuse_output_in_artifact(output_place(written));
    refuse_output_inside(written, arguments.positional(0));
    if (options->reference) refuse_output_inside(written, arguments.text(kReference));
    keep_as_private_as({arguments.positional(0), options->data}, written);
  }

  const ModelLoader loader(arguments, console);
  const bool is_checked = !arguments.flag("no-verify");
  const std::string instead = ", or use it as it is with --no-verify";
  NamedModel model(arguments.positional(0), is_checked, instead, console);
  std::optional<NamedModel> named_reference;
  if (options->reference) named_reference.emplace(arguments.text(kReference), is_checked, instead, console);
  const Checkpoint* const reference = named_reference ? &named_reference->described() : nullptr;
  require_kind(model.described(), row.kind);
  const ActivationMode activations = loader.activations();
  require_activations(model.described(), activations);
  if (reference != nullptr) require_kind(*reference, row.kind);
  std::vector<std::string> events;
  EvaluationSource source(model.described(), reference, events);
  const std::unique_ptr<Measurement> measurement = options->read(source);
  const EvaluationExtent extent = measurement->extent();
  for (const auto& needs : memory_needs(model.described(), reference, {&extent, 1}, /*keeps_models=*/false,
                                        loader.options().device == ComputeDevice::cpu)) {
    loader.require(needs);
  }
  const Checkpoint& whole = model.whole();
  if (named_reference) named_reference->whole();
  EvaluatedModels models(whole, reference, loader.backend(), /*keeps_models=*/false, &console.progress(), activations);
  const std::unique_ptr<EvaluationResult> result = measurement->run(models, console.progress());
  if (activations != ActivationMode::exact) events.push_back(event_of(activations));
  result->events = events;
  result->peak_memory_bytes = memory.peak_bytes();
  for (const std::string& event : events) console.report() << "event: " << visible_line(event) << '\n';
  console.report() << result->to_text();
  console.set_result(result->to_json());
}

}  // namespace

Command eval_command() {
  std::vector<OptionSpec> options;
  const std::vector<OptionSpec> shared = shared_options();
  std::vector<std::string> subjects;
  for (const EvaluationRow* row : evaluation_rows()) {
    if (std::find(subjects.begin(), subjects.end(), row->subject) == subjects.end())
      subjects.emplace_back(row->subject);
    for (OptionSpec& option : options_of(*row)) {
      if (!holds(shared, option.name) && !holds(options, option.name)) options.push_back(std::move(option));
    }
  }
  return {.name = "eval",
          .summary = "Measure " + listed(subjects, "or") + ", and the distance from a reference model.",
          .positionals = {kModel},
          .options = joined(joined(std::move(options), shared), compute_options()),
          .run = run_eval};
}

}  // namespace pare::runtime
