#include "runtime/commands/command_line.h"

#include <cxxabi.h>
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <cxxopts.hpp>
#include <exception>
#include <filesystem>
#include <iostream>
#include <limits>
#include <sstream>
#include <system_error>
#include <typeinfo>

#include "runtime/commands/completions.h"
#include "runtime/commands/manual.h"
#include "runtime/engine/backend.h"
#include "runtime/import/model_directory.h"
#include "runtime/machine/limits.h"
#include "runtime/machine/thread_waiting.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/mapped_file.h"
#include "runtime/system/nearest_name.h"
#include "runtime/system/version.h"

namespace pare::runtime {
namespace {

constexpr int kDone = 0, kFailed = 1, kWrongUsage = 2, kInterrupted = 130;
constexpr const char* kOutOfMemory = "out of memory: use a smaller model or context, or a machine with more memory";
constexpr const char* kInternalFault =
    "this should not happen: a file has an unexpected form, or the program has a fault. Check the model with the "
    "command verify. Report the fault with the command line, the model's config.json and what follows";
constexpr size_t kHelpColumn = 28;
constexpr size_t kHelpWidth = 100;

// The texts that --generate prints.
struct Generated {
  const char* name;
  std::string (*text)(const Program&);
};
constexpr Generated kGenerated[] = {{"man", manual_page},
                                    {"complete-bash", bash_completions},
                                    {"complete-zsh", zsh_completions},
                                    {"complete-fish", fish_completions}};

std::vector<std::string> generated_names() {
  std::vector<std::string> names;
  for (const Generated& generated : kGenerated) names.emplace_back(generated.name);
  return names;
}

template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string joined(std::span<const std::string> words, std::string_view separator) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : std::string(separator)) + word;
  return text;
}

// The values that an option accepts, for messages.
std::string expected_value(const OptionSpec& option) {
  if (!option.choices.empty()) return "one of " + joined(option.choices, ", ");
  switch (option.kind) {
    case OptionKind::flag:
      return "no value";
    case OptionKind::text:
      return option.may_be_empty ? "a text" : "a text that is not empty";
    case OptionKind::integer:
    case OptionKind::number:
      break;
    case OptionKind::bytes:
      return "a size such as 700MiB or 8GiB";
  }
  const bool is_integer = option.kind == OptionKind::integer;
  std::string text = is_integer ? "a whole number" : "a number";
  const auto bound = [&](double value) { return format_number(value, value == std::floor(value) ? 0 : 2); };
  if (option.minimum) text += (option.above_minimum ? " above " : " of at least ") + bound(*option.minimum);
  if (option.maximum) text += (option.minimum ? " and at most " : " of at most ") + bound(*option.maximum);
  return text;
}

bool accepts(const OptionSpec& option, const std::string& value) {
  const auto in_range = [&](auto number) {
    if (!number) return false;
    const auto found = static_cast<double>(*number);
    if (!std::isfinite(found) || (option.maximum && found > *option.maximum)) return false;
    return !option.minimum || (option.above_minimum ? found > *option.minimum : found >= *option.minimum);
  };
  switch (option.kind) {
    case OptionKind::flag:
      return true;
    case OptionKind::text:
      if (option.choices.empty()) return option.may_be_empty || !value.empty();
      return std::find(option.choices.begin(), option.choices.end(), value) != option.choices.end();
    case OptionKind::integer:
      return in_range(parse_number<int64_t>(value));
    case OptionKind::number:
      return in_range(parse_number<double>(value));
    case OptionKind::bytes:
      return parse_bytes(value).has_value();
  }
  return false;
}

std::string usage_line(const Program& program, const Command& command) {
  std::string line = "Usage: " + program.name + " " + command.name;
  for (const PositionalSpec& positional : command.positionals) {
    line += " " + positional.shown();
  }
  for (const OptionSpec& option : command.options) {
    if (option.required) line += " --" + option.name + " " + option.value_name;
  }
  return line + " [options]";
}

std::string get_help(const Program& program, const Command& command) {
  return "; see " + program.name + " " + command.name + " --help";
}

