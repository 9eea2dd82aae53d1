// pare: compresses language-model checkpoints, and runs and measures the result.
#include <torch/version.h>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "compress/recipe/recipe.h"
#include "compress/recipe/recipe_guide.h"
#include "compress/recipe/recipe_inputs.h"
#include "compress/recipe/recipe_paths.h"
#include "compress/recipe/recipe_schema.h"
#include "compress/record/record.h"
#include "compress/report/card_file.h"
#include "compress/report/runs_page.h"
#include "compress/run/calibrate.h"
#include "compress/run/export_command.h"
#include "compress/run/pipeline.h"
#include "compress/run/torch_errors.h"
#include "compress/sweep/sweep.h"
#include "runtime/commands/artifact_files.h"
#include "runtime/commands/command_line.h"
#include "runtime/commands/command_parts.h"
#include "runtime/commands/commands.h"
#include "runtime/commands/version_report.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/json_text.h"
#include "runtime/system/partial_output.h"
#include "runtime/system/private_files.h"
#include "runtime/system/visible_text.h"

namespace {

pare::compress::RunOptions run_options(const pare::runtime::Arguments& arguments) {
  pare::compress::RunOptions options;
  if (arguments.given("model")) options.model = arguments.text("model");
  if (arguments.given("max-memory")) options.max_memory_bytes = arguments.bytes("max-memory");
  if (arguments.given("threads")) options.num_threads = static_cast<int>(arguments.integer("threads"));
  options.dry_run = arguments.flag("dry-run");
  return options;
}

// Before anything is written.
void keep_as_private_as_inputs(const pare::compress::Recipe& recipe, const pare::compress::RunOptions& options,
                               const std::filesystem::path& output) {
  pare::runtime::keep_as_private_as(
      pare::compress::all_inputs(recipe, options.model.empty() ? recipe.model : options.model), output);
}

// With its files found.
pare::compress::Recipe find_recipe(const pare::runtime::Arguments& arguments, pare::runtime::Console& console) {
  pare::compress::Recipe recipe = pare::compress::read_recipe(arguments.positional(0));
  for (const std::string& note : pare::compress::find_files(recipe)) console.progress().print("recipe: " + note);
  return recipe;
}

// The JSON object that `work` returns. What a dry run says is its result, all of it.
std::string result_of(bool is_dry_run, pare::runtime::Console& console,
                      const std::function<std::string(pare::runtime::Progress&)>& work) {
  return pare::compress::with_own_errors([&] {
    if (!is_dry_run) return work(console.progress());
    pare::runtime::Progress answer(pare::runtime::ProgressStyle::lines, console.report());
    return work(answer);
  });
}

void run_recipe(const pare::runtime::Arguments& arguments, pare::runtime::Console& console) {
  const pare::compress::Recipe recipe = find_recipe(arguments, console);
  pare::compress::RunOptions options = run_options(arguments);
  if (arguments.given("out")) options.output = arguments.text("out");
  options.fresh = arguments.flag("fresh");
  options.on_gpu = pare::runtime::device_of(arguments) == pare::runtime::ComputeDevice::cuda;
  keep_as_private_as_inputs(recipe, options, options.output.empty() ? recipe.output : options.output);
  console.set_result(result_of(options.dry_run, console, [&](pare::runtime::Progress& progress) {
    return pare::compress::run(recipe, options, progress);
  }));
}

void calibrate_recipe(const pare::runtime::Arguments& arguments, pare::runtime::Console& console) {
  const pare::compress::Recipe recipe = find_recipe(arguments, console);
  pare::compress::RunOptions options = run_options(arguments);
  keep_as_private_as_inputs(recipe, options, arguments.positional(1));
  if (arguments.given("imatrix")) {
    options.imatrix = pare::runtime::output_place(arguments.text("imatrix"));
    keep_as_private_as_inputs(recipe, options, options.imatrix);
  }
  console.set_result(result_of(options.dry_run, console, [&](pare::runtime::Progress& progress) {
    return pare::compress::calibrate(recipe, arguments.positional(1), options, progress);
  }));
}

// "1,2.5".
std::vector<double> parse_temperatures(const std::string& text) {
  std::vector<double> temperatures;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    double value = 0.0;
    const char* const last = text.data() + end;
    const auto parsed = std::from_chars(text.data() + begin, last, value);
    if (parsed.ec != std::errc() || parsed.ptr != last || !std::isfinite(value) || value <= 0.0) {
      throw pare::runtime::WrongUsage(
          "--temperatures: expected positive numbers with commas between them, such as 1,2, found '" + text + "'");
    }
    temperatures.push_back(value);
    begin = end + 1;
  }
  return temperatures;
}

