#include "runtime/commands/command_line.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <regex>

#include "runtime/commands/commands.h"
#include "runtime/evaluate/perplexity.h"
#include "runtime/evaluate/rouge_l.h"
#include "runtime/machine/limits.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/runtime/commands/pare_runtime.h"
#include "tests/runtime/system/tested_isas.h"

namespace pare {
using namespace runtime;
namespace {

// --- The parser, on a table of the test's own ---

Program sample_program() {
  Command command = {
      .name = "work",
      .summary = "Works.",
      .positionals = {{"PLACE", "where"}},
      .options = {{.name = "count", .kind = OptionKind::integer, .value_name = "N", .minimum = 1.0},
                  {.name = "rate", .kind = OptionKind::number, .value_name = "X", .default_value = "0.5"},
                  {.name = "share",
                   .kind = OptionKind::number,
                   .value_name = "X",
                   .minimum = 0.0,
                   .above_minimum = true,
                   .maximum = 1.0},
                  {.name = "mode", .kind = OptionKind::text, .value_name = "NAME", .choices = {"fast", "slow"}},
                  {.name = "memory", .kind = OptionKind::bytes, .value_name = "SIZE"},
                  {.name = "text", .kind = OptionKind::text, .value_name = "TEXT", .required = true},
                  {.name = "loud", .help = "be loud"}},
      .run = [](const Arguments&, Console&) {}};
  return {.name = "sample", .summary = "A sample.", .commands = {command}};
}

Arguments parse(const std::vector<std::string>& words) {
  static const Program program = sample_program();
  return parse_arguments(program, program.commands[0], words);
}

TEST(ParseArguments, AnOptionalPlaceMayBeLeftOut) {
  Program program = sample_program();
  Command& command = program.commands[0];
  command.positionals.push_back({.name = "OTHER", .help = "where else", .optional = true});
  const auto parsed = [&](const std::vector<std::string>& words) { return parse_arguments(program, command, words); };
  EXPECT_EQ(parsed({"here", "--text", "t"}).num_positionals(), 1u);
  EXPECT_EQ(parsed({"here", "--text", "t", "there"}).positional(1), "there");
  EXPECT_THROW(parsed({"--text", "t"}), WrongUsage);
  EXPECT_THROW(parsed({"here", "there", "elsewhere", "--text", "t"}), WrongUsage);
  EXPECT_NE(command_help(program, command).find("Usage: sample work PLACE [OTHER] --text TEXT"), std::string::npos);
}

TEST(ParseArguments, ReadsEveryKind) {
  const Arguments arguments =
      parse({"here", "--count", "7", "--text=a b", "--memory", "700MiB", "--loud", "--mode", "slow", "--json"});
  EXPECT_EQ(arguments.positional(0), "here");
  EXPECT_EQ(arguments.integer("count"), 7);
  EXPECT_EQ(arguments.number("rate"), 0.5);  // the default
  EXPECT_EQ(arguments.text("mode"), "slow");
  EXPECT_EQ(arguments.text("text"), "a b");
  EXPECT_EQ(arguments.bytes("memory"), 734003200);
  EXPECT_TRUE(arguments.flag("loud"));
  EXPECT_TRUE(arguments.flag("json"));
  EXPECT_FALSE(arguments.flag("quiet"));
  const Arguments fewer =
      parse({"--text", "--odd--", "--", "-here"});  // values may start with a dash, and positionals after --
  EXPECT_EQ(fewer.text("text"), "--odd--");
  EXPECT_EQ(fewer.positional(0), "-here");
  EXPECT_FALSE(fewer.given("count"));
  EXPECT_FALSE(fewer.flag("loud"));
  EXPECT_THROW(fewer.text("count"), std::logic_error);
}

TEST(ParseArguments, NamesWhatIsWrongAndTheNearestRightName) {
  const auto expect_wrong = [](const std::vector<std::string>& words, std::initializer_list<std::string> parts) {
    expect_error<WrongUsage>([&] { parse(words); }, parts);
  };
  expect_wrong({"here", "--text", "t", "--cuont", "3"}, {"--cuont", "'--count'", "sample work --help"});
  expect_wrong({"here", "--text", "t", "--zzz"}, {"unknown option --zzz"});
  expect_wrong({"here", "--text"}, {"--text", "needs a value"});
  expect_wrong({"here"}, {"--text TEXT", "missing"});
  expect_wrong({"--text", "t"}, {"PLACE", "missing"});
  expect_wrong({"here", "there", "--text", "t"}, {"unexpected", "'there'"});
  expect_wrong({"here", "--text", "t", "--count", "3x"}, {"--count", "whole number of at least 1", "'3x'"});
  expect_wrong({"here", "--text", "t", "--count", "0"}, {"at least 1", "'0'"});
  expect_wrong({"here", "--text", "t", "--count", "99999999999999999999"}, {"whole number"});
  expect_wrong({"here", "--text", "t", "--rate", "fast"}, {"--rate", "a number", "'fast'"});
  expect_wrong({"here", "--text", "t", "--rate", "inf"}, {"--rate", "a number", "'inf'"});
  expect_wrong({"here", "--text", "t", "--share", "0"}, {"a number above 0 and at most 1", "'0'"});
  expect_wrong({"here", "--text", "t", "--share", "1.5"}, {"at most 1", "'1.5'"});
  EXPECT_EQ(parse({"here", "--text", "t", "--share", "1"}).number("share"), 1.0);
  expect_wrong({"here", "--text", "t", "--mode", "fats"}, {"one of fast, slow", "did you mean 'fast'"});
  expect_wrong({"here", "--text", "t", "--memory", "8GiX"}, {"size such as", "'8GiX'"});
}

TEST(ParseArguments, HelpNeedsNothingElse) {
  EXPECT_TRUE(parse({"--help"}).flag("help"));
}

TEST(ParseBytes, KnowsUnits) {
  EXPECT_EQ(parse_bytes("123456"), 123456);
  EXPECT_EQ(parse_bytes("8GiB"), 8LL << 30);
  EXPECT_EQ(parse_bytes("1.5MB"), 1500000);
  EXPECT_EQ(parse_bytes("0.5KiB"), 512);
  for (const char* wrong : {"", "GiB", "-1", "1.2.3", "8 GiB", "8gib", "1e3", "9999999TiB", "nan"}) {
    EXPECT_EQ(parse_bytes(wrong), std::nullopt) << wrong;
  }
}

// --- The built program ---

TEST_F(PareRuntime, HelpListsEveryCommandAndOption) {
  const Outcome help = run("--help");
  EXPECT_EQ(help.status, 0);
  EXPECT_EQ(help.err, "");
  ASSERT_EQ(runtime_commands().size(), 8u);
  for (const Command& command : runtime_commands()) {
    EXPECT_NE(help.out.find("\n  " + command.name + " "), std::string::npos) << command.name;
    const Outcome command_help = run(command.name + " --help");
    EXPECT_EQ(command_help.status, 0);
    EXPECT_TRUE(command_help.out.starts_with("Usage: pare-runtime " + command.name + " "));
    for (const PositionalSpec& positional : command.positionals) {
      EXPECT_NE(command_help.out.find("\n  " + positional.name + " "), std::string::npos) << positional.name;
    }
    for (const OptionSpec& option : command.options) {
      EXPECT_NE(command_help.out.find("\n  --" + option.name + " "), std::string::npos) << option.name;
      EXPECT_FALSE(option.help.empty()) << option.name;
    }
    for (const char* option : {"--json", "--quiet", "--help"}) {
      EXPECT_NE(command_help.out.find(std::string("\n  ") + option + " "), std::string::npos) << option;
    }
  }
}

TEST_F(PareRuntime, VersionIsTheBuildSystems) {
  const std::string cmake = file_text(std::filesystem::path(kSourceFolder) / "CMakeLists.txt");
  std::smatch match;
  ASSERT_TRUE(std::regex_search(cmake, match, std::regex(R"(project\(pare VERSION ([0-9.]+))")));
  EXPECT_EQ(run("--version").out, "pare-runtime " + match[1].str() + "\n");
}

TEST_F(PareRuntime, GeneratesManualAndCompletions) {
  EXPECT_TRUE(run("--generate man").out.starts_with(".TH PARE\\-RUNTIME 1 "));
  EXPECT_EQ(run("--generate=man").out, run("--generate man").out);
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    const Outcome completions = run("--generate complete-" + shell);
    EXPECT_EQ(completions.status, 0);
    EXPECT_NE(completions.out.find("Completions of pare-runtime for " + shell), std::string::npos);
  }
  expect_failure("--generate", 2, {"--generate needs a value"});
  expect_failure("--generate complete-bsh", 2, {"one of man, complete-bash", "'complete-bsh'", "'complete-bash'"});
  expect_failure("--generate man x", 2, {"unexpected argument 'x'"});
  expect_failure("--generate=man x", 2, {"unexpected argument 'x'"});
}

TEST_F(PareRuntime, WrongUsageExitsWith2) {
  expect_failure("", 2, {"command is missing", "--help"});
  expect_failure("evl", 2, {"unknown command 'evl'", "'eval'"});
  expect_failure("--jsn", 2, {"unknown option --jsn"});
  expect_failure("eval", 2, {"MODEL", "missing"});
  expect_failure("eval m", 2, {"--text FILE", "--pairs FILE", "missing"});
  expect_failure("eval --text " + npy_, 2, {"MODEL"});
  expect_failure("eval m --text t --contxt 4", 2, {"--contxt", "'--context'"});
  expect_failure("eval m --text t --context four", 2, {"--context", "'four'"});
  expect_failure("eval m --text t --protocol lm-eval", 2, {"gptq, llama.cpp"});
  expect_failure("eval m --text t --isa sse2", 2, {names_of_isas()});
  expect_failure("generate m --prompt p --threads 0", 2, {"--threads", "at least 1"});
  for (const std::string words : {"generate m --prompt p", "eval m --text t", "bench m"}) {
    for (const char* threads : {"4097", "2147483648", "4294967297"}) {
      expect_failure(words + " --threads " + threads, 2, {"--threads", "at least 1 and at most 4096", threads});
    }
  }
  expect_failure("eval m --pairs p --windows 3", 2, {"--pairs", "--windows"});
  expect_failure("eval m", 2, {"--instructions FILE"});
  expect_failure("eval m --pairs p --kv-bits 8", 2, {"--pairs", "--kv-bits"});
  expect_failure("eval m --pairs p --text t", 2, {"--pairs", "--text", "give one of them"});
  expect_failure("eval m --text t --instructions i", 2, {"--text", "--instructions", "give one of them"});
  expect_failure("eval m --text t --temperature 1", 2, {"--temperature belongs to --instructions"});
  expect_failure("eval m --text t --temperature 0", 2, {"--temperature belongs to --instructions"});
  expect_failure("eval m --text t --show", 2, {"--show belongs to --instructions"});
  expect_failure("eval m --instructions i --protocol llama.cpp", 2, {"--protocol belongs to --text"});
  expect_failure("eval m --instructions i --prompt-template alpca", 2, {"plain, alpaca, chatml", "'alpaca'"});
  expect_failure("eval m --instructions i --max-new-tokens 0", 2, {"--max-new-tokens", "at least 1"});
}

// Sampling options are checked before the program looks for the model, which does not exist.
TEST_F(PareRuntime, ImpossibleSamplingExitsWith2) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> wrong = {
      {"temperature", {"-1", "nan", "inf", "1e999", "warm"}},
      {"top-k", {"-1", "0.5", "99999999999999999999"}},
      {"top-p", {"0", "-0.5", "1.01", "nan", "inf"}},
      {"min-p", {"-0.5", "1.01", "nan"}},
      {"repetition-penalty", {"0", "-1", "nan", "inf"}},
      {"max-tokens", {"0", "-3", "99999999999999999999"}},
      {"seed", {"-1", "99999999999999999999"}}};
  for (const auto& [option, values] : wrong) {
    for (const std::string& value : values) {
      expect_failure("generate m --prompt p --" + option + " " + value, 2,
                     {"option --" + option + ": expected a ", "found '" + value + "'"});
    }
  }
  expect_failure("generate m --prompt p --top-p 0", 2, {"above 0 and at most 1"});
  expect_failure("generate m --prompt p --temperature -1", 2, {"at least 0"});
}