// "  left      right, wrapped at kHelpWidth"
void append_entry(std::ostringstream& help, const std::string& left, const std::string& right) {
  std::string line = "  " + left;
  line.resize(std::max(line.size() + 2, kHelpColumn), ' ');
  std::istringstream words(right);
  bool line_is_empty = true;
  for (std::string word; words >> word; line_is_empty = false) {
    if (!line_is_empty && line.size() + 1 + word.size() > kHelpWidth) {
      help << line << '\n';
      line.assign(kHelpColumn, ' ');
      line_is_empty = true;
    }
    line += (line_is_empty ? "" : " ") + word;
  }
  help << line << '\n';
}

void append_option(std::ostringstream& help, const OptionSpec& option) {
  append_entry(help, "--" + option.name + (option.value_name.empty() ? "" : " " + option.value_name),
               option_help(option));
}

std::vector<std::string> names_of(const auto& entries) {
  std::vector<std::string> names;
  names.reserve(entries.size());
  for (const auto& entry : entries) names.push_back(entry.name);
  return names;
}

}  // namespace

const std::vector<OptionSpec>& options_of_every_command() {
  static const std::vector<OptionSpec> options = {
      {.name = "json", .help = "print one JSON object on standard output and nothing else there"},
      {.name = "quiet", .help = "no progress on standard error"},
      {.name = "help", .help = "print this help and stop"},
  };
  return options;
}

std::vector<OptionSpec> all_options(const Command& command) {
  std::vector<OptionSpec> options = command.options;
  const std::vector<OptionSpec>& shared = options_of_every_command();
  options.insert(options.end(), shared.begin(), shared.end());
  return options;
}

const std::vector<OptionSpec>& program_options() {
  static const std::vector<OptionSpec> options = {
      {.name = "help", .help = "print this help and stop; with a command, print the help of that command"},
      {.name = "version",
       .help = "print the version and stop; with --json also the commit, instruction set, LibTorch, CUDA and compiler"},
      {.name = "generate",
       .kind = OptionKind::text,
       .value_name = "WHAT",
       .help = "print the manual page or the completions of a shell, and stop",
       .choices = generated_names()},
  };
  return options;
}

const std::vector<std::pair<int, std::string>>& exit_statuses() {
  static const std::vector<std::pair<int, std::string>> statuses = {
      {kDone, "done"}, {kFailed, "failed"}, {kWrongUsage, "wrong usage"}, {kInterrupted, "interrupted"}};
  return statuses;
}

std::string option_help(const OptionSpec& option) {
  std::string text = option.choices.empty() ? "" : joined(option.choices, " or ") + ": ";
  text += option.help;
  if (option.required) text += " (required)";
  if (!option.default_value.empty()) text += " (default: " + option.default_value + ")";
  return text;
}

// Runs cxxopts over the words and keeps checked texts.
class ArgumentParser {
 public:
  ArgumentParser(const Program& program, const Command& command)
      : program_(program), command_(command), options_(all_options(command)) {}

  Arguments parse(std::span<const std::string> words) const {
    const cxxopts::ParseResult parsed = run_cxxopts(words);
    Arguments arguments;
    if (parsed.count("help") > 0) {  // whatever else is missing or wrong
      arguments.values_["help"] = "";
      return arguments;
    }
    for (const OptionSpec& option : options_) {
      if (parsed.count(option.name) > 0) {
        arguments.values_[option.name] = value_of(parsed, option);
      } else if (!option.default_value.empty()) {
        arguments.values_[option.name] = option.default_value;
      } else if (option.required) {
        throw WrongUsage("option --" + option.name + " " + option.value_name + " is missing" +
                         get_help(program_, command_));
      }
    }
    arguments.positionals_ = parsed.unmatched();
    check_positionals(arguments.positionals_);
    return arguments;
  }

