// A trained student into an artifact's parts, stored as the checkpoint that it was read from.
#pragma once

#include "compress/artifact/artifact.h"
#include "compress/plan/plan.h"
#include "compress/train/student_model.h"

namespace pare::compress {

// Commits a part for each block, and one for the tables. The plan's layers have the schemes in which they are stored.
// Throws std::runtime_error for what cannot be written.
void commit_student(const StudentModel& student, const runtime::Checkpoint& checkpoint, const RunPlan& plan,
                    Artifact& artifact);

}  // namespace pare::compress