TEST_F(PareRuntime, PromptsAndTokensThatDoNotFitAreNamed) {
  const std::string words = "generate " + model_.string() + " --prompt abc --max-tokens ";
  expect_failure(words + "126", 1, {"4 tokens", "126 new ones", "context of 128", "at most 125"});
  expect_failure(words + "9223372036854775807", 1, {"4 tokens", "9223372036854775807 new ones", "128"});
  expect_failure("generate " + model_.string() + " --prompt " + std::string(300, 'x'), 1,
                 {"301 tokens", "128 new ones", "context of 128", "shorten the prompt"});
  const std::string bench = "bench " + model_.string();
  expect_failure(bench + " --prefill-tokens 8 --decode-tokens 9223372036854775807", 1,
                 {"9223372036854775807", "context of 128"});
  expect_failure(bench + " --prefill-tokens 9223372036854775807", 1, {"9223372036854775807", "context of 128"});
}

TEST_F(PareRuntime, FailuresExitWith1AndSayWhat) {
  expect_failure("eval " + (folder_.path() / "none").string() + " --text " + npy_, 1, {"none"});
  expect_failure("eval " + model_.string() + " --text " + (folder_.path() / "none.txt").string(), 1, {"none.txt"});
  expect_failure("bench " + model_.string() + " --activations int8", 1,
                 {"--activations int8", "has none", "leave the option out"});
  expect_failure("eval " + model_.string() + " --text " + npy_ + " --activations int8", 1, {"has none"});
  expect_failure("generate " + model_.string() + " --prompt abc --max-tokens 2 --activations int8", 1, {"has none"});
  expect_failure("bench " + model_.string() + " --activations int8 --device cuda", 2, {"--device cpu"});
  expect_failure("bench " + model_.string() + " --activations int4", 2, {"--activations", "int4"});
  expect_failure("eval " + model_.string() + " --text " + npy_ + " --windows 3", 1, {"3 windows", "has 2"});
  expect_failure("eval " + model_.string() + " --text " + text_.string() + " --context 129 --json", 1, {"129", "128"});
  expect_failure("tokenize " + model_.string() + " --text " + npy_, 1, {".npy"});
  expect_failure("inspect " + text_.string(), 1, {"text.txt"});
  expect_failure("import " + text_.string() + " " + (folder_.path() / "o").string(), 1, {"text.txt"});
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "o"));
}