// Options that only the one kind of source has.
void check_source_options(const pare::runtime::Arguments& arguments) {
  const bool has_text = arguments.given("text"), has_prompts = arguments.given("prompts");
  if (has_text == has_prompts) {
    throw pare::runtime::WrongUsage(has_text ? "--text and --prompts: give one of them"
                                             : "missing option: expected one of --text FILE and --prompts FILE");
  }
  for (const char* name : {"tokens", "windows", "end-of-document"}) {
    if (has_prompts && arguments.given(name)) {
      throw pare::runtime::WrongUsage(std::string("--") + name + " belongs to --text: leave it out");
    }
  }
  for (const char* name : {"samples", "max-new-tokens", "temperature", "top-p", "min-p", "repetition-penalty"}) {
    if (has_text && arguments.given(name)) {
      throw pare::runtime::WrongUsage(std::string("--") + name + " belongs to --prompts: leave it out");
    }
  }
}

void record_teacher(const pare::runtime::Arguments& arguments, pare::runtime::Console& console) {
  check_source_options(arguments);
  pare::compress::RecordOptions options;
  if (arguments.given("text")) options.text = arguments.text("text");
  if (arguments.given("prompts")) options.prompts = arguments.text("prompts");
  if (arguments.given("tokens")) options.num_tokens = arguments.integer("tokens");
  if (arguments.given("windows")) options.num_windows = arguments.integer("windows");
  if (arguments.given("end-of-document")) options.end_of_document = arguments.text("end-of-document");
  if (arguments.given("samples")) options.num_samples = arguments.integer("samples");
  if (arguments.given("max-new-tokens")) options.max_new_tokens = arguments.integer("max-new-tokens");
  options.sampling = pare::runtime::given_sampling(arguments, /*has_top_k=*/false);
  options.seed = static_cast<uint64_t>(arguments.integer("seed"));
  options.num_kept = arguments.integer("top-k");
  if (arguments.given("temperatures")) options.temperatures = parse_temperatures(arguments.text("temperatures"));
  options.shard_tokens = arguments.integer("shard-tokens");
  if (arguments.given("threads")) options.num_threads = static_cast<int>(arguments.integer("threads"));
  if (arguments.given("isa")) options.isa = pare::runtime::parse_isa(arguments.text("isa"));
  options.dry_run = arguments.flag("dry-run");
  options.fresh = arguments.flag("fresh");
  pare::runtime::keep_as_private_as({arguments.positional(0), options.text.empty() ? options.prompts : options.text},
                                    arguments.positional(1));
  console.set_result(result_of(options.dry_run, console, [&](pare::runtime::Progress& progress) {
    return pare::compress::record(arguments.positional(0), arguments.positional(1), options, progress);
  }));
}

// Of both commands that follow a recipe.
std::vector<pare::runtime::OptionSpec> resource_options() {
  using pare::runtime::OptionKind;
  return {
      {.name = "max-memory",
       .kind = OptionKind::bytes,
       .value_name = "SIZE",
       .help = "memory to stay within, such as 8GiB; activations go to disk when it is short, which does not change "
               "the result (default: four fifths of what is free, within the limits of control groups)"},
      {.name = "threads",
       .kind = OptionKind::integer,
       .value_name = "N",
       .help =
           std::string("threads to use; only results of distill depend on it, and a resumed one needs as many as it "
                       "began with (default: ") +
           pare::runtime::kDefaultThreads + ")",
       .minimum = 1,
       .maximum = pare::runtime::kMaxThreads}};
}

pare::runtime::Command calibrate_command() {
  std::vector<pare::runtime::OptionSpec> options = {
      {.name = "model",
       .kind = pare::runtime::OptionKind::text,
       .value_name = "DIR",
       .help = "the checkpoint (or .gguf file), instead of the recipe's"}};
  options.push_back({.name = "imatrix",
                     .kind = pare::runtime::OptionKind::text,
                     .value_name = "FILE",
                     .help = "also write llama.cpp's importance matrix, a .gguf file for llama-quantize"});
  for (pare::runtime::OptionSpec& option : resource_options()) options.push_back(std::move(option));
  options.push_back({.name = "dry-run", .help = "print what memory, disk and time the command will take, and stop"});
  return {.name = "calibrate",
          .summary =
              "Store the calibration statistics of an uncompressed model, for recipes to start from "
              "('calibration: {statistics: OUT.h5}').",
          .positionals = {{"RECIPE", "YAML file; its model and calibration are used"},
                          {"OUT.h5", "HDF5 file to write; must not exist"}},
          .options = std::move(options),
          .run = calibrate_recipe};
}