 private:
  cxxopts::ParseResult run_cxxopts(std::span<const std::string> words) const {
    cxxopts::Options parser(program_.name);
    for (const OptionSpec& option : options_) {
      if (option.kind == OptionKind::flag) {
        parser.add_options()(option.name, "", cxxopts::value<bool>());
      } else {
        parser.add_options()(option.name, "", cxxopts::value<std::string>());
      }
    }
    std::vector<const char*> argv = {program_.name.c_str()};
    for (const std::string& word : words) argv.push_back(word.c_str());
    try {
      return parser.parse(static_cast<int>(argv.size()), argv.data());
    } catch (const cxxopts::exceptions::no_such_option& error) {
      const std::string name = quoted(error.what());
      throw WrongUsage("unknown option --" + name + did_you_mean(name, names_of(options_), "--") +
                       get_help(program_, command_));
    } catch (const cxxopts::exceptions::missing_argument& error) {
      throw WrongUsage("option --" + quoted(error.what()) + " needs a value" + get_help(program_, command_));
    } catch (const cxxopts::exceptions::exception& error) {
      throw WrongUsage(error.what() + get_help(program_, command_));
    }
  }

  // cxxopts' exceptions carry the name only inside their message.
  static std::string quoted(const std::string& message) {
    const size_t begin = message.find(cxxopts::LQUOTE) + cxxopts::LQUOTE.size();
    return message.substr(begin, message.find(cxxopts::RQUOTE) - begin);
  }

  std::string value_of(const cxxopts::ParseResult& parsed, const OptionSpec& option) const {
    if (option.kind == OptionKind::flag) return "";
    std::string value = parsed[option.name].as<std::string>();
    if (!accepts(option, value)) {
      throw WrongUsage("option --" + option.name + ": expected " + expected_value(option) + ", found '" + value + "'" +
                       did_you_mean(value, option.choices) + get_help(program_, command_));
    }
    return value;
  }

  void check_positionals(std::span<const std::string> found) const {
    const size_t num_expected = command_.positionals.size();
    for (size_t i = 0; i < std::min(found.size(), num_expected); ++i) {
      if (!found[i].empty()) continue;
      throw WrongUsage("argument " + command_.positionals[i].name + " is empty" + get_help(program_, command_));
    }
    if (found.size() < num_expected && !command_.positionals[found.size()].optional) {
      throw WrongUsage("argument " + command_.positionals[found.size()].name + " is missing" +
                       get_help(program_, command_));
    }
    if (found.size() > num_expected && !(num_expected > 0 && command_.positionals.back().repeated)) {
      throw WrongUsage("unexpected argument '" + found[num_expected] + "'" + get_help(program_, command_));
    }
  }

  const Program& program_;
  const Command& command_;
  std::vector<OptionSpec> options_;
};

bool Arguments::given(const std::string& name) const {
  return values_.contains(name);
}

const std::string& Arguments::text(const std::string& name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) throw std::logic_error("option --" + name + " was read but not given and has no default");
  return found->second;
}

int64_t Arguments::integer(const std::string& name) const {
  return parse_number<int64_t>(text(name)).value();
}
double Arguments::number(const std::string& name) const {
  return parse_number<double>(text(name)).value();
}
int64_t Arguments::bytes(const std::string& name) const {
  return parse_bytes(text(name)).value();
}

Console::Console(bool json, bool quiet, DescriptorBuffer& out, std::ostream& err)
    : target_(!json   ? static_cast<std::streambuf&>(out)
              : quiet ? static_cast<std::streambuf&>(silent_)
                      : *err.rdbuf()),
      visible_(target_),
      report_(&visible_),
      model_text_(json || out.is_terminal() ? static_cast<std::streambuf*>(&visible_) : &target_),
      progress_(progress_style(quiet), err, &report_,
                json                ? STDERR_FILENO
                : out.is_terminal() ? STDOUT_FILENO
                                    : -1) {
  // Lets exceptions of the buffers pass through.
  if (json) return;  // standard error may be lost
  report_.exceptions(std::ios::badbit);
  model_text_.exceptions(std::ios::badbit);
}