TEST_F(PareRuntime, EvalPrintsWhatEvaluateReturns) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(detect_isa(), 2);
  Transformer model = Transformer::load(Checkpoint::open(model_), *backend);
  const Perplexity expected =
      evaluate_perplexity(model, make_scored_windows(npy_, nullptr, model.description(), {}), nullptr);
  const std::string words = "eval " + model_.string() + " --text " + npy_;
  const nlohmann::json json = run_json(words);
  EXPECT_EQ(json["nll"], expected.nll);
  EXPECT_EQ(json["perplexity"], expected.perplexity.value);
  EXPECT_EQ(json["protocol"], "gptq");
  for (const int num_threads : {1, 3}) {
    EXPECT_EQ(run_json(words + " --threads " + std::to_string(num_threads))["nll"], expected.nll);
  }
  EXPECT_NEAR(run_json(words + " --isa " + baseline_name())["nll"].get<double>(), expected.nll, 1e-5 * expected.nll);
  EXPECT_EQ(run_json(words + " --windows 1")["windows"], 1);
  EXPECT_EQ(run_json(words + " --windows 0")["windows"], 2);  // all, as in a recipe
  EXPECT_EQ(run_json(words + " --protocol llama.cpp")["tokens"], 62);
  const nlohmann::json compared = run_json(words + " --reference " + family_path("llama_gqa_untied").string());
  EXPECT_EQ(compared["kl_mean"], 0.0);
  EXPECT_EQ(compared["top1_agreement"], 1.0);
  const nlohmann::json text = run_json("eval " + model_.string() + " --text " + text_.string() + " --context 100");
  EXPECT_EQ(text["windows"], 3);
  EXPECT_EQ(text["context"], 100);
}

