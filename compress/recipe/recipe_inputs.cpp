#include "compress/recipe/recipe_inputs.h"

#include "compress/recipe/distill_pass.h"

namespace pare::compress {
namespace {

namespace fs = std::filesystem;

void add(const fs::path& file, std::vector<fs::path>& files) {
  if (!file.empty()) files.push_back(file);
}

}  // namespace

std::vector<fs::path> data_files(const Recipe& recipe) {
  std::vector<fs::path> files;
  if (recipe.calibration) {
    add(recipe.calibration->text, files);
    add(recipe.calibration->statistics, files);
  }
  if (recipe.sensitivity) add(recipe.sensitivity->text, files);
  for (const EvaluationRecipe& item : recipe.evaluate) {
    add(item.options->data, files);
    item.options->clone()->other_files([&](std::string_view, std::string& file) { add(file, files); });
  }
  return files;
}

std::vector<fs::path> all_inputs(const Recipe& recipe, const fs::path& model) {
  std::vector<fs::path> files = data_files(recipe);
  add(recipe.file, files);
  add(model, files);
  for (const PassRecipe& pass : recipe.passes) {
    copy_of(*pass.options)->files([&](std::string_view, std::string& file) { add(file, files); });
    const DistillOptions* const training = pass.options->training();
    if (training != nullptr && !training->logits.empty()) add(training->logits + ".shards", files);
  }
  return files;
}

}  // namespace pare::compress