Arguments parse_arguments(const Program& program, const Command& command, std::span<const std::string> words) {
  return ArgumentParser(program, command).parse(words);
}

std::string program_help(const Program& program) {
  std::ostringstream help;
  help << "Usage: " << program.name << " COMMAND [arguments] [options]\n\n" << program.summary << "\n\nCommands:\n";
  for (const Command& command : program.commands) append_entry(help, command.name, command.summary);
  help << "\nOptions:\n";
  for (const OptionSpec& option : program_options()) append_option(help, option);
  std::string statuses;
  for (const auto& [status, meaning] : exit_statuses()) {
    statuses += (statuses.empty() ? "" : ", ") + std::to_string(status) + " " + meaning;
  }
  help << "\nExit status: " << statuses << ".\n";
  return help.str();
}

std::string command_help(const Program& program, const Command& command) {
  std::ostringstream help;
  help << usage_line(program, command) << "\n\n" << command.summary << '\n';
  if (!command.positionals.empty()) help << "\nArguments:\n";
  for (const PositionalSpec& positional : command.positionals) append_entry(help, positional.name, positional.help);
  help << "\nOptions:\n";
  for (const OptionSpec& option : all_options(command)) append_option(help, option);
  return help.str();
}

namespace {

const Command& find_command(const Program& program, const std::string& name) {
  for (const Command& command : program.commands) {
    if (command.name == name) return command;
  }
  const bool is_option = name.starts_with("-");
  throw WrongUsage((is_option ? "unknown option " : "unknown command '") + name + (is_option ? "" : "'") +
                   did_you_mean(name, names_of(program.commands)) + "; see " + program.name + " --help");
}

// `word` is --generate or --generate=WHAT, `words` what comes after it.
void print_generated(const Program& program, const std::string& word, std::span<const std::string> words,
                     std::ostream& out) {
  const size_t equals = word.find('=');
  const bool is_joined = equals != std::string::npos;
  if (!is_joined && words.empty()) {
    throw WrongUsage("option --generate needs a value; see " + program.name + " --help");
  }
  const std::string what = is_joined ? word.substr(equals + 1) : words.front();
  const std::span<const std::string> others = is_joined ? words : words.subspan(1);
  if (!others.empty()) {
    throw WrongUsage("unexpected argument '" + others[0] + "' after --generate " + what + "; see " + program.name +
                     " --help");
  }
  for (const Generated& generated : kGenerated) {
    if (what == generated.name) {
      out << generated.text(program);
      return;
    }
  }
  throw WrongUsage("option --generate: expected " + expected_value(program_options().back()) + ", found '" + what +
                   "'" + did_you_mean(what, program_options().back().choices) + "; see " + program.name + " --help");
}

int run_command(const Program& program, const Command& command, std::span<const std::string> words,
                DescriptorBuffer& standard_output, std::ostream& out) {
  const Arguments arguments = parse_arguments(program, command, words);
  if (arguments.flag("help")) {
    out << command_help(program, command);
    return kDone;
  }
  const bool json = arguments.flag("json");
  Console console(json, arguments.flag("quiet"), standard_output, std::cerr);
  omp_set_num_threads(default_num_threads());
  const ThreadWaiting waiting(arguments.given("threads") ? static_cast<int>(arguments.integer("threads"))
                                                         : omp_get_max_threads());
  command.run(arguments, console);
  console.progress().finish();
  if (json) out << visible(console.result(), "\\u00") << '\n';
  return console.is_ill() ? kFailed : kDone;
}

// `words` is what stands after --version.
void print_version(const Program& program, std::span<const std::string> words, std::ostream& out) {
  const bool json = !words.empty() && words.front() == "--json";
  if (words.size() > (json ? 1 : 0)) {
    throw WrongUsage("unexpected argument '" + words[json ? 1 : 0] + "' after --version; see " + program.name +
                     " --help");
  }
  if (json) {
    out << version_report(program.name, program.sources, program.libtorch) << '\n';
  } else {
    out << program.name << " " << version() << '\n';
  }
}

// Returns the exit status.
int run_words(const Program& program, std::span<const std::string> words, DescriptorBuffer& standard_output,
              std::ostream& out) {
  if (words.empty()) throw WrongUsage("a command is missing; see " + program.name + " --help");
  if (words[0] == "--help" || words[0] == "-h") {
    out << program_help(program);
  } else if (words[0] == "--version") {
    print_version(program, words.subspan(1), out);
  } else if (words[0] == "--generate" || words[0].starts_with("--generate=")) {
    print_generated(program, words[0], words.subspan(1), out);
  } else {
    return run_command(program, find_command(program, words[0]), words.subspan(1), standard_output, out);
  }
  return kDone;
}

int run_and_print(const Program& program, std::span<const std::string> words) {
  int status = kDone;
  DescriptorBuffer standard_output(STDOUT_FILENO);
  std::ostream out(&standard_output);
  out.exceptions(std::ios::badbit);
  try {
    status = run_words(program, words, standard_output, out);
  } catch (const OutputFailed&) {
    throw;
  } catch (...) {
    // Text that was said before the failure, which is the one to report.
    try {
      standard_output.finish();
    } catch (const OutputFailed&) {
    }
    throw;
  }
  standard_output.finish();
  return status;
}

// Ends the program after an exception that no handler catches: nlohmann-json's destructors need memory, for example.
std::string program_name;
[[noreturn]] void end_with_a_message() {
  const std::type_info* const type = abi::__cxa_current_exception_type();
  const bool is_memory = type != nullptr && *type == typeid(std::bad_alloc);
  for (const char* text : {program_name.c_str(), ": ", is_memory ? kOutOfMemory : kInternalFault, "\n"}) {
    if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) break;
  }
  if (is_memory) ::_exit(kFailed);
  std::abort();
}