class PareInstructions : public PareRuntime {
 protected:
  void SetUp() override {
    PareRuntime::SetUp();
    std::ofstream(file_) << R"([{"instruction": "abc", "output": "q7 x"}, {"instruction": "d e", "input": "f", )"
                         << R"("output": ["b", "z 1"]}, {"instruction": "not reached", "output": "a"}])";
  }
  std::filesystem::path file_ = folder_.path() / "instructions.json";
  std::string words_ = "eval " + model_.string() + " --instructions " + file_.string() +
                       " --prompt-template plain --max-new-tokens 20 --examples 2";
};

// The texts equal generate's for the same prompts, and the scores equal rouge_l's.
TEST_F(PareInstructions, AreAnsweredAndScored) {
  const nlohmann::json evaluation = run_json(words_ + " --show");
  EXPECT_EQ(evaluation["examples"], 2);
  EXPECT_EQ(evaluation["source"], "instructions.json");
  const nlohmann::json& scores = evaluation["scores"];
  ASSERT_EQ(scores.size(), 2u);
  const std::vector<std::string> prompts = {"abc\n", "d e\nf\n"};
  const std::vector<std::vector<std::string>> references = {{"q7 x"}, {"b", "z 1"}};
  double sum = 0.0;
  for (size_t n = 0; n < 2; ++n) {
    const nlohmann::json generated =
        run_json("generate " + model_.string() + " --max-tokens 20 --prompt '" + prompts[n] + "'");
    EXPECT_EQ(scores[n]["text"], generated["text"]);
    EXPECT_EQ(scores[n]["tokens"], generated["tokens"]);
    double best = 0.0;
    for (const std::string& reference : references[n]) {
      best = std::max(best, rouge_l(generated["text"].get<std::string>(), reference, true).f_measure);
    }
    EXPECT_EQ(scores[n]["rouge_l"], best);
    sum += best;
  }
  EXPECT_EQ(evaluation["rouge_l"], sum / 2.0);
  const nlohmann::json silent = run_json(words_);
  EXPECT_FALSE(silent["scores"][0].contains("text"));
  EXPECT_EQ(silent["rouge_l"], evaluation["rouge_l"]);
  EXPECT_EQ(run_json(words_ + " --threads 3")["scores"], silent["scores"]);
  const std::string drawn = words_ + " --show --temperature 1 --seed ";
  EXPECT_EQ(run_json(drawn + "1")["scores"], run_json(drawn + "1")["scores"]);
  EXPECT_NE(run_json(drawn + "1")["scores"], run_json(drawn + "2")["scores"]);
  const Outcome people = run(words_ + " --show --no-stem");
  EXPECT_NE(people.out.find("Rouge-L               0."), std::string::npos) << people.out;
  EXPECT_NE(people.out.find("not stemmed"), std::string::npos);
  EXPECT_NE(people.out.find("--- example 2"), std::string::npos);
}

