// What `sweep:` makes of one recipe: a recipe for each point of its grid.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace pare::compress {

struct SweepPoint {
  std::string name;    // of its folder: "bits-3_group_size-64"
  std::string recipe;  // YAML; it starts from the file of statistics where the points share one
  std::string alone;   // the same with the calibration of the sweep's own recipe
};

struct SweepPoints {
  std::vector<SweepPoint> points;
  std::filesystem::path output;  // as the recipe says it; empty: it does not
  std::string statistics;  // name of the file that all points start from, beside their recipes; empty: there is none
};

// Reads the recipe's `sweep` and makes the points, in the order in which the last key of a map changes fastest. The
// same choice of values always has the same name, whatever else is in the grid. The name of the file of statistics
// changes with the calibration. Points are not yet checked as recipes. Throws std::invalid_argument: no `sweep`, a grid
// that is none, keys that name no place in the recipe or what all points have in common, a point that is there twice,
// more than kMostPoints.
SweepPoints sweep_points(const std::string& yaml, const std::filesystem::path& file);
inline constexpr size_t kMostPoints = 1000;

}  // namespace pare::compress
