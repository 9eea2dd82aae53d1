#include "compress/recipe/recipe_paths.h"

#include <functional>
#include <stdexcept>
#include <system_error>

#include "runtime/evaluate/token_source.h"

namespace pare::compress {
namespace {

namespace fs = std::filesystem;

// Visits every file and folder that the recipe reads, under the key that it has there.
using VisitPath = std::function<void(const std::string& key, fs::path& path)>;

void visit_paths(Recipe& recipe, const VisitPath& visit) {
  visit("model", recipe.model);
  if (recipe.calibration) {
    visit("calibration.text", recipe.calibration->text);
    visit("calibration.statistics", recipe.calibration->statistics);
  }
  for (PassRecipe& pass : recipe.passes) {
    const std::shared_ptr<PassOptions> options = copy_of(*pass.options);
    options->files([&](std::string_view key, std::string& file) {
      fs::path path = file;
      visit(std::string(pass.row->key) + "." + std::string(key), path);
      file = path.string();
    });
    pass.options = options;
  }
  if (recipe.sensitivity) visit("sensitivity.text", recipe.sensitivity->text);
  for (EvaluationRecipe& item : recipe.evaluate) {
    std::unique_ptr<runtime::EvaluationOptions> options = item.options->clone();
    fs::path path = options->data;
    visit("evaluate." + std::string(item.row->key) + "." + std::string(item.row->data_key), path);
    options->data = path.string();
    options->other_files([&](std::string_view key, std::string& file) {
      fs::path other = file;
      visit("evaluate." + std::string(item.row->key) + "." + std::string(key), other);
      file = other.string();
    });
    item.options = std::move(options);
  }
}

}  // namespace

std::vector<std::string> find_files(Recipe& recipe) {
  std::vector<std::string> notes;
  std::string reader = runtime::is_standard_input(recipe.file) ? "the recipe" : "";  // of standard input
  visit_paths(recipe, [&](const std::string& key, fs::path& path) {
    if (path.empty()) return;
    if (runtime::is_standard_input(path)) {
      if (!reader.empty()) {
        throw std::invalid_argument(recipe.file.string() + ": '" + key + "' is standard input, and so is " + reader +
                                    ": it can be read only once; give one of them as a file");
      }
      reader = "'" + key + "'";
      return;
    }
    const fs::path beside = recipe.file.parent_path() / path;  // an absolute path stays what it is
    std::error_code unreadable;                                // its reader says why
    if (!fs::exists(beside, unreadable)) return;
    if (!fs::exists(path, unreadable)) {
      path = beside;
    } else if (!fs::equivalent(path, beside, unreadable) && !unreadable) {
      notes.push_back("'" + key + "': '" + path.string() + "' is taken from the working directory; '" +
                      beside.string() + "', beside the recipe, is another");
    }
  });
  return notes;
}

}  // namespace pare::compress