TEST_F(PareInstructions, AreComparedWithAReferencesAnswers) {
  const nlohmann::json same = run_json(words_ + " --reference " + model_.string());
  EXPECT_EQ(same["difference"], 0.0);
  EXPECT_EQ(same["reference_rouge_l"], same["rouge_l"]);
  EXPECT_EQ(run_json(words_)["rouge_l"], same["rouge_l"]);
}

TEST_F(PareInstructions, ThatCannotBeAnsweredAreNamed) {
  expect_failure("eval " + model_.string() + " --instructions " + folder_.path().string() + "/none.json", 1,
                 {"none.json"});
  expect_failure(words_ + " --reference none", 1, {"none"});
  const std::string short_words = "eval " + model_.string() + " --instructions " + file_.string();
  expect_failure(short_words + " --examples 4", 1, {"at least 4 examples", "found 3"});
  expect_failure(short_words + " --prompt-template chatml", 1, {"chatml", "<|im_start|>"});
  expect_failure(short_words, 1, {"example 1", "128 new ones", "context of 128"});
}

// PARE_ISA lets this CPU act as one with fewer instruction sets: a set beyond it is neither chosen nor allowed.
TEST_F(PareRuntime, TheEnvironmentTakesInstructionSetsAway) {
  const std::string words = "eval " + model_.string() + " --json --text " + npy_;
  const Outcome held = run(words, "env PARE_ISA=" + baseline_name());
  ASSERT_EQ(held.status, 0) << held.err;
  EXPECT_EQ(nlohmann::json::parse(held.out)["nll"],
            run_json("eval " + model_.string() + " --isa " + baseline_name() + " --text " + npy_)["nll"]);
  const auto refused = [&](const std::string& setting, const std::string& more,
                           std::initializer_list<std::string> parts) {
    const Outcome outcome = run(words + more, "env " + setting);
    EXPECT_EQ(outcome.status, 1) << setting;
    EXPECT_EQ(outcome.out, "");
    for (const std::string& part : parts) EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  };
  const std::string wider(isa_name(kIsas[1]));
  refused("PARE_ISA=" + baseline_name(), " --isa " + wider,
          {"instruction set " + wider, "PARE_ISA", baseline_name() + " is the widest"});
  refused("PARE_ISA=sse2", "", {"PARE_ISA", names_of_isas(), "'sse2'"});
  refused("PARE_ISA=", "", {"PARE_ISA", "found ''"});
  // The test does not know which sets this CPU has. What --version says, every command says.
  for (const Isa isa : kIsas) {
    const std::string name(isa_name(isa));
    const Outcome version = run("--version", "env PARE_ISA=" + name);
    if (version.status != 0) {
      EXPECT_NE(version.err.find("PARE_ISA=" + name + ": expected a set that this CPU and system support"),
                std::string::npos)
          << version.err;
    }
  }
}

TEST_F(PareRuntime, StreamsAreKeptApart) {
  const std::string words = "eval " + model_.string() + " --text " + npy_;
  const Outcome plain = run(words);
  EXPECT_NE(plain.out.find("perplexity"), std::string::npos);
  EXPECT_NE(plain.out.find("gptq, context 64, 2 windows, 126 predictions of ids.npy"), std::string::npos);
  EXPECT_NE(plain.err.find("evaluate: 2 windows in"), std::string::npos) << plain.err;
  EXPECT_EQ(plain.err.find('\x1b'), std::string::npos);  // no terminal, no escape sequences
  const Outcome quiet = run(words + " --quiet");
  EXPECT_NE(quiet.out.find("perplexity"), std::string::npos);
  EXPECT_EQ(quiet.err, "");
  const Outcome json = run(words + " --json");
  EXPECT_NE(json.err.find("perplexity "), std::string::npos);  // people read standard error
  EXPECT_EQ(run(words + " --json --quiet").err, "");
}

TEST_F(PareRuntime, ReferencesWithAnotherTokenizerAreRefused) {
  const std::filesystem::path other = folder_.path() / "other";
  copy_family("llama_gqa_untied", other, nlohmann::json::object());
  std::string tokenizer = ascii_tokenizer_json();
  // x and y change places.
  const size_t x = tokenizer.find("\"x\":90"), y = tokenizer.find("\"y\":91");
  ASSERT_NE(x, std::string::npos);
  ASSERT_NE(y, std::string::npos);
  tokenizer[x + 1] = 'y';
  tokenizer[y + 1] = 'x';
  std::ofstream(other / "tokenizer.json") << tokenizer;
  const std::string words = "eval " + model_.string() + " --context 64 --text " + text_.string() + " --reference ";
  expect_failure(words + other.string(), 1, {"other", "tokenizer"});
  EXPECT_EQ(run_json(words + model_.string())["kl_mean"], 0.0);
}

