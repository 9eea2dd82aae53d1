// A layerwise phase: every layer of a model through the recipe's passes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "compress/artifact/workplace.h"
#include "compress/recipe/recipe.h"
#include "compress/run/run_data.h"
#include "compress/run/run_options.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/progress.h"

namespace pare::compress {

// What a phase begins with.
struct PhaseInput {
  const Recipe& recipe;                   // of the phase alone
  const runtime::Checkpoint& checkpoint;  // that it starts from
  const runtime::Checkpoint& original;    // the recipe's model
  std::filesystem::path output;
  int num_threads = 1;
  // Where the phase works, which the run holds already; null: it takes hold of it. What it has handed on already is
  // taken as it is: the result is "" then.
  const Workplace* place = nullptr;
  // `checkpoint` stands for what an earlier phase will make, in a dry run: of its shape, not of its form.
  bool is_stand_in = false;
  // False: weights of `checkpoint` read as zeros, in a dry run (PlainSource). What depends on them is not said then.
  bool has_weights = true;
  bool is_last = true;                   // of the run's phases: what it comes to is the run's result
  std::vector<std::string> events = {};  // of the source, before the phase
  EarlierPhases earlier = {};
};

// plan -> data -> prediction -> survey and budget -> tables -> walk -> artifact -> verify -> evaluate -> report.
// Returns the report (with dry_run: the prediction) as a JSON object. Throws what pipeline.h: run says.
std::string compress_model(const PhaseInput& input, const RunOptions& options, runtime::Progress& progress);

}  // namespace pare::compress