pare::runtime::OptionSpec text_option(const std::string& name, const std::string& value_name, const std::string& help) {
  return {.name = name, .kind = pare::runtime::OptionKind::text, .value_name = value_name, .help = help};
}
// Returns an option whose value is not the name of a file.
pare::runtime::OptionSpec words_option(const std::string& name, const std::string& value_name,
                                       const std::string& help) {
  pare::runtime::OptionSpec option = text_option(name, value_name, help);
  option.is_path = false;
  return option;
}
pare::runtime::OptionSpec count_option(const std::string& name, const std::string& default_value,
                                       const std::string& help, double minimum) {
  return {.name = name,
          .kind = pare::runtime::OptionKind::integer,
          .value_name = "N",
          .default_value = default_value,
          .help = help,
          .minimum = minimum,
          .maximum = 1e9};
}

// Options of one source alone have no default_value, so that it is known whether they were given.
pare::runtime::Command record_command() {
  const pare::compress::RecordOptions defaults;
  const auto by_default = [](double value) { return " (default: " + pare::runtime::format_number(value, 0) + ")"; };
  std::string temperatures;
  for (const double value : defaults.temperatures) {
    temperatures += (temperatures.empty() ? "" : ",") + pare::runtime::format_number(value, 0);
  }
  std::vector<pare::runtime::OptionSpec> options = {
      text_option(
          "text", "FILE",
          "record the windows of this text: UTF-8 (one document; - for standard input), .jsonl (a document on each "
          "line, field text, or a conversation, field messages) or .npy (token ids [N, T]); the teacher sees each "
          "document alone"),
      words_option("end-of-document", "TOKEN",
                   "token that ends each document of a text (default: the tokenizer's end of text)"),
      count_option("tokens", "",
                   "tokens per window" + by_default(pare::compress::kRecordTokens) + "; a .npy has its own", 2),
      count_option("windows", "", "draw N of the text's windows, or take the first N of a .npy (default: all)", 1),
      text_option("prompts", "FILE",
                  "draw and record what the teacher writes after each prompt of this .jsonl (field prompt, or messages "
                  "of a conversation) or .json (instruction, input); prompts that leave no room in the context are "
                  "left out and counted"),
      count_option("samples", "", "continuations of each prompt" + by_default(defaults.num_samples), 1),
      count_option("max-new-tokens", "", "most tokens of a continuation" + by_default(defaults.max_new_tokens), 1)};
  options = pare::runtime::joined(
      std::move(options),
      pare::runtime::sampling_options(pare::compress::RecordOptions::kSampling, /*has_top_k=*/false));
  options = pare::runtime::joined(
      std::move(options),
      {count_option("seed", std::to_string(defaults.seed), "seed of the draws", 0),
       count_option(
           "top-k", std::to_string(defaults.num_kept),
           "store the log-probabilities of the N most probable followers of each token; at most the vocabulary", 1),
       words_option(
           "temperatures", "LIST",
           "temperatures at which the mass of all other tokens is stored, such as 1,2; a student can be trained "
           "only with these (default: " +
               temperatures + ")"),
       count_option("shard-tokens", std::to_string(defaults.shard_tokens),
                    "tokens per file; a killed run loses at most one file", 1)});
  options = pare::runtime::joined(std::move(options), pare::runtime::compute_options());
  options.push_back({.name = "dry-run", .help = "print what memory, disk and time the command will take, and stop"});
  options.push_back({.name = "fresh", .help = "discard what an interrupted run has left instead of continuing it"});
  return {.name = "record",
          .summary =
              "Store a teacher's most probable tokens for every token of a text or of its own continuations, to "
              "train students from.",
          .positionals = {{"MODEL", "the teacher: directory of a checkpoint, dense or compressed, or a .gguf file"},
                          {"OUT.h5", "HDF5 file to write, with a folder OUT.h5.shards beside it; must not exist"}},
          .options = std::move(options),
          .run = record_teacher};
}