TEST_F(PareRuntime, GenerateIsGreedyAndSeeded) {
  const std::string words = "generate " + model_.string() + " --prompt 'Hello you' --max-tokens 12";
  const nlohmann::json greedy = run_json(words);
  EXPECT_EQ(greedy["prompt"], "Hello you");
  EXPECT_EQ(greedy["prompt_tokens"], 10);  // <s> and nine characters
  EXPECT_EQ(greedy["ids"].size(), greedy["tokens"]);
  EXPECT_LE(greedy["tokens"], 12);
  EXPECT_EQ(run_json(words + " --threads 1")["ids"], greedy["ids"]);
  EXPECT_EQ(run_json(words + " --temperature 1 --top-k 1 --seed 4")["ids"], greedy["ids"]);
  const nlohmann::json drawn = run_json(words + " --temperature 1 --seed 4");
  EXPECT_EQ(run_json(words + " --temperature 1 --seed 4")["ids"], drawn["ids"]);
  EXPECT_NE(run_json(words + " --temperature 1 --seed 5")["ids"], drawn["ids"]);
  EXPECT_EQ(run_json(words + " --temperature 1 --min-p 1 --seed 4")["ids"], greedy["ids"]);
  const nlohmann::json penalized = run_json(words + " --repetition-penalty 1e9");
  EXPECT_NE(penalized["ids"], greedy["ids"]);
  EXPECT_EQ(penalized["repetition_penalty"], 1e9);
  EXPECT_EQ(run(words + " --quiet").out, "Hello you" + greedy["text"].get<std::string>() + "\n");
}

// Each of many prompts is continued as it is alone.
TEST_F(PareRuntime, GenerateContinuesThePromptsOfAFile) {
  const std::filesystem::path file = folder_.path() / "prompts.jsonl";
  std::vector<std::string> prompts;
  std::string lines;
  for (int n = 0; n < 20; ++n) {
    prompts.push_back(std::string("Hello you and me").substr(0, static_cast<size_t>(1 + n % 12)));
    lines += nlohmann::json{{"prompt", prompts.back()}}.dump() + "\n";
  }
  std::ofstream(file) << lines;
  const std::string words = "generate " + model_.string() + " --max-tokens 9 ";
  const nlohmann::json all = run_json(words + "--repetition-penalty 1.3 --prompts " + file.string());
  ASSERT_EQ(all["generations"].size(), prompts.size());
  EXPECT_EQ(all["texts_at_a_time"], 16);
  std::string printed;
  for (size_t n = 0; n < prompts.size(); ++n) {
    const nlohmann::json alone = run_json(words + "--repetition-penalty 1.3 --prompt '" + prompts[n] + "'");
    for (const char* key : {"prompt", "text", "ids", "stopped_by", "prompt_tokens", "tokens"}) {
      EXPECT_EQ(all["generations"][n][key], alone[key]) << key << " of " << n;
    }
    printed += "--- prompt " + std::to_string(n + 1) + "\n" + prompts[n] + alone["text"].get<std::string>() + "\n";
  }
  EXPECT_EQ(run(words + "--repetition-penalty 1.3 --quiet --prompts " + file.string()).out, printed);
  // Draws of one prompt are independent, and the seed decides them all.
  const nlohmann::json drawn = run_json(words + "--temperature 2 --seed 3 --prompts " + file.string());
  EXPECT_EQ(prompts[0], prompts[12]);
  EXPECT_NE(drawn["generations"][0]["ids"], drawn["generations"][12]["ids"]);
  EXPECT_EQ(run_json(words + "--temperature 2 --seed 3 --prompts " + file.string())["generations"],
            drawn["generations"]);
  EXPECT_NE(run_json(words + "--temperature 2 --seed 4 --prompts " + file.string())["generations"],
            drawn["generations"]);
}

// A model that begins texts with a token of its own starts from that, however the prompt is given.
TEST_F(PareRuntime, GenerateContinuesAnEmptyPrompt) {
  const std::filesystem::path file = folder_.path() / "prompts.jsonl";
  std::ofstream(file) << "{\"prompt\": \"\"}\n{\"prompt\": \"Hello\"}\n";
  const std::string words = "generate " + model_.string() + " --max-tokens 9 ";
  const nlohmann::json alone = run_json(words + "--prompt ''");
  EXPECT_EQ(alone["prompt_tokens"], 1);  // <s>
  const nlohmann::json all = run_json(words + "--prompts " + file.string());
  ASSERT_EQ(all["generations"].size(), 2u);
  for (const char* key : {"prompt", "text", "ids", "stopped_by", "prompt_tokens", "tokens"}) {
    EXPECT_EQ(all["generations"][0][key], alone[key]) << key;
  }
}

