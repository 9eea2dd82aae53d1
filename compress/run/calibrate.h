// `pare calibrate`: the statistics of an uncompressed model, taken in one forward pass and stored in one file.
#pragma once

#include <filesystem>
#include <string>

#include "compress/recipe/recipe.h"
#include "compress/run/pipeline.h"
#include "runtime/system/progress.h"

namespace pare::compress {

// Walks the recipe's model over its calibration data without compressing anything and writes every stage's statistics
// to `output` (statistics_file.h), one stage in memory at a time; the recipe's passes are not looked at. Returns the
// report (with dry_run: the plan) as one JSON object. options.output and options.fresh are not looked at. Throws
// std::invalid_argument (a recipe without calibration text, a source that is quantized, too little memory),
// std::runtime_error (`output` exists, the disk is full, damaged weights) and Interrupted; `output` then does not
// exist.
std::string calibrate(const Recipe& recipe, const std::filesystem::path& output, const RunOptions& options,
                      runtime::Progress& progress);

// Throws std::invalid_argument if the statistics in that file are not those that `calibrate` would take of this recipe
// now: of another model, or of other windows, as where the text has changed since. Reads the whole file. Throws what
// StatisticsFile::open throws.
void check_statistics_of(const Recipe& recipe, const std::filesystem::path& statistics, const RunOptions& options,
                         runtime::Progress& progress);

}  // namespace pare::compress
