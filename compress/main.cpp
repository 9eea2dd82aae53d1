// pare: compresses language-model checkpoints, and runs and measures the result.
#include "compress/calibrate.h"
#include "compress/pipeline.h"
#include "compress/recipe/recipe.h"
#include "runtime/commands/command_line.h"
#include "runtime/commands/commands.h"

namespace {

pare::RunOptions run_options(const pare::Arguments& arguments) {
  pare::RunOptions options;
  if (arguments.given("model")) options.model = arguments.text("model");
  if (arguments.given("max-memory")) options.max_memory_bytes = arguments.bytes("max-memory");
  if (arguments.given("threads")) options.num_threads = static_cast<int>(arguments.integer("threads"));
  options.dry_run = arguments.flag("dry-run");
  return options;
}

void run_recipe(const pare::Arguments& arguments, pare::Console& console) {
  const pare::Recipe recipe = pare::read_recipe(arguments.positional(0));
  pare::RunOptions options = run_options(arguments);
  if (arguments.given("out")) options.output = arguments.text("out");
  options.fresh = arguments.flag("fresh");
  console.set_result(pare::run(recipe, options, console.progress()));
}

void calibrate_recipe(const pare::Arguments& arguments, pare::Console& console) {
  const pare::Recipe recipe = pare::read_recipe(arguments.positional(0));
  console.set_result(pare::calibrate(recipe, arguments.positional(1), run_options(arguments), console.progress()));
}

// Of both commands.
std::vector<pare::OptionSpec> resource_options() {
  using pare::OptionKind;
  return {{.name = "max-memory",
           .kind = OptionKind::bytes,
           .value_name = "SIZE",
           .help = "memory to stay within, such as 8GiB: activations go to disk when it is short; does not change the "
                   "result (default: four fifths of what is free)"},
          {.name = "threads",
           .kind = OptionKind::integer,
           .value_name = "N",
           .help = "threads to use; does not change the result (default: one for each core)",
           .minimum = 1}};
}

pare::Command calibrate_command() {
  std::vector<pare::OptionSpec> options = {{.name = "model",
                                            .kind = pare::OptionKind::text,
                                            .value_name = "DIR",
                                            .help = "the checkpoint (or .gguf file), instead of the recipe's"}};
  for (pare::OptionSpec& option : resource_options()) options.push_back(std::move(option));
  options.push_back({.name = "dry-run", .help = "say what memory, disk and time it will take, and stop"});
  return {.name = "calibrate",
          .summary =
              "store the calibration statistics of an uncompressed model, for recipes to start from "
              "('calibration: {statistics: OUT.h5}')",
          .positionals = {{"RECIPE", "YAML file; its model and calibration are used"},
                          {"OUT.h5", "HDF5 file to write; must not exist"}},
          .options = std::move(options),
          .run = calibrate_recipe};
}

pare::Command run_command() {
  using pare::OptionKind;
  std::vector<pare::OptionSpec> options = {
      {.name = "model",
       .kind = OptionKind::text,
       .value_name = "DIR",
       .help = "the checkpoint (or .gguf file) to compress, instead of the recipe's"},
      {.name = "out",
       .kind = OptionKind::text,
       .value_name = "DIR",
       .help = "where the result goes, instead of the recipe's place; must not exist"}};
  for (pare::OptionSpec& option : resource_options()) options.push_back(std::move(option));
  options.push_back({.name = "dry-run",
                     .help = "say which engines will load the result and what memory, disk and time the run will take, "
                             "and stop"});
  options.push_back({.name = "fresh", .help = "discard what an interrupted run has left instead of going on with it"});
  return {.name = "run",
          .summary = "compress a model as a recipe says: calibrate, quantize, write, verify, evaluate",
          .positionals = {{"RECIPE", "YAML file; recipes/ has one for every published result"}},
          .options = std::move(options),
          .run = run_recipe};
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<pare::Command> commands = {run_command(), calibrate_command()};
  for (pare::Command& command : pare::runtime_commands()) commands.push_back(std::move(command));
  const pare::Program program = {
      .name = "pare",
      .summary = "Compresses language-model checkpoints offline, and runs, measures and checks the result.",
      .commands = std::move(commands)};
  return pare::run_program(program, argc, argv);
}