TEST_F(PareRuntime, PromptsThatCannotBeContinuedAreRefused) {
  const std::filesystem::path file = folder_.path() / "prompts.jsonl";
  const std::string words = "generate " + model_.string() + " --max-tokens 9 --prompts " + file.string();
  expect_failure(words, 1, {"prompts.jsonl"});
  std::ofstream(file) << "{\"prompt\": \"ab\"}\n{\"prompt\": \"" + std::string(300, 'x') + "\"}\n";
  expect_failure(words, 1, {"prompts.jsonl: prompt 2: ", "shorten the prompt"});
  std::ofstream(file) << "{\"text\": \"ab\"}\n";
  expect_failure(words, 1, {"prompts.jsonl", "'prompt'"});
  std::ofstream(file) << "";
  expect_failure(words, 1, {"holds no prompts"});
  expect_failure(words + " --prompt a", 2, {"--prompt and --prompts: give one of them"});
  expect_failure("generate " + model_.string(), 2, {"--prompt TEXT and --prompts FILE"});
  expect_failure(words + " --system s", 2, {"--system belongs to --chat"});
}

TEST_F(PareRuntime, TokenizePrintsIdsOnOneLine) {
  std::ofstream(text_) << "a b\n";
  EXPECT_EQ(run("tokenize " + model_.string() + " --text " + text_.string()).out, "0 67 1 68 2\n");
  EXPECT_EQ(run("tokenize " + model_.string() + " --no-special-tokens --text " + text_.string()).out, "67 1 68 2\n");
  const nlohmann::json json =
      run_json("tokenize " + (model_ / "tokenizer.json").string() + " --text " + text_.string());
  EXPECT_EQ(json["ids"], (std::vector<int>{0, 67, 1, 68, 2}));
  EXPECT_EQ(json["tokens"], 5);
}

// The infinity is in the final norm, which the statistics of linears do not cover. Every command refuses it before it
// prints.
TEST_F(PareRuntime, DamagedNormsAreFoundBeforeAnyWork) {
  std::string bytes = file_text(model_ / "model.safetensors");
  uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), 8);
  const auto header = nlohmann::json::parse(bytes.substr(8, header_size));
  const float infinity = std::numeric_limits<float>::infinity();
  const size_t begin = header["model.norm.weight"]["data_offsets"][0].get<size_t>();
  std::memcpy(bytes.data() + 8 + header_size + begin, &infinity, sizeof(infinity));
  std::ofstream(model_ / "model.safetensors", std::ios::binary) << bytes;
  const std::string words = " " + model_.string() + " --json";
  for (const std::string& command : {"eval --text " + npy_, std::string("generate --prompt a --max-tokens 2"),
                                     std::string("bench --repetitions 1"), std::string("verify")}) {
    expect_failure(command + words, 1, {"model.norm.weight", "infinity", "element 0"});
  }
}

TEST_F(PareRuntime, InspectBenchAndVerifyAnswer) {
  EXPECT_EQ(run_json("inspect " + model_.string())["kind"], "checkpoint");
  EXPECT_NE(run("inspect " + model_.string() + " --tensors").out.find("model.norm.weight F32 [64]"), std::string::npos);
  const nlohmann::json bench =
      run_json("bench " + model_.string() + " --prefill-tokens 32 --decode-tokens 8 --repetitions 2 --threads 1");
  EXPECT_EQ(bench["prefill_tokens"], 32);
  EXPECT_EQ(bench["decode_tokens"], 8);
  EXPECT_EQ(bench["repetitions"], 2);
  EXPECT_EQ(bench["threads"], 1);
  const std::string many = "bench " + model_.string() + " --prefill-tokens 8 --decode-tokens 8 --threads 4096";
  EXPECT_EQ(run_json(many)["threads"], usable_threads(4096));
  const Outcome shown = run(many);
  EXPECT_NE(shown.err.find("--threads 4096: " + std::to_string(usable_threads(4096)) + " used"), std::string::npos)
      << shown.err;
  for (const char* name : {"prefill_tokens_per_second", "decode_tokens_per_second", "bytes_per_token", "prefill_share",
                           "decode_share", "prefill_roof_gflops", "decode_roof_gbps"}) {
    EXPECT_GT(bench[name].get<double>(), 0.0) << name;
  }
  EXPECT_EQ(run_json("verify " + model_.string())["ok"], true);
  std::ofstream(model_ / "pare.json") << R"({"outputs": {"config.json": "00"}})";
  expect_failure("verify " + model_.string(), 1, {"config.json", "SHA-256"});
}

TEST_F(PareRuntime, ImportWritesACheckpointOnceOnly) {
  const std::string words = std::string("import ") + kSourceFolder + "/tests/golden/gguf/llama_gqa_untied.gguf " +
                            (folder_.path() / "o").string();
  const nlohmann::json json = run_json(words);
  EXPECT_EQ(json["output"], (folder_.path() / "o").string());
  EXPECT_EQ(run_json("inspect " + (folder_.path() / "o").string())["parameters"], json["parameters"]);
  EXPECT_EQ(run_json("eval " + (folder_.path() / "o").string() + " --text " + npy_)["windows"], 2);
  expect_failure(words, 1, {"exist"});
}

