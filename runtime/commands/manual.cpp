#include "runtime/commands/manual.h"

#include <algorithm>
#include <cctype>
#include <sstream>
#include <string_view>
#include <utility>

#include "runtime/system/isa.h"
#include "runtime/system/version.h"

namespace pare::runtime {
namespace {

// Returns "avx2, avx512 or vnni", say.
std::string names_of_isas() {
  std::string names;
  for (const Isa isa : kIsas) {
    if (!names.empty()) names += isa == kIsas.back() ? " or " : ", ";
    names += isa_name(isa);
  }
  return names;
}

// The environment variables that both programs read, themselves or through OpenMP.
const std::vector<std::pair<std::string, std::string>>& environment_variables() {
  static const std::vector<std::pair<std::string, std::string>> variables = {
      {kIsaVariable, "the widest instruction set that kernels may use: " + names_of_isas()},
      {"OMP_NUM_THREADS", "the number of threads where --threads is not given"},
      {"OMP_WAIT_POLICY", "how threads wait for one another; without it and GOMP_SPINCOUNT the program decides"},
      {"GOMP_SPINCOUNT", "how often a waiting thread looks before it sleeps"},
      {"TMPDIR", "the folder for temporary files (default: /tmp)"}};
  return variables;
}

// Escapes a text for roff: it has no escapes of its own, dashes that can be copied, and no line that is taken for a
// request.
std::string roff(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      escaped += "\\-";
    } else {
      escaped += c;
    }
  }
  const bool is_request = escaped.starts_with('.') || escaped.starts_with('\'');
  return (is_request ? "\\&" : "") + escaped;
}

std::string capitals(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

// Returns "Compresses checkpoints." in the form that follows the program's name in the section NAME.
std::string name_line(std::string summary) {
  if (!summary.empty()) summary[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(summary[0])));
  if (summary.ends_with('.')) summary.pop_back();
  return summary;
}

void append_option_entry(std::ostringstream& page, const OptionSpec& option) {
  page << ".TP\n\\fB" << roff("--" + option.name) << "\\fR";
  if (!option.value_name.empty()) page << " \\fI" << roff(option.value_name) << "\\fR";
  page << '\n' << roff(option_help(option)) << '\n';
}

void append_command(std::ostringstream& page, const Command& command) {
  page << ".SS " << roff(command.name);
  for (const PositionalSpec& positional : command.positionals) {
    page << ' ' << roff(positional.shown());
  }
  page << " [options]\n" << roff(command.summary) << '\n';
  for (const PositionalSpec& positional : command.positionals) {
    page << ".TP\n\\fI" << roff(positional.name) << "\\fR\n" << roff(positional.help) << '\n';
  }
  for (const OptionSpec& option : command.options) append_option_entry(page, option);
}

}  // namespace

std::string manual_page(const Program& program) {
  std::ostringstream page;
  page << ".TH " << roff(capitals(program.name)) << " 1 \"\" \"" << roff(program.name) << ' '
       << roff(std::string(version())) << "\" \"User Commands\"\n.SH NAME\n"
       << roff(program.name) << " \\- " << roff(name_line(program.summary)) << "\n.SH SYNOPSIS\n.B "
       << roff(program.name) << "\n.I COMMAND\n[arguments] [options]\n.SH DESCRIPTION\n"
       << roff(program.summary) << "\n.SH COMMANDS\n";
  for (const Command& command : program.commands) append_command(page, command);
  page << ".SH OPTIONS OF EVERY COMMAND\n";
  for (const OptionSpec& option : options_of_every_command()) append_option_entry(page, option);
  page << ".SH OPTIONS WITHOUT A COMMAND\n";
  for (const OptionSpec& option : program_options()) append_option_entry(page, option);
  page << ".SH EXIT STATUS\n";
  for (const auto& [status, meaning] : exit_statuses()) {
    page << ".TP\n.B " << status << '\n' << roff(meaning) << '\n';
  }
  page << ".SH ENVIRONMENT\n";
  for (const auto& [name, meaning] : environment_variables()) {
    page << ".TP\n.B " << roff(name) << '\n' << roff(meaning) << '\n';
  }
  return page.str();
}

}  // namespace pare::runtime
