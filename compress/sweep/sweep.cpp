#include "compress/sweep/sweep.h"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>

#include "compress/artifact/workplace.h"
#include "compress/predict/prediction.h"
#include "compress/recipe/recipe.h"
#include "compress/recipe/recipe_inputs.h"
#include "compress/recipe/recipe_paths.h"
#include "compress/report/runs_page.h"
#include "compress/run/calibrate.h"
#include "compress/run/pipeline.h"
#include "compress/run/torch_errors.h"
#include "compress/sweep/sweep_points.h"
#include "runtime/commands/artifact_files.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/json_text.h"
#include "runtime/system/partial_output.h"
#include "runtime/system/private_files.h"
#include "runtime/system/visible_text.h"

namespace pare::compress {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Point {
  SweepPoint text;
  Recipe recipe, alone;  // with files found
  fs::path output, recipe_file;
  bool is_made = false;  // by an earlier sweep
  Json plan = {};
};

// `text` is a point's recipe. What is wrong with it is said with the point's name in place of a file's, since its lines
// are not those of the sweep's recipe.
Recipe parse_point(const std::string& text, const std::string& name, const fs::path& file) {
  Recipe recipe = parse_recipe(text, file.parent_path() / (file.filename().string() + ", point " + name));
  recipe.file = file;
  return recipe;
}

Recipe with_files(Recipe recipe, std::vector<std::string>& notes) {
  for (const std::string& note : find_files(recipe)) {
    if (std::ranges::find(notes, note) == notes.end()) notes.push_back(note);
  }
  return recipe;
}

// A failure as a part of a line.
std::string one_line(std::string text) {
  for (size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n')) {
    const size_t end = std::min(text.find_first_not_of("\n ", at), text.size());
    text.replace(at, end - at, end == text.size() ? "" : "; ");
  }
  return text;
}

// Removes what a run that was killed after its last rename has left beside its result. A run's own check does so, and
// then says that the output exists.
void remove_remains(const fs::path& output) {
  try {
    Workplace::check_output_is_free(output, runtime::PartialOutput::Leftovers::go);
  } catch (const std::runtime_error&) {  // the output exists, as it should
  }
}

// What is at the place of a point's result. Throws std::invalid_argument unless it is nothing, or the point's and whole
// (runtime/commands/artifact_files.h: require_listed_files).
bool is_made(const Point& point) {
  if (!runtime::is_there(point.output)) return false;
  const std::string place = "'" + point.output.string() + "'";
  if (!runtime::is_there(point.output / runtime::kManifestName)) {
    throw std::invalid_argument(place + " is there already, and is no result of a run: remove it, or give another " +
                                "output");
  }
  const nlohmann::json recipe = runtime::manifest_member(point.output, "recipe");
  if (recipe.is_string() && recipe.get<std::string>() == point.text.recipe) {
    try {
      runtime::require_listed_files(point.output);
    } catch (const std::runtime_error& error) {
      throw std::invalid_argument("point " + point.text.name + ": " + one_line(error.what()) +
                                  "; for the sweep to make it again, remove " + place);
    }
    return true;
  }
  throw std::invalid_argument(place +
                              " was made by another recipe than the sweep has now for this point: remove it, "
                              "or give another output");
}

// Only what a sweep has written is replaced.
void check_recipe_file(const Point& point) {
  if (!runtime::is_there(point.recipe_file)) return;
  const std::string text = runtime::read_text_file(point.recipe_file);
  if (text.substr(0, text.find('\n')) == point.text.recipe.substr(0, point.text.recipe.find('\n'))) return;
  throw std::invalid_argument("'" + point.recipe_file.string() +
                              "' is there already, and no sweep has written it: remove it, or give another output");
}

std::vector<Point> read_points(const SweepPoints& points, const fs::path& file, const fs::path& output,
                               runtime::Progress& progress) {
  std::vector<Point> read;
  std::vector<std::string> notes;
  for (const SweepPoint& text : points.points) {
    Point point{.text = text,
                .recipe = with_files(parse_point(text.recipe, text.name, file), notes),
                .alone = with_files(parse_point(text.alone, text.name, file), notes),
                .output = output / text.name,
                .recipe_file = output / (text.name + ".yaml")};
    if (!points.statistics.empty()) point.recipe.calibration->statistics = output / points.statistics;
    check_recipe_file(point);
    point.is_made = is_made(point);
    read.push_back(std::move(point));
  }
  for (const std::string& note : notes) progress.print("recipe: " + note);
  return read;
}

// Plans every point that is left. Throws std::invalid_argument with the names of all that cannot be planned.
void plan_points(bool from_statistics, const fs::path& output, RunOptions options, std::vector<Point>& points) {
  options.dry_run = true;
  runtime::Progress silent(runtime::ProgressStyle::silent, std::cerr);
  std::vector<std::string> lines;
  for (Point& point : points) {
    if (point.is_made) continue;
    runtime::throw_if_interrupted();
    // Before the folder is made, its own place stands for those in it.
    options.output = fs::is_directory(output) ? point.output : output;
    try {
      point.plan = runtime::parse_ordered_json(
          with_own_errors([&] { return run(from_statistics ? point.recipe : point.alone, options, silent); }),
          "a point's plan");
    } catch (const runtime::Interrupted&) {
      throw;
    } catch (const std::exception& error) {
      lines.push_back("point " + point.text.name + ": " + one_line(error.what()));
    }
  }
  if (lines.empty()) return;
  lines.insert(lines.begin(), std::to_string(lines.size()) + " of " + std::to_string(points.size()) +
                                  " points cannot be run; none was begun:");
  throw runtime::ErrorOfLines(lines);
}

struct PointPlan {
  double seconds = 0.0;
  int64_t memory_bytes = 0, disk_bytes = 0, output_bytes = 0;
};

// Of a run of several phases, in which what each hands on lies until the last one is done.
PointPlan summed(const Json& plan) {
  PointPlan sum;
  for (const Json& phase : plan.contains("phases") ? plan["phases"] : Json::array({plan})) {
    sum.seconds += phase.at("predicted_seconds").get<double>();
    sum.memory_bytes = std::max(sum.memory_bytes, phase.at("predicted_peak_memory_bytes").get<int64_t>());
    sum.disk_bytes = std::max(sum.disk_bytes, sum.output_bytes + phase.at("predicted_disk_bytes").get<int64_t>());
    sum.output_bytes += phase.at("predicted_output_bytes").get<int64_t>();
  }
  return sum;
}

// What is made stays while the next point works.
int64_t disk_bytes_of(const std::vector<Point>& points, int64_t statistics_bytes) {
  int64_t kept = statistics_bytes, most = statistics_bytes;
  for (const Point& point : points) {
    if (point.is_made) continue;
    const PointPlan plan = summed(point.plan);
    most = std::max(most, kept + plan.disk_bytes);
    kept += plan.output_bytes;
  }
  return most;
}

std::string print_plan(const std::vector<Point>& points, int64_t disk_bytes, runtime::Progress& progress) {
  Json rows = Json::array();
  double seconds = 0.0;
  for (const Point& point : points) {
    Json row = {{"name", point.text.name}, {"output", point.output.string()}, {"made", point.is_made}};
    if (point.is_made) {
      progress.print(point.text.name + ": made already");
    } else {
      const PointPlan plan = summed(point.plan);
      seconds += plan.seconds;
      progress.print(point.text.name + ": " + runtime::format_duration(plan.seconds) + ", peak memory " +
                     runtime::format_bytes(plan.memory_bytes) + ", output " + runtime::format_bytes(plan.output_bytes));
      row["plan"] = point.plan;
    }
    rows.push_back(std::move(row));
  }
  progress.print("plan: in all " + std::to_string(points.size()) + (points.size() == 1 ? " point, " : " points, ") +
                 runtime::format_duration(seconds) + ", disk " + runtime::format_bytes(disk_bytes));
  return runtime::json_text(Json{{"points", rows}, {"predicted_disk_bytes", disk_bytes}});
}

// Returns "" or why it failed.
std::string run_point(const Point& point, RunOptions options, runtime::Progress& progress) {
  options.output = point.output;
  try {
    runtime::write_file_atomically(point.recipe_file, point.text.recipe);
    with_own_errors([&] { return run(point.recipe, options, progress); });
    return {};
  } catch (const runtime::Interrupted&) {
    throw;
  } catch (const std::exception& error) {
    return one_line(error.what());
  }
}

}  // namespace