TEST_F(PareRuntime, PlacesThatCannotBeMadeAreRefusedBeforeAnyWork) {
  const std::string words = std::string("import ") + kSourceFolder + "/tests/golden/gguf/llama_gqa_untied.gguf ";
  const std::string folder = folder_.path().string() + "/";
  for (const std::string end : {"/", "/.", "//./"}) {
    EXPECT_EQ(run_json(words + folder + "o" + end)["output"], folder + "o") << end;
    std::filesystem::remove_all(folder + "o");
  }
  expect_failure(words + folder + "missing/../o", 1, {"there is no folder", "missing"});
  expect_failure(words + text_.string() + "/o", 1, {"text.txt' is not a folder"});
  expect_failure(words + folder + "m/..", 1, {"expected the name of a new"});
  expect_failure(words + "''", 2, {"argument OUT is empty"});
  expect_failure("inspect ''", 2, {"argument PATH is empty"});
  expect_failure("eval " + model_.string() + " --text ''", 2, {"--text", "a text that is not empty", "found ''"});
  EXPECT_FALSE(std::filesystem::exists(folder + "o"));
  EXPECT_FALSE(std::filesystem::exists(folder + "missing"));
  EXPECT_EQ(run("generate " + model_.string() + " --prompt '' --max-tokens 1").status, 0);
}

TEST_F(PareRuntime, AGgufFileIsReadAsItsImportAndLeavesNothing) {
  const std::string gguf = std::string(kSourceFolder) + "/tests/golden/gguf/llama_gqa_untied.gguf";
  const std::string imported = (folder_.path() / "o").string();
  run_json("import " + gguf + " " + imported);
  const std::filesystem::path temporary = folder_.path() / "tmp";
  std::filesystem::create_directory(temporary);
  const Outcome direct = run("eval " + gguf + " --json --text " + npy_, "env TMPDIR=" + temporary.string());
  ASSERT_EQ(direct.status, 0) << direct.err;
  EXPECT_EQ(nlohmann::json::parse(direct.out)["nll"], run_json("eval " + imported + " --text " + npy_)["nll"]);
  EXPECT_TRUE(std::filesystem::is_empty(temporary));
  // A TMPDIR that is none, or a file, is named.
  for (const std::string& place : {temporary.string() + "/missing", text_.string()}) {
    const Outcome refused = run("eval " + gguf + " --text " + npy_, "env TMPDIR=" + place);
    EXPECT_EQ(refused.status, 1);
    EXPECT_NE(refused.err.find("cannot make a folder like '" + place + "/pare-import-"), std::string::npos)
        << refused.err;
  }
}

// --- Exceptions for which there is no message of ours ---

template <typename Throw>
int status_of(const Throw& what) {
  const Program program = {
      .name = "sample",
      .summary = "",
      .commands = {
          {.name = "work", .summary = "", .positionals = {}, .options = {}, .run = [&](const Arguments&, Console&) {
             what();
           }}}};
  const std::array<const char*, 2> words = {"sample", "work"};
  return run_program(program, 2, words.data());
}

TEST(RunProgram, ExceptionsOfLibrariesSayWhatToDo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // other tests of this process have threads
  const auto expect_message = [](const auto& what, const std::string& message) {
    EXPECT_EXIT(std::exit(status_of(what)), testing::ExitedWithCode(1), message);
  };
  const std::string internal = "sample: this should not happen: .*verify. Report the fault .*";
  expect_message([] { (void)std::string("ab").substr(3); }, internal + "basic_string::substr");
  expect_message([] { nlohmann::json json = nlohmann::json::parse("{"); }, internal + "json.exception");
  expect_message([] { nlohmann::json json = nlohmann::json::parse("3").at("key"); }, internal);
  expect_message([] { throw std::logic_error("no such option"); }, internal + "no such option");
  expect_message([] { EXPECT_EQ(std::filesystem::file_size("/no/such"), 0u); },
                 "sample: cannot use '/no/such': No such file");
  expect_message([] { throw std::invalid_argument("ours"); }, "sample: ours\n");
  expect_message([] { throw std::runtime_error("a \x1b[31mname"); }, "sample: a .x1b.31mname\n");
  expect_message([] { throw std::bad_alloc(); }, "sample: out of memory: use a smaller");
  // An exception can leave a destructor, as in the JSON library when memory runs out.
  struct Ending {
    ~Ending() { throw_on_the_way(); }
    static void throw_on_the_way() { throw std::bad_alloc(); }
  };
  expect_message([] { const Ending ending; }, "sample: out of memory: use a smaller");
}

}  // namespace
}  // namespace pare
