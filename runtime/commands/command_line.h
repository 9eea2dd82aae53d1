// The command line of both programs: a table of commands is parsed, explained (--help) and run from the same entries,
// so that help and behaviour cannot drift apart.
//
// Exit status: 0 done, 1 failed, 2 wrong usage (unknown command or option, missing or malformed value), 130
// interrupted. Results go to standard output, also those of a run that ends a long work; everything else goes to
// standard error, with --quiet failures alone. With --json standard output holds exactly one JSON object when the
// command succeeds and nothing when it fails. A write that standard output does not take is a failure. A pipe without a
// reader ends the process by SIGPIPE, after its unfinished files are removed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <ostream>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/commands/standard_output.h"
#include "runtime/commands/version_report.h"
#include "runtime/system/byte_count.h"
#include "runtime/system/progress.h"

namespace pare::runtime {

// The command line is wrong, before anything was tried.
class WrongUsage : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

enum class OptionKind {
  flag,  // takes no value
  text,
  integer,
  number,
  bytes  // "700MiB", "8GiB", "1500MB", "123456"
};

struct OptionSpec {
  std::string name;  // without the dashes
  OptionKind kind = OptionKind::flag;
  std::string value_name = {};     // "FILE", "N"; empty for flags
  std::string default_value = {};  // as it would be typed; empty: not given
  std::string help = {};
  bool required = false;
  bool may_be_empty = false;              // a text
  std::vector<std::string> choices = {};  // of a text; empty: any
  bool is_path = true;                    // of a text without choices: shells complete it by names of files
  // The range of a number, which is finite in any case.
  std::optional<double> minimum = {};
  bool above_minimum = false;  // the minimum itself is not accepted
  std::optional<double> maximum = {};
};

// The largest --threads of every command: more than machines have, and fewer than a system refuses.
inline constexpr double kMaxThreads = 4096;

struct PositionalSpec {
  std::string name;  // "MODEL"
  std::string help;
  bool optional = false;                // and so are those after it
  std::vector<std::string> words = {};  // what shells complete it by; empty: names of files
  bool repeated = false;                // the last one: any number of words may follow
  // As in a line of usage: "DIR", "[PASS]", "DIR...".
  std::string shown() const { return optional ? "[" + name + "]" : repeated ? name + "..." : name; }
};

// The words of one command, checked against its specification; names that it does not have are a fault of the program
// (std::logic_error).
class Arguments {
 public:
  const std::string& positional(size_t index) const { return positionals_.at(index); }
  size_t num_positionals() const { return positionals_.size(); }
  bool given(const std::string& name) const;  // typed, or has a default
  bool flag(const std::string& name) const { return given(name); }
  const std::string& text(const std::string& name) const;
  int64_t integer(const std::string& name) const;
  double number(const std::string& name) const;
  int64_t bytes(const std::string& name) const;

 private:
  friend class ArgumentParser;
  std::vector<std::string> positionals_;
  std::map<std::string, std::string> values_;
};

// The streams and the progress that a command writes to.
class Console {
 public:
  Console(bool json, bool quiet, DescriptorBuffer& out, std::ostream& err);

  Progress& progress() { return progress_; }
  // Text for people: to standard output; to standard error with --json; nowhere with --json --quiet. Control characters
  // are shown (visible_text.h). Throws OutputFailed.
  std::ostream& report() { return report_; }
  // The same for what a model writes: only a terminal gets its control characters shown, a file has them as they are.
  std::ostream& model_text() { return model_text_; }
  // The JSON object that --json prints when the command is done.
  void set_result(std::string json_object) { result_ = std::move(json_object); }
  const std::string& result() const { return result_; }
  // The command is done, and what it examined is not in order: the exit status is 1.
  void set_ill() { is_ill_ = true; }
  bool is_ill() const { return is_ill_; }

 private:
  SilentBuffer silent_;
  std::streambuf& target_;
  VisibleBuffer visible_;
  std::ostream report_, model_text_;
  Progress progress_;
  std::string result_;
  bool is_ill_ = false;
};

struct Command {
  std::string name;
  std::string summary;  // one line
  std::vector<PositionalSpec> positionals;
  std::vector<OptionSpec> options;  // --json, --quiet and --help are added to every command
  std::function<void(const Arguments&, Console&)> run;
};

struct Program {
  std::string name;
  std::string summary;
  std::vector<Command> commands;
  SourceState sources = {};        // the commit that it was built from
  std::string_view libtorch = {};  // the version of LibTorch that it works with; empty: none
};

// Throws WrongUsage, which says what is wrong, the nearest right name and how to get help.
Arguments parse_arguments(const Program& program, const Command& command, std::span<const std::string> words);

std::string program_help(const Program& program);
std::string command_help(const Program& program, const Command& command);

// The tables that help, manual page (manual.h) and completions (completions.h) are made of. Options of one command are
// its own and then those of every command; options of the program stand in place of a command.
const std::vector<OptionSpec>& options_of_every_command();
std::vector<OptionSpec> all_options(const Command& command);
const std::vector<OptionSpec>& program_options();
const std::vector<std::pair<int, std::string>>& exit_statuses();
// The line of help on an option: its text, its choices, its default, and a word if it must be given.
std::string option_help(const OptionSpec& option);

// The whole of main(): installs the interrupt handler, checks the CPU, finds and runs the command, reports errors.
// Returns the exit status.
int run_program(const Program& program, int argc, const char* const* argv);

}  // namespace pare::runtime
