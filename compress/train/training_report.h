// What is said of a training: before it by what its result will be chosen, after it what was kept, and what of it
// pare.json and the report hold.
#pragma once

#include <string>
#include <vector>

#include "compress/recipe/distill_pass.h"
#include "compress/train/trainer.h"
#include "compress/train/training_state.h"

namespace pare::compress {

// A line of the plan.
std::string how_chosen(const DistillOptions& options);

// "distill: kept step 90 of 120: the trained loss of the held-out windows is least there, 2.1034; ..."
std::string how_kept(const TrainingState& state, const DistillOptions& options);
// The short of it, of a training_json: which step was kept, by what, and the perplexity there.
std::string kept_line(const std::string& training);

// Adds an event where no step was better than the start, so that the whole training was for nothing.
void note_nothing_kept(const TrainingState& state, const DistillOptions& options, std::vector<std::string>& events);

// Adds an event where zeros of layers are kept of which nothing says that they were pruned; whether it did.
bool note_guessed_zeros(const StudentModel& student, std::vector<std::string>& events);

// A JSON object. speed: null for pare.json, which holds nothing measured in seconds.
std::string training_json(const TrainingState& state, const DistillOptions& options, const TrainingWindows& windows,
                          const TrainingSpeed* speed);

}  // namespace pare::compress
