// `pare run`: a recipe from beginning to end, as one straight line.
#pragma once

#include <filesystem>
#include <string>

#include "compress/recipe/recipe.h"
#include "compress/run/run_options.h"
#include "runtime/system/progress.h"

namespace pare::compress {

// Of two places for the same thing the command line's, which may be empty. Throws std::invalid_argument when both are:
// "no WHAT: give 'KEY:' in the recipe or OPTION".
std::filesystem::path chosen(const std::filesystem::path& from_command_line, const std::filesystem::path& from_recipe,
                             const std::string& what, const std::string& key, const std::string& option);

// Sets how many threads OpenMP and LibTorch use (0: as OpenMP decides) and returns the number.
int set_num_threads(int num_threads);

// The recipe's phases (recipe/distill_pass.h), one after the other, each from the checkpoint that the one before has
// made, by compress_model and train_model. Where there are several, what they hand on lies in OUT.partial
// (artifact/workplace.h) until the last is published; a killed run goes on at the phase that it was in. Returns the
// last phase's report (with dry_run, which writes and removes nothing: the plans) as one JSON object. Everything that
// can be wrong with the input of any phase is found before any work and leaves nothing behind. Throws
// std::invalid_argument and std::runtime_error, also when an event occurs under `strict` or the result breaks
// `fail_if`; and Interrupted: the same call goes on later and gives the same bytes.
std::string run(const Recipe& recipe, const RunOptions& options, runtime::Progress& progress);

}  // namespace pare::compress