pare::runtime::Command run_command() {
  using pare::runtime::OptionKind;
  std::vector<pare::runtime::OptionSpec> options = {
      {.name = "model",
       .kind = OptionKind::text,
       .value_name = "DIR",
       .help = "the checkpoint (or .gguf file) to compress, instead of the recipe's"},
      {.name = "out",
       .kind = OptionKind::text,
       .value_name = "DIR",
       .help = "where the result goes, instead of the recipe's place; must not exist"}};
  for (pare::runtime::OptionSpec& option : resource_options()) options.push_back(std::move(option));
  options.push_back(pare::runtime::device_option(
      "device that trains ('distill') and evaluates; all else works on the CPU. Training on cuda needs a LibTorch "
      "built for it. Evaluating on it needs this program built with -DPARE_CUDA=ON; else the CPU evaluates. The two "
      "devices have different rounding errors"));
  options.push_back({.name = "dry-run",
                     .help =
                         "print which engines will load the result and what memory, disk and time the run will take, "
                         "and stop"});
  options.push_back({.name = "fresh", .help = "discard what an interrupted run has left instead of continuing it"});
  return {
      .name = "run",
      .summary =
          "Compress or distil a model as a recipe says: calibrate, prune, quantize, train, write, verify, evaluate.",
      .positionals = {{"RECIPE", "YAML file; recipes/ has one for every published result"}},
      .options = std::move(options),
      .run = run_recipe};
}

// Prints what was asked for; with --json all sections are the result, or the schema.
void explain_recipes(const pare::runtime::Arguments& arguments, pare::runtime::Console& console) {
  const bool is_page = arguments.flag("markdown"), is_schema = arguments.flag("json-schema");
  const bool names_one = arguments.num_positionals() > 0;
  if (is_page + is_schema + names_one > 1)
    throw pare::runtime::WrongUsage("PASS, --markdown and --json-schema: give one of them");
  std::string section;
  try {
    if (names_one) section = pare::compress::section_text(arguments.positional(0));
  } catch (const std::invalid_argument& error) {
    throw pare::runtime::WrongUsage(error.what());
  }
  console.set_result(is_schema ? pare::compress::recipe_schema() : pare::compress::guide_json());
  console.report() << (is_page     ? pare::compress::recipe_page()
                       : is_schema ? pare::compress::recipe_schema()
                       : names_one ? section
                                   : pare::compress::pass_list());
}

pare::runtime::Command recipes_command() {
  return {
      .name = "recipes",
      .summary = "Explain recipes: list the passes, or explain one of them with its options.",
      .positionals = {{.name = "PASS",
                       .help =
                           "a pass, an evaluation, a key of a recipe such as calibration, or recipe for the top level",
                       .optional = true,
                       .words = pare::compress::section_names()}},
      .options = {{.name = "markdown", .help = "print all of it as a page (docs/recipes.md)"},
                  {.name = "json-schema",
                   .help = "print a JSON Schema, with which editors complete and check recipes "
                           "(docs/recipe.schema.json)"}},
      .run = explain_recipes};
}

// Prints the card, or puts it in its place.
void card_of_artifact(const pare::runtime::Arguments& arguments, pare::runtime::Console& console) {
  pare::compress::CardRequest request;
  if (arguments.given("base-model")) request.base_model = arguments.text("base-model");
  request.write = arguments.flag("write");
  const std::string card = pare::compress::make_card(arguments.positional(0), request);
  console.set_result(pare::runtime::json_text(nlohmann::ordered_json{{"card", card}, {"written", request.write}}));
  if (request.write) {
    console.progress().print("written: README.md and pare.json of '" + arguments.positional(0) + "'");
  } else {
    console.report() << card;
  }
}

pare::runtime::Command card_command() {
  return {.name = "card",
          .summary = "Print the model card of a compressed model: what was done, its figures and how to load it.",
          .positionals = {{"DIR", "a model that pare run has made"}},
          .options = {words_option("base-model", "ORG/NAME",
                                   "the original's name on the Hugging Face Hub (default: what pare.json says)"),
                      {.name = "write",
                       .help = "put the card in place of README.md, and into the checksums of pare.json; a README.md "
                               "that was changed by hand is not replaced"}},
          .run = card_of_artifact};
}