// Explains, for people, exceptions that nobody threw with a message for them.
std::string message_of(const std::exception& error) {
  if (const auto* const file = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    const std::string second = file->path2().empty() ? "" : "' or '" + file->path2().string();
    return with_named_models("cannot use '" + file->path1().string() + second + "': " + file->code().message());
  }
  const bool is_ours = dynamic_cast<const std::runtime_error*>(&error) != nullptr ||
                       dynamic_cast<const std::invalid_argument*>(&error) != nullptr;
  return is_ours ? with_named_models(error.what()) : std::string(kInternalFault) + " (" + error.what() + ")";
}

}  // namespace

int run_program(const Program& program, int argc, const char* const* argv) {
  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  const auto report = [&](const std::string& message, int status) {
    std::cerr << program.name << ": " << message << std::endl;
    return status;
  };
  program_name = program.name;
  std::set_terminate(end_with_a_message);
  hold_standard_descriptors();
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond the limit (ulimit -f) is an error of the write
  const bool ends_without_readers = keep_running_without_readers();
  try {
    // PARE_ISA names a set that there is; check_processor.cpp checks what the program needs itself.
    detect_isa();
    install_interrupt_handler();
    install_mapped_file_handler(program.name);
    return run_and_print(program, words);
  } catch (const Interrupted& error) {
    return report(visible_line(error.what()), kInterrupted);
  } catch (const OutputFailed& error) {
    if (error.is_broken_pipe() && ends_without_readers) end_without_readers();
    return report(visible_line(error.what()), kFailed);
  } catch (const WrongUsage& error) {
    return report(visible_line(error.what()), kWrongUsage);
  } catch (const ErrorOfLines& error) {
    return report(with_named_models(error.what()), kFailed);
  } catch (const std::bad_alloc&) {
    return report(kOutOfMemory, kFailed);
  } catch (const std::system_error& error) {
    // The system's error where a thread's stack does not fit.
    const bool is_memory =
        error.code() == std::errc::resource_unavailable_try_again || error.code() == std::errc::not_enough_memory;
    return report(is_memory ? kOutOfMemory : visible_line(message_of(error)), kFailed);
  } catch (const std::exception& error) {
    return report(visible_line(message_of(error)), kFailed);
  }
}

}  // namespace pare::runtime
