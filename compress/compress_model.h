// A layerwise phase: every layer of a model through the recipe's passes.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "compress/recipe/recipe.h"
#include "compress/run_options.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/partial_output.h"
#include "runtime/system/progress.h"

namespace pare {

// What a phase begins with.
struct PhaseInput {
  const Recipe& recipe;          // of the phase alone
  const Checkpoint& checkpoint;  // that it starts from
  const Checkpoint& original;    // the recipe's model
  std::filesystem::path output;
  int num_threads = 1;
  bool may_be_made = false;  // an output that this phase has made already is taken as it is: the result is "" then
  // Where the output is made, if the run holds it already; whoever works there takes it.
  std::optional<PartialOutput>* place = nullptr;
  // `checkpoint` stands for what an earlier phase will make, in a dry run: of its shape, not of its form.
  bool is_stand_in = false;
};

// plan -> data -> prediction -> survey and budget -> tables -> walk -> artifact -> verify -> evaluate -> report.
// Returns the report (with dry_run: the prediction) as a JSON object. Throws what pipeline.h: run says.
std::string compress_model(const PhaseInput& input, const RunOptions& options, Progress& progress);

}  // namespace pare