// The page is written whole or not at all, and replaces nothing.
void report_on_runs(const pare::runtime::Arguments& arguments, pare::runtime::Console& console) {
  std::vector<std::filesystem::path> folders;
  for (size_t i = 0; i < arguments.num_positionals(); ++i) folders.emplace_back(arguments.positional(i));
  const std::filesystem::path page = arguments.given("out") ? arguments.text("out") : "";
  if (!page.empty() && page.extension() != ".html") {
    throw pare::runtime::WrongUsage("--out '" + page.string() +
                                    "': expected the name of a page, which ends in .html; --markdown prints a table");
  }
  if (!page.empty() && pare::runtime::is_there(page)) {
    throw std::invalid_argument("'" + page.string() + "' is there already: give --out another name, or remove it");
  }
  if (!page.empty()) pare::runtime::refuse_output_in_artifact(page);
  const pare::compress::FoundRuns found = pare::compress::find_runs(folders);
  for (const std::string& line : found.skipped) console.progress().print("report: " + line);
  console.set_result(pare::compress::runs_json(found));
  if (!page.empty()) {
    std::vector<std::filesystem::path> manifests;
    for (const std::filesystem::path& folder : folders) {
      for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        manifests.push_back(entry.is_directory() ? entry.path() / pare::runtime::kManifestName : entry.path());
      }
    }
    pare::runtime::keep_as_private_as(manifests, page);
    pare::runtime::write_file_atomically(page, pare::compress::runs_page(found));
    console.progress().print("written: '" + page.string() + "'");
  }
  if (page.empty() || arguments.flag("markdown")) console.report() << pare::compress::runs_markdown(found);
}

// The table stands on standard output whatever has failed.
void sweep_recipe(const pare::runtime::Arguments& arguments, pare::runtime::Console& console) {
  pare::compress::RunOptions options = run_options(arguments);
  if (arguments.given("out")) options.output = arguments.text("out");
  options.fresh = arguments.flag("fresh");
  options.on_gpu = pare::runtime::device_of(arguments) == pare::runtime::ComputeDevice::cuda;
  pare::compress::SweepResult result;
  result_of(options.dry_run, console, [&](pare::runtime::Progress& progress) {
    result = pare::compress::sweep(arguments.positional(0), options, progress);
    return result.json;
  });
  console.set_result(result.json);
  if (!result.markdown.empty()) console.report() << result.markdown;
  if (result.failures.empty()) return;
  std::vector<std::string> lines = {std::to_string(result.failures.size()) +
                                    (result.failures.size() == 1 ? " point has failed; " : " points have failed; ") +
                                    "the others are done, and the same command tries again what has failed:"};
  for (const std::string& failure : result.failures) lines.push_back("  " + failure);
  throw pare::runtime::ErrorOfLines(lines);
}

pare::runtime::Command sweep_command() {
  pare::runtime::Command command = run_command();
  command.name = "sweep";
  command.summary = "Run a recipe for each point of its grid of values, and set the results beside one another.";
  command.positionals = {{"RECIPE", "YAML file with 'sweep: {grid: {gptq.bits: [3, 4]}}' or the like"}};
  command.run = sweep_recipe;
  for (pare::runtime::OptionSpec& option : command.options) {
    if (option.name == "out") {
      option.help = "folder for the results, instead of the recipe's; a sweep that was begun there goes on";
    }
    if (option.name == "dry-run") {
      option.help = "print the points, and what memory, disk and time they will take, and stop";
    }
    if (option.name == "fresh") option.help = "discard what interrupted runs have left; results that are there stay";
  }
  return command;
}

pare::runtime::Command report_command() {
  return {
      .name = "report",
      .summary = "Set results beside one another: quality against size and speed, as a page or as a table.",
      .positionals = {{.name = "DIR",
                       .help = "a model that pare run has made, or a folder with such models",
                       .repeated = true}},
      .options = {text_option("out", "FILE", "write a page for browsers, one .html file; must not exist"),
                  {.name = "markdown", .help = "print a table for a README; without --out it is printed in any case"}},
      .run = report_on_runs};
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<pare::runtime::Command> commands = {
      run_command(),     sweep_command(), calibrate_command(), record_command(),
      recipes_command(), card_command(),  report_command(),    pare::compress::export_command()};
  for (pare::runtime::Command& command : pare::runtime::runtime_commands()) commands.push_back(std::move(command));
  const pare::runtime::Program program = {
      .name = "pare",
      .summary = "Compresses language-model checkpoints offline, and runs, measures and checks the result.",
      .commands = std::move(commands),
      .sources = pare::runtime::source_state(),
      .libtorch = TORCH_VERSION};
  return pare::runtime::run_program(program, argc, argv);
}
