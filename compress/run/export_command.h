// `pare export`: the command line of export_model.
#pragma once

#include "runtime/commands/command_line.h"

namespace pare::compress {

runtime::Command export_command();

}  // namespace pare::compress
