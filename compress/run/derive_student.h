// A phase that makes a smaller model of its teacher's weights, for the phases after it to train.
#pragma once

#include <string>

#include "compress/run/compress_model.h"

namespace pare::compress {

// data -> student -> evaluate -> report, as compress/student/student.h says. Returns the report (with dry_run: the
// prediction) as a JSON object. Throws what pipeline.h: run and make_student say.
std::string derive_student(const PhaseInput& input, const RunOptions& options, runtime::Progress& progress);

}  // namespace pare::compress
