// The manual page of a program. It is made from the table of commands that also parses and explains the command line,
// so that it names every option that there is and no other.
#pragma once

#include <string>

#include "runtime/commands/command_line.h"

namespace pare::runtime {

// Returns the page in roff with the macros of man(7), section 1: commands with their arguments and options, then what
// all commands share, exit status and environment.
std::string manual_page(const Program& program);

}  // namespace pare::runtime
