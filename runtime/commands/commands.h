// The commands that both programs have: import, eval, generate, tokenize, inspect, verify, doctor, bench.
#pragma once

#include <vector>

#include "runtime/commands/command_line.h"

namespace pare::runtime {

// Returns the commands in the order in which --help lists them. compress/main.cpp adds its own.
std::vector<Command> runtime_commands();

}  // namespace pare::runtime
