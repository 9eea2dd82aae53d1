#include "runtime/commands/completions.h"

#include <algorithm>
#include <sstream>
#include <string_view>

namespace pare::runtime {
namespace {

// Quotes for bash and zsh, in single quotes.
std::string in_single_quotes(std::string_view text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? "'\\''" : std::string(1, c);
  return result + "'";
}

// Quotes for fish, in single quotes, where a backslash escapes.
std::string fish_quoted(std::string_view text) {
  std::string result = "'";
  for (const char c : text) result += (c == '\'' || c == '\\' ? "\\" : "") + std::string(1, c);
  return result + "'";
}

// Escapes a part of a specification of zsh's _arguments and _describe, which give meaning to these characters.
std::string zsh_part(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const bool has_meaning = c == ':' || c == '[' || c == ']' || c == '\\';
    result += (has_meaning ? "\\" : "") + std::string(1, c);
  }
  return result;
}

std::string words_of(const std::vector<OptionSpec>& options) {
  std::string words;
  for (const OptionSpec& option : options) words += (words.empty() ? "--" : " --") + option.name;
  return words;
}

std::string words_of(const std::vector<std::string>& choices) {
  std::string words;
  for (const std::string& choice : choices) words += (words.empty() ? "" : " ") + choice;
  return words;
}

std::string command_words(const Program& program) {
  std::string words;
  for (const Command& command : program.commands) words += (words.empty() ? "" : " ") + command.name;
  return words;
}

// Returns a name for functions of shells, some of which allow no dash.
std::string function_name(const Program& program) {
  std::string name = "_" + program.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// True for an option whose value is the name of a file or folder.
bool takes_a_path(const OptionSpec& option) {
  return option.kind == OptionKind::text && option.choices.empty() && option.is_path;
}

// Returns the words of all positionals of a command.
std::vector<std::string> positional_words(const Command& command) {
  std::vector<std::string> words;
  for (const PositionalSpec& positional : command.positionals) {
    words.insert(words.end(), positional.words.begin(), positional.words.end());
  }
  return words;
}

// True for a command that takes words and no names of files.
bool takes_only_words(const Command& command) {
  return !command.positionals.empty() &&
         std::none_of(command.positionals.begin(), command.positionals.end(),
                      [](const PositionalSpec& positional) { return positional.words.empty(); });
}

// Writes a case like "run:--out": the command, and the word before the one to complete.
void append_bash_values(std::ostringstream& script, const std::string& command, const OptionSpec& option) {
  if (option.kind == OptionKind::flag) return;
  script << "    " << command << ":--" << option.name << ") ";
  if (!option.choices.empty()) {
    script << "COMPREPLY=($(compgen -W " << in_single_quotes(words_of(option.choices)) << " -- \"$current\")); ";
  } else if (takes_a_path(option)) {
    script << "compopt -o default 2>/dev/null; ";
  }
  script << "return ;;\n";
}

std::string zsh_option(const OptionSpec& option) {
  std::string spec = "--" + option.name;
  if (option.kind != OptionKind::flag) spec += "=";
  spec += "[" + zsh_part(option_help(option)) + "]";
  if (option.kind == OptionKind::flag) return spec;
  spec += ":" + zsh_part(option.value_name) + ":";
  if (!option.choices.empty()) return spec + "(" + words_of(option.choices) + ")";
  return spec + (takes_a_path(option) ? "_files" : " ");
}

std::string zsh_positional(const PositionalSpec& positional, size_t number) {
  const std::string values = positional.words.empty() ? "_files" : "(" + words_of(positional.words) + ")";
  const std::string place = positional.repeated ? "*" : std::to_string(number);
  return place + (positional.optional ? "::" : ":") + zsh_part(positional.name) + ":" + values;
}

}  // namespace

std::string bash_completions(const Program& program) {
  const std::string function = function_name(program);
  std::ostringstream script;
  script << "# Completions of " << program.name << " for bash.\n"
         << function << "() {\n"
         << "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}\n"
         << "  COMPREPLY=()\n"
         << "  # bash cuts --option=value at the sign.\n"
         << "  if [[ $current == = ]]; then\n"
         << "    current=\n"
         << "  elif [[ $previous == = ]]; then\n"
         << "    previous=${COMP_WORDS[COMP_CWORD-2]}\n"
         << "  fi\n"
         << "  case $COMP_CWORD:$previous in\n";
  for (const OptionSpec& option : program_options()) {
    if (option.choices.empty()) continue;
    script << "    2:--" << option.name << ") COMPREPLY=($(compgen -W " << in_single_quotes(words_of(option.choices))
           << " -- \"$current\")); return ;;\n";
  }
  script << "    1:*) COMPREPLY=($(compgen -W "
         << in_single_quotes(command_words(program) + " " + words_of(program_options()))
         << " -- \"$current\")); return ;;\n"
         << "  esac\n"
         << "  case ${COMP_WORDS[1]}:$previous in\n";
  for (const Command& command : program.commands) {
    for (const OptionSpec& option : all_options(command)) append_bash_values(script, command.name, option);
  }
  script << "  esac\n"
         << "  if [[ $current != -* ]]; then\n"
         << "    case ${COMP_WORDS[1]} in\n";
  for (const Command& command : program.commands) {
    if (!takes_only_words(command)) continue;
    script << "      " << command.name << ") COMPREPLY=($(compgen -W "
           << in_single_quotes(words_of(positional_words(command))) << " -- \"$current\")) ;;\n";
  }
  script << "      *) compopt -o default 2>/dev/null ;;\n"
         << "    esac\n"
         << "    return\n"
         << "  fi\n"
         << "  case ${COMP_WORDS[1]} in\n";
  for (const Command& command : program.commands) {
    script << "    " << command.name << ") COMPREPLY=($(compgen -W " << in_single_quotes(words_of(all_options(command)))
           << " -- \"$current\")) ;;\n";
  }
  script << "  esac\n}\ncomplete -F " << function << ' ' << program.name << '\n';
  return script.str();
}

std::string zsh_completions(const Program& program) {
  const std::string function = function_name(program);
  std::ostringstream script;
  script << "#compdef " << program.name << "\n# Completions of " << program.name << " for zsh.\n"
         << function << "() {\n"
         << "  local curcontext=$curcontext state line\n"
         << "  local -a commands\n"
         << "  commands=(\n";
  for (const Command& command : program.commands) {
    script << "    " << in_single_quotes(zsh_part(command.name) + ":" + zsh_part(command.summary)) << '\n';
  }
  script << "  )\n  _arguments -C";
  for (const OptionSpec& option : program_options()) {
    script << " \\\n    " << in_single_quotes("(- *)" + zsh_option(option));
  }
  script << " \\\n    '1:command:->command' '*::argument:->arguments'\n"
         << "  case $state in\n"
         << "    command) _describe -t commands command commands ;;\n"
         << "    arguments)\n"
         << "      case $words[1] in\n";
  for (const Command& command : program.commands) {
    script << "        " << command.name << ")\n          _arguments";
    for (const OptionSpec& option : all_options(command))
      script << " \\\n            " << in_single_quotes(zsh_option(option));
    for (size_t i = 0; i < command.positionals.size(); ++i) {
      script << " \\\n            " << in_single_quotes(zsh_positional(command.positionals[i], i + 1));
    }
    script << " ;;\n";
  }
  script << "      esac ;;\n  esac\n}\n" << function << " \"$@\"\n";
  return script.str();
}

std::string fish_completions(const Program& program) {
  std::ostringstream script;
  script << "# Completions of " << program.name << " for fish.\n";
  const auto append_option = [&](const std::string& when, const OptionSpec& option) {
    script << "complete -c " << program.name << " -n " << fish_quoted(when) << " -l " << option.name;
    if (!option.choices.empty()) {
      script << " -x -a " << fish_quoted(words_of(option.choices));
    } else if (takes_a_path(option)) {
      script << " -r";
    } else if (option.kind != OptionKind::flag) {
      script << " -x";
    }
    script << " -d " << fish_quoted(option_help(option)) << '\n';
  };
  for (const Command& command : program.commands) {
    script << "complete -c " << program.name << " -n __fish_use_subcommand -f -a " << command.name << " -d "
           << fish_quoted(command.summary) << '\n';
  }
  for (const OptionSpec& option : program_options()) append_option("__fish_use_subcommand", option);
  for (const Command& command : program.commands) {
    for (const OptionSpec& option : all_options(command)) {
      append_option("__fish_seen_subcommand_from " + command.name, option);
    }
    if (!takes_only_words(command)) continue;
    script << "complete -c " << program.name << " -n " << fish_quoted("__fish_seen_subcommand_from " + command.name)
           << " -f -a " << fish_quoted(words_of(positional_words(command))) << '\n';
  }
  return script.str();
}

}  // namespace pare::runtime
