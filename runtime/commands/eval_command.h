// The command eval: perplexity of a decoder, embeddings of an encoder, answers to instructions.
#pragma once

#include "runtime/commands/command_line.h"

namespace pare {

Command eval_command();

}  // namespace pare
