// `generate`: continues a prompt, or all prompts of a file.
#pragma once

#include "runtime/commands/command_line.h"

namespace pare::runtime {

Command generate_command();

}  // namespace pare::runtime