SweepResult sweep(const fs::path& file, const RunOptions& options, runtime::Progress& progress) {
  const SweepPoints texts = sweep_points(read_recipe_text(file), file);
  // The folder stands in the recipe as any run's output does.
  const fs::path output = runtime::output_place(chosen(options.output, texts.output, "output", "output", "--out"));
  runtime::refuse_output_in_artifact(output);
  if (runtime::is_there(output) && !fs::is_directory(output)) {
    throw std::invalid_argument("'" + output.string() + "' is no folder: give the sweep another output");
  }
  if (runtime::is_there(output / runtime::kManifestName)) {
    throw std::invalid_argument("'" + output.string() +
                                "' is the result of a run: give the sweep a folder for its results");
  }
  std::vector<Point> points = read_points(texts, file, output, progress);
  std::vector<fs::path> inputs;
  for (const Point& point : points) {
    const std::vector<fs::path> own =
        all_inputs(point.alone, options.model.empty() ? point.alone.model : options.model);
    inputs.insert(inputs.end(), own.begin(), own.end());
  }
  std::ranges::sort(inputs);
  inputs.erase(std::unique(inputs.begin(), inputs.end()), inputs.end());
  runtime::keep_as_private_as(inputs, output);
  const fs::path statistics = texts.statistics.empty() ? fs::path() : output / texts.statistics;
  const bool is_left = std::ranges::any_of(points, [](const Point& point) { return !point.is_made; });
  // Points that are made came from these statistics too: they are not those of another text or model.
  const bool has_statistics = !statistics.empty() && runtime::is_there(statistics);
  const bool calibrates = is_left && !statistics.empty() && !has_statistics;
  if (has_statistics) check_statistics_of(points.front().alone, statistics, options, progress);
  plan_points(/*from_statistics=*/!calibrates, output, options, points);
  int64_t statistics_bytes = 0;
  if (calibrates) {
    RunOptions plan = options;
    plan.dry_run = true;
    runtime::Progress silent(runtime::ProgressStyle::silent, std::cerr);
    const fs::path place = fs::is_directory(output) ? statistics : output;
    statistics_bytes = runtime::parse_ordered_json(calibrate(points.front().alone, place, plan, silent), "a plan")
                           .at("predicted_output_bytes")
                           .get<int64_t>();
  }
  const int64_t disk_bytes = disk_bytes_of(points, statistics_bytes);
  SweepResult result;
  if (options.dry_run) {
    result.json = print_plan(points, disk_bytes, progress);
    return result;
  }
  Prediction all;
  all.disk_bytes = disk_bytes;
  check_disk_space(output, all);
  if (!fs::is_directory(output)) fs::create_directory(output);
  if (calibrates) {
    progress.print("sweep: the statistics that all points start from");
    calibrate(points.front().alone, statistics, options, progress);
    plan_points(/*from_statistics=*/true, output, options, points);
  }

  Json rows = Json::array();
  std::vector<fs::path> made;
  for (size_t i = 0; i < points.size(); ++i) {
    const Point& point = points[i];
    const std::string of = "point " + std::to_string(i + 1) + " of " + std::to_string(points.size()) + ": ";
    progress.print("sweep: " + of + point.text.name + (point.is_made ? ", made already" : ""));
    if (point.is_made) remove_remains(point.output);
    const std::string failure = point.is_made ? "" : run_point(point, options, progress);
    Json row = {{"name", point.text.name},
                {"output", point.output.string()},
                {"status", point.is_made     ? "made already"
                           : failure.empty() ? "done"
                                             : "failed"}};
    if (failure.empty()) {
      made.push_back(point.output);
    } else {
      progress.print("sweep: " + point.text.name + " failed: " + failure);
      result.failures.push_back(point.text.name + ": " + failure);
      row["error"] = failure;
    }
    rows.push_back(std::move(row));
  }
  Json json = {{"points", rows}};
  if (!made.empty()) {
    const FoundRuns found = find_runs(made);
    const fs::path page = output / runtime::kReportPageName;
    runtime::write_file_atomically(page, runs_page(found));
    result.markdown = runs_markdown(found);
    json["report"] = page.string();
    progress.print("written: '" + page.string() + "'");
  }
  result.json = runtime::json_text(json, 2);
  return result;
}

}  // namespace pare::compress
