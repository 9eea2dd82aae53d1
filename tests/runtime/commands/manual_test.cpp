#include "runtime/commands/manual.h"

#include <gtest/gtest.h>

#include "runtime/commands/completions.h"

namespace pare {
using namespace runtime;
namespace {

// Returns a program whose texts contain the special characters of roff and of shells.
Program program() {
  const Command command = {
      .name = "work",
      .summary = ".starts with a dot",
      .positionals = {{"PLACE:HERE", "'quoted' first"}},
      .options = {{.name = "mode",
                   .kind = OptionKind::text,
                   .value_name = "NAME",
                   .default_value = "fast",
                   .help = R"(it's [one]: of "two" $HOME `x` \n)",
                   .choices = {"fast", "slow"}},
                  {.name = "count", .kind = OptionKind::integer, .value_name = "N", .help = "how often"}},
      .run = [](const Arguments&, Console&) {}};
  return {.name = "sam-ple", .summary = "Makes samples.", .commands = {command}};
}

TEST(ManualPage, SaysWhatTheTableSays) {
  const std::string page = manual_page(program());
  EXPECT_TRUE(page.starts_with(".TH SAM\\-PLE 1 "));
  EXPECT_NE(page.find("\nsam\\-ple \\- makes samples\n"), std::string::npos);
  EXPECT_NE(page.find("\n.SS work PLACE:HERE [options]\n\\&.starts with a dot\n"), std::string::npos);
  EXPECT_NE(page.find("\n\\fIPLACE:HERE\\fR\n\\&'quoted' first\n"), std::string::npos);
  EXPECT_NE(page.find("\n.TP\n\\fB\\-\\-mode\\fR \\fINAME\\fR\nfast or slow: it's [one]: of \"two\" $HOME `x` "
                      "\\en (default: fast)\n"),
            std::string::npos);
  for (const char* option : {"json", "quiet", "help", "version", "generate"}) {
    EXPECT_NE(page.find("\n\\fB\\-\\-" + std::string(option)), std::string::npos) << option;
  }
  EXPECT_NE(page.find("\n.B 130\ninterrupted\n"), std::string::npos);
  EXPECT_NE(page.find("\n.B PARE_ISA\n"), std::string::npos);
}

TEST(Completions, QuoteWhatMeansSomethingToTheShell) {
  EXPECT_NE(bash_completions(program()).find("work:--mode) COMPREPLY=($(compgen -W 'fast slow' -- \"$current\")); "),
            std::string::npos);
  EXPECT_NE(bash_completions(program()).find("complete -F _sam_ple sam-ple\n"), std::string::npos);
  const std::string zsh = zsh_completions(program());
  EXPECT_NE(
      zsh.find(
          R"('--mode=[fast or slow\: it'\''s \[one\]\: of "two" $HOME `x` \\n (default\: fast)]:NAME:(fast slow)')"),
      std::string::npos);
  EXPECT_NE(zsh.find("'1:PLACE\\:HERE:_files'"), std::string::npos);
  EXPECT_NE(fish_completions(program()).find(
                "-l mode -x -a 'fast slow' -d 'fast or slow: it\\'s [one]: of \"two\" $HOME `x` \\\\n"),
            std::string::npos);
}

// Shells complete PLACE by names of files, PASS by its words, and the value of --say, which is a text, by nothing.
TEST(Completions, NamesOfFilesOnlyWhereOneIsTaken) {
  Program sample = program();
  Command& work = sample.commands.front();
  work.options.push_back({.name = "say", .kind = OptionKind::text, .value_name = "TEXT", .is_path = false});
  Command explain = work;
  explain.name = "explain";
  explain.positionals = {{.name = "PASS", .help = "what to explain", .optional = true, .words = {"gptq", "rtn"}}};
  sample.commands.push_back(explain);

  const std::string zsh = zsh_completions(sample);
  EXPECT_NE(zsh.find("'1::PASS:(gptq rtn)' ;;"), std::string::npos);
  EXPECT_NE(zsh.find("'1:PLACE\\:HERE:_files' ;;"), std::string::npos);
  EXPECT_NE(zsh.find("'--say=[]:TEXT: '"), std::string::npos);

  const std::string bash = bash_completions(sample);
  EXPECT_NE(bash.find("      explain) COMPREPLY=($(compgen -W 'gptq rtn' -- \"$current\")) ;;\n"
                      "      *) compopt -o default 2>/dev/null ;;\n"),
            std::string::npos);
  EXPECT_NE(bash.find("    work:--say) return ;;\n"), std::string::npos);

  const std::string fish = fish_completions(sample);
  EXPECT_NE(fish.find("-n '__fish_seen_subcommand_from explain' -f -a 'gptq rtn'\n"), std::string::npos);
  EXPECT_EQ(fish.find("-n '__fish_seen_subcommand_from work' -f -a"), std::string::npos);
  EXPECT_NE(fish.find("-n '__fish_seen_subcommand_from work' -l say -x -d ''\n"), std::string::npos);
}

}  // namespace
}  // namespace pare
