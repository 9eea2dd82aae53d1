// `pare run`: a recipe from beginning to end, as one straight line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "compress/recipe/recipe.h"
#include "runtime/system/progress.h"

namespace pare {

// What the command line may say beside the recipe. None of it changes a byte of the output.
struct RunOptions {
  std::filesystem::path model;   // instead of the recipe's; empty: the recipe's
  std::filesystem::path output;  // likewise
  std::optional<int64_t> max_memory_bytes;
  int num_threads = 0;  // 0: as OpenMP decides
  bool dry_run = false;
  bool fresh = false;
};

// Of two places for the same thing the command line's, which may be empty. Throws std::invalid_argument when both are:
// "no WHAT: give 'KEY:' in the recipe or OPTION".
std::filesystem::path chosen(const std::filesystem::path& from_command_line, const std::filesystem::path& from_recipe,
                             const std::string& what, const std::string& key, const std::string& option);

// Sets how many threads OpenMP and LibTorch use (0: as OpenMP decides) and returns the number.
int set_num_threads(int num_threads);

// Throws std::invalid_argument for a recipe with 'student', which is no part of a run yet.
void refuse_student(const Recipe& recipe);

// recipe -> checkpoint -> plan -> calibration -> passes -> artifact -> verify -> evaluate -> report. Returns the report
// (with dry_run: the plan) as one JSON object. Everything that can be wrong with the input is found before any work and
// leaves nothing behind. Throws std::invalid_argument and std::runtime_error, also when an event occurs under `strict`
// or the result breaks `fail_if`; and Interrupted: the same call goes on later and gives the same bytes.
std::string run(const Recipe& recipe, const RunOptions& options, Progress& progress);

}  // namespace pare
