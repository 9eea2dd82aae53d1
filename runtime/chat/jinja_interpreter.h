// Runs a template.
#pragma once

#include <string>

#include "runtime/chat/jinja_syntax.h"
#include "runtime/chat/jinja_value.h"

namespace pare::runtime {

// Returns what the template prints with these variables, as Jinja 3.1 prints it in the sandbox of transformers, whose
// functions raise_exception and strftime_now are there (of now, or of the environment's SOURCE_DATE_EPOCH in UTC, by
// which programs make the same output on another day). `where` is the template's name for messages. Throws JinjaError
// (where, line) if the template fails, refuses the chat (raise_exception), or takes more than a bounded number of steps
// or bytes.
std::string run_jinja(const JinjaStatements& statements, const JinjaDict& variables, const std::string& where);

}  // namespace pare::runtime
