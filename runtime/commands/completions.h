// Completions of the command line for shells. They are made from the table of commands that also parses it: commands,
// the options of each, and the values of options with a fixed set. Where any other value or argument is asked for, they
// offer file names.
#pragma once

#include <string>

#include "runtime/commands/command_line.h"

namespace pare::runtime {

std::string bash_completions(const Program& program);  // a file to source, or for share/bash-completion/completions
std::string zsh_completions(const Program& program);   // a file of the function path, named _PROGRAM
std::string fish_completions(const Program& program);  // a file for share/fish/vendor_completions.d

}  // namespace pare::runtime
