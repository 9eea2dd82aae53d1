// The command eval. Its options are those of the table of evaluations (runtime/evaluate/evaluation.h).
#pragma once

#include "runtime/commands/command_line.h"

namespace pare::runtime {

Command eval_command();

}  // namespace pare::runtime
