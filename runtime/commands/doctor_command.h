// `doctor`: what is wrong with a model, proved by numbers, and repaired in a copy.
#pragma once

#include "runtime/commands/command_line.h"

namespace pare::runtime {

Command doctor_command();

}  // namespace pare::runtime
