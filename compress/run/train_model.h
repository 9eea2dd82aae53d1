// A training phase: a whole model trained from a teacher.
#pragma once

#include <string>

#include "compress/run/compress_model.h"

namespace pare::compress {

// plan -> data -> prediction -> student and teacher -> training -> artifact -> verify -> evaluate -> report. The result
// is stored as the model that the phase starts from is: the same container, codes on the same grids, zeros where they
// were. Beside the weights lie training.csv and training.svg. Returns the report (with dry_run: the prediction) as a
// JSON object. Throws what pipeline.h: run says; std::invalid_argument also for encoders, for a teacher with another
// tokenizer, and for a text that is too short to be trained on and validated.
std::string train_model(const PhaseInput& input, const RunOptions& options, runtime::Progress& progress);

}  // namespace pare::compress
