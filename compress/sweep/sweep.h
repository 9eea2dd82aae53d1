// `pare sweep`: the points of a grid of recipes, one run after the other, from one file of statistics.
//
//   OUT/statistics-1a2b3c4d.h5   what all points start from (sweep_points.h), as `pare calibrate` makes it
//   OUT/bits-3.yaml              a point's recipe, which `pare run` can run by itself
//   OUT/bits-3                   its result
//   OUT/report.html              the results beside one another, as `pare report` shows them
//
// A killed sweep goes on where it was: results that are there are kept, and a run that was begun goes on.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "compress/run/run_options.h"
#include "runtime/system/progress.h"

namespace pare::compress {

struct SweepResult {
  std::string json;                   // one object: the points, and what became of them
  std::string markdown;               // a table of the results; empty for a dry run
  std::vector<std::string> failures;  // "NAME: reason"
};

// Runs the points of the recipe in `file`. options.output, or the recipe's output, is the folder. Every point is
// planned before the first one runs, and the disk must have room for all. A point that fails does not end the others.
// options.fresh discards what interrupted runs have left, and keeps results. With dry_run nothing is written, and the
// points are printed.
// Throws std::invalid_argument (what sweep_points and parse_recipe throw; a point that cannot be planned, with its
// name; a result that another recipe has made; statistics of another text or model), std::runtime_error, Interrupted.
SweepResult sweep(const std::filesystem::path& file, const RunOptions& options, runtime::Progress& progress);

}  // namespace pare::compress
