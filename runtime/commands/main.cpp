// pare-runtime: runs and measures models on this machine, without LibTorch.
#include "runtime/commands/command_line.h"
#include "runtime/commands/commands.h"
#include "runtime/commands/version_report.h"

int main(int argc, char** argv) {
  const pare::runtime::Program program = {
      .name = "pare-runtime",
      .summary = "Runs, measures and checks compressed language models (Hugging Face directories) on the CPU.",
      .commands = pare::runtime::runtime_commands(),
      .sources = pare::runtime::source_state()};
  return pare::runtime::run_program(program, argc, argv);
}
