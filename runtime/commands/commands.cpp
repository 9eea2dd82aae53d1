#include "runtime/commands/commands.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <utility>

#include "runtime/commands/artifact_files.h"
#include "runtime/commands/bench.h"
#include "runtime/commands/inspect.h"
#include "runtime/commands/verify.h"
#include "runtime/engine/backend.h"
#include "runtime/engine/encoder.h"
#include "runtime/engine/generate.h"
#include "runtime/engine/transformer.h"
#include "runtime/evaluate/evaluate.h"
#include "runtime/evaluate/evaluate_embeddings.h"
#include "runtime/evaluate/evaluate_instructions.h"
#include "runtime/evaluate/token_source.h"
#include "runtime/import/import.h"
#include "runtime/import/model_directory.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/memory_usage.h"
#include "runtime/system/partial_output.h"
#include "runtime/system/progress.h"
#include "runtime/tokenizer/tokenizer.h"

namespace pare {
namespace {

using Clock = std::chrono::steady_clock;

const PositionalSpec kModel = {"MODEL",
                               "directory of a Hugging Face checkpoint, dense or compressed by pare, or a .gguf file "
                               "(imported into a temporary folder)"};

std::vector<OptionSpec> joined(std::vector<OptionSpec> first, const std::vector<OptionSpec>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// Text from a model may end inside a character; JSON may not.
std::string dump(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

// The progress bar of one stage, as the callback that the long functions take; a place to stop when asked to.
std::function<void(int64_t, int64_t)> stage(Console& console, const std::string& name, const std::string& unit) {
  return [&console, name, unit, begun = false](int64_t done, int64_t total) mutable {
    throw_if_interrupted();
    if (!begun) console.progress().begin(name, total, unit);
    begun = done != total;
    console.progress().update(done);
    if (!begun) console.progress().finish();
  };
}

// The backend that the options name, and models loaded on it.
class Engine {
 public:
  explicit Engine(const Arguments& arguments)
      : isa_(arguments.given("isa") ? parse_isa(arguments.text("isa")) : detect_isa()),
        num_threads_(arguments.given("threads") ? static_cast<int>(arguments.integer("threads"))
                                                : omp_get_max_threads()),
        backend_(make_cpu_backend(isa_, num_threads_)) {}

  Isa isa() const { return isa_; }
  int num_threads() const { return num_threads_; }

  Encoder load_encoder(const Checkpoint& checkpoint, Console& console) const {
    return Encoder::load(checkpoint, *backend_, stage(console, "load " + checkpoint.directory().string(), "blocks"));
  }
  Transformer load(const Checkpoint& checkpoint, Console& console) const {
    const auto progress = stage(console, "load " + checkpoint.directory().string(), "blocks");
    return Transformer::load(checkpoint, *backend_, progress);
  }

 private:
  Isa isa_;
  int num_threads_;
  std::unique_ptr<Backend> backend_;
};

void run_import(const Arguments& arguments, Console& console) {
  const std::filesystem::path source = arguments.positional(0), output = output_place(arguments.positional(1));
  const Clock::time_point start = Clock::now();
  ImportOptions options;
  if (arguments.given("tokenizer")) options.tokenizer = arguments.text("tokenizer");
  options.dtype = parse_dtype_name(arguments.text("dtype"));
  options.progress = stage(console, "import", "tensors");
  import_model(source, output, options);
  const Inspection written = inspect(output);
  console.report() << output.string() << '\n' << to_text(written, false);
  console.set_result(dump({{"output", output.string()},
                           {"bytes", written.num_bytes},
                           {"parameters", written.sizes->all_parameters},
                           {"seconds", seconds_since(start)}}));
}

// Both models must cut the text into the same tokens, or their figures are of different things.
void check_same_tokens(const ScoredWindows& data, const std::filesystem::path& text, const Checkpoint& reference,
                       const EvaluationOptions& options) {
  if (holds_token_windows(text)) return;
  const Tokenizer tokenizer = Tokenizer::open(reference.directory());
  EvaluationOptions same = options;
  same.context = data.windows.num_tokens;
  if (make_scored_windows(text, &tokenizer, reference.description(), same).windows.ids_NT != data.windows.ids_NT) {
    throw std::invalid_argument(reference.directory().string() +
                                ": its tokenizer gives other tokens than the model's: they cannot be compared");
  }
}

OptionSpec kv_bits_option() {
  return {.name = "kv-bits",
          .kind = OptionKind::text,
          .value_name = "N",
          .default_value = std::to_string(kKvFloatBits),
          .help =
              "bits of the model's keys and values: 32 (float32), or 8 (integers with a scale and a zero per head "
              "and token)",
          .choices = {std::to_string(kKvFloatBits), "8"}};
}
OptionSpec attention_bits_option() {
  return {.name = "attention-bits",
          .kind = OptionKind::text,
          .value_name = "N",
          .default_value = std::to_string(kKvFloatBits),
          .help =
              "bits of attention's own matrix products: 32 (float32), or 8 (queries and softmax's output rounded too; "
              "includes --kv-bits 8)",
          .choices = {std::to_string(kKvFloatBits), "8"}};
}
void use_bits(const Arguments& arguments, Transformer& model) {
  const auto bits = [&](const char* option) { return arguments.text(option) == "8" ? 8 : kKvFloatBits; };
  model.use_attention_bits({.kv = bits("kv-bits"), .products = bits("attention-bits")});
}

// What each form of eval is asked about beside --reference; what belongs to the others has no meaning.
struct EvalForm {
  std::string option;
  std::string measures;
  std::vector<std::string> options;
};
const std::vector<EvalForm>& eval_forms() {
  static const std::vector<EvalForm> forms = {
      {"pairs", "compares embeddings of an encoder", {}},
      {"instructions",
       "scores answers of a decoder",
       {"examples", "max-new-tokens", "temperature", "seed", "prompt-template", "no-stem", "show", "kv-bits",
        "attention-bits"}},
      {"text", "measures the perplexity of a decoder", {"protocol", "context", "windows", "kv-bits", "attention-bits"}},
  };
  return forms;
}

// Which form is asked for. Throws WrongUsage for none, and for options of another form.
std::string eval_form(const Arguments& arguments) {
  const EvalForm* chosen = nullptr;
  for (const EvalForm& form : eval_forms()) {
    if (chosen == nullptr && arguments.given(form.option)) chosen = &form;
  }
  if (chosen == nullptr) {
    throw WrongUsage(
        "option --text FILE is missing, or --instructions FILE, or --pairs FILE for an encoder: what to measure");
  }
  const std::map<std::string, std::string> defaults = {
      {"protocol", std::string(protocol_name(EvaluationOptions{}.protocol))},
      {"kv-bits", std::to_string(kKvFloatBits)},
      {"attention-bits", std::to_string(kKvFloatBits)}};
  const auto is_asked = [&](const std::string& option) {
    const auto by_default = defaults.find(option);
    return arguments.given(option) && (by_default == defaults.end() || arguments.text(option) != by_default->second);
  };
  for (const EvalForm& form : eval_forms()) {
    std::vector<std::string> others = form.options;
    if (&form != chosen) others.push_back(form.option);
    for (const std::string& option : others) {
      const auto& own = chosen->options;
      if (std::find(own.begin(), own.end(), option) != own.end() || !is_asked(option)) continue;
      throw WrongUsage("--" + chosen->option + " " + chosen->measures + ", and --" + option + " belongs to --" +
                       form.option + ", which " + form.measures + ": leave one out");
    }
  }
  return chosen->option;
}

// Before a model is loaded: its files are what was written, where anything says what that was.
void check_files_of(const std::filesystem::path& directory, const std::string& instead, Console& console) {
  require_whole_files(directory, instead, stage(console, "check " + directory.string(), "files"));
}
void check_evaluated(const Arguments& arguments, const std::filesystem::path& directory, Console& console) {
  if (!arguments.flag("no-verify")) check_files_of(directory, ", or use it as it is with --no-verify", console);
}

// Of an encoder: its embeddings of the texts of --pairs.
void run_eval_pairs(const Arguments& arguments, Console& console) {
  MemorySampler memory;
  const Engine engine(arguments);
  check_evaluated(arguments, arguments.positional(0), console);
  const Checkpoint checkpoint = Checkpoint::open(arguments.positional(0));
  const Pooling pooling = read_pooling(checkpoint.directory(), checkpoint.encoder());
  const std::filesystem::path file = arguments.text("pairs");
  const TextPairs data = read_text_pairs(file, Tokenizer::open(checkpoint.directory()), pooling.max_tokens);
  std::optional<Checkpoint> reference_checkpoint;
  std::optional<Encoder> reference;
  if (arguments.given("reference")) {
    check_evaluated(arguments, arguments.text("reference"), console);
    reference_checkpoint = Checkpoint::open(arguments.text("reference"));
    check_comparable(checkpoint, *reference_checkpoint, file, data);
    reference = engine.load_encoder(*reference_checkpoint, console);
  }
  Encoder model = engine.load_encoder(checkpoint, console);
  EmbeddingEvaluation evaluation =
      evaluate_embeddings(model, reference ? &*reference : nullptr, data, pooling, stage(console, "evaluate", "texts"));
  evaluation.peak_memory_bytes = memory.peak_bytes();
  console.report() << to_text(evaluation);
  console.set_result(to_json(evaluation));
}

// Of a decoder: its answers to --instructions. Texts are compared, so the reference may have another tokenizer.
void run_eval_instructions(const Arguments& arguments, Console& console) {
  MemorySampler memory;
  InstructionOptions options;
  if (arguments.given("prompt-template")) {
    options.prompt_template = parse_prompt_template(arguments.text("prompt-template"));
  }
  if (arguments.given("max-new-tokens")) options.max_new_tokens = arguments.integer("max-new-tokens");
  if (arguments.given("temperature")) options.temperature = arguments.number("temperature");
  if (arguments.given("seed")) options.seed = static_cast<uint64_t>(arguments.integer("seed"));
  options.stem = !arguments.flag("no-stem");
  const InstructionData data = read_instructions(arguments.text("instructions"),
                                                 arguments.given("examples") ? arguments.integer("examples") : 0);

  struct Answerer {
    Answerer(const std::string& path, const Arguments& arguments, Console& console)
        : directory(path),
          checkpoint((check_evaluated(arguments, directory.path(), console), Checkpoint::open(directory.path()))),
          tokenizer(Tokenizer::open(directory.path())) {}
    ModelDirectory directory;
    Checkpoint checkpoint;
    Tokenizer tokenizer;
    InstructionPrompts prompts = {};
  };
  const Engine engine(arguments);
  std::vector<std::unique_ptr<Answerer>> answerers;
  answerers.push_back(std::make_unique<Answerer>(arguments.positional(0), arguments, console));
  if (arguments.given("reference")) {
    answerers.push_back(std::make_unique<Answerer>(arguments.text("reference"), arguments, console));
  }
  for (const auto& answerer : answerers) {
    answerer->prompts = make_prompts(data, options, answerer->tokenizer, answerer->checkpoint.description());
  }
  std::vector<InstructionEvaluation> evaluations;
  for (const auto& answerer : answerers) {  // one after the other, so that one model alone is held
    Transformer model = engine.load(answerer->checkpoint, console);
    if (evaluations.empty()) use_bits(arguments, model);
    evaluations.push_back(evaluate_instructions(model, answerer->tokenizer, data, answerer->prompts, options,
                                                stage(console, "evaluate", "examples")));
  }
  InstructionEvaluation& evaluation = evaluations.front();
  if (evaluations.size() > 1) evaluation.comparison = compare_instructions(evaluation, evaluations.back());
  evaluation.peak_memory_bytes = memory.peak_bytes();
  console.report() << to_text(evaluation, arguments.flag("show"));
  console.set_result(to_json(evaluation, arguments.flag("show")));
}

void run_eval(const Arguments& arguments, Console& console) {
  const std::string form = eval_form(arguments);
  if (form == "pairs") return run_eval_pairs(arguments, console);
  if (form == "instructions") return run_eval_instructions(arguments, console);
  MemorySampler memory;
  const std::filesystem::path text = arguments.text("text");
  EvaluationOptions options;
  options.protocol = parse_protocol(arguments.text("protocol"));
  if (arguments.given("context")) options.context = arguments.integer("context");
  if (arguments.given("windows")) options.num_windows = arguments.integer("windows");

  const Engine engine(arguments);
  const ModelDirectory directory(arguments.positional(0));
  check_evaluated(arguments, directory.path(), console);
  const Checkpoint checkpoint = Checkpoint::open(directory.path());
  std::optional<Tokenizer> tokenizer;
  if (!holds_token_windows(text)) tokenizer = Tokenizer::open(checkpoint.directory());
  const ScoredWindows data =
      make_scored_windows(text, tokenizer ? &*tokenizer : nullptr, checkpoint.description(), options);
  std::optional<ModelDirectory> reference_directory;
  std::optional<Checkpoint> reference_checkpoint;
  std::optional<Transformer> reference;
  if (arguments.given("reference")) {
    reference_directory.emplace(arguments.text("reference"));
    check_evaluated(arguments, reference_directory->path(), console);
    reference_checkpoint = Checkpoint::open(reference_directory->path());
    check_same_tokens(data, text, *reference_checkpoint, options);
    reference = engine.load(*reference_checkpoint, console);
  }
  Transformer model = engine.load(checkpoint, console);
  use_bits(arguments, model);

  Evaluation evaluation =
      evaluate(model, data, reference ? &*reference : nullptr, stage(console, "evaluate", "windows"));
  evaluation.peak_memory_bytes = memory.peak_bytes();
  console.report() << to_text(evaluation);
  console.set_result(to_json(evaluation));
}

// Prints a prompt and, piece by piece, what a model adds to it. Nothing appears before the first new token, so that a
// refused generation prints nothing.
class ContinuedText {
 public:
  ContinuedText(const Tokenizer& tokenizer, std::string prompt, std::span<const int32_t> ids, std::ostream& out)
      : prompt_(std::move(prompt)), out_(out), stream_(tokenizer, /*skip_special_tokens=*/true) {
    prompt_left_ = tokenizer.decode(ids, true).size();
    for (const int32_t id : ids) prompt_left_ -= std::min(prompt_left_, stream_.add(id).size());
  }

  void add(int32_t id) { print(stream_.add(id)); }

  // Prints what was held back, and the end of the line.
  void finish() {
    print(stream_.finish());
    out_ << '\n';
  }

  // All text without the prompt.
  const std::string& continuation() const { return continuation_; }

 private:
  void print(const std::string& piece) {
    const size_t of_prompt = std::min(prompt_left_, piece.size());
    prompt_left_ -= of_prompt;
    out_ << std::exchange(prompt_, "") << piece.substr(of_prompt) << std::flush;
    continuation_ += piece.substr(of_prompt);
  }

  std::string prompt_;  // empty once it is printed
  std::ostream& out_;
  TextStream stream_;
  size_t prompt_left_;  // bytes of the prompt's own text that the stream still holds back
  std::string continuation_;
};

void run_generate(const Arguments& arguments, Console& console) {
  MemorySampler memory;
  const SamplingOptions sampling = {.temperature = arguments.number("temperature"),
                                    .top_k = arguments.integer("top-k"),
                                    .top_p = arguments.number("top-p"),
                                    .seed = static_cast<uint64_t>(arguments.integer("seed"))};
  const Engine engine(arguments);
  const ModelDirectory directory(arguments.positional(0));
  if (arguments.flag("verify")) check_files_of(directory.path(), "", console);
  const Checkpoint checkpoint = Checkpoint::open(directory.path());
  const Tokenizer tokenizer = Tokenizer::open(checkpoint.directory());
  const std::string& prompt = arguments.text("prompt");
  const std::vector<int32_t> ids = tokenizer.encode(prompt, true);
  const GenerationOptions options = {.max_tokens = arguments.integer("max-tokens"),
                                     .sampling = sampling,
                                     .vocabulary_size = tokenizer.vocabulary_size()};
  check_length(checkpoint.description(), static_cast<int64_t>(ids.size()), options.max_tokens);
  Transformer model = engine.load(checkpoint, console);
  use_bits(arguments, model);
  ContinuedText stream(tokenizer, prompt, ids, console.model_text());
  const Generation generation = generate(model, ids, options, [&](int32_t id) { stream.add(id); });
  stream.finish();
  console.progress().print(std::to_string(generation.prompt_tokens) + " prompt tokens at " +
                           format_number(generation.prefill_tokens_per_second(), 1) + " tokens/s, " +
                           std::to_string(generation.ids.size()) + " new ones at " +
                           format_number(generation.decode_tokens_per_second(), 1) + " tokens/s");
  console.set_result(dump({{"prompt", prompt},
                           {"text", stream.continuation()},
                           {"ids", generation.ids},
                           {"stopped_by", generation.reached_end ? "end" : "max-tokens"},
                           {"prompt_tokens", generation.prompt_tokens},
                           {"tokens", generation.ids.size()},
                           {"prefill_tokens_per_second", generation.prefill_tokens_per_second()},
                           {"decode_tokens_per_second", generation.decode_tokens_per_second()},
                           {"peak_memory_bytes", memory.peak_bytes()}}));
}

void run_tokenize(const Arguments& arguments, Console& console) {
  const Tokenizer tokenizer = Tokenizer::open(arguments.positional(0));
  const std::string text = read_text(arguments.text("text"));
  const Clock::time_point start = Clock::now();
  const std::vector<int32_t> ids = tokenizer.encode(text, !arguments.flag("no-special-tokens"));
  const double seconds = seconds_since(start);
  std::string line;
  for (const int32_t id : ids) line += (line.empty() ? "" : " ") + std::to_string(id);
  console.report() << line << '\n';
  // Not by way of a JSON value: of millions of ids it takes many times the memory.
  std::replace(line.begin(), line.end(), ' ', ',');
  std::string json = dump({{"tokens", ids.size()}, {"bytes", text.size()}, {"seconds", seconds}});
  json.pop_back();
  console.set_result(json + ",\"ids\":[" + line + "]}");
}

void run_inspect(const Arguments& arguments, Console& console) {
  const Inspection inspection = inspect(arguments.positional(0));
  console.report() << to_text(inspection, arguments.flag("tensors"));
  console.set_result(to_json(inspection));
  for (const LayerSparsity& layer : inspection.sparsity) {
    if (!layer.problem.empty()) throw std::runtime_error(arguments.positional(0) + ": " + layer.problem);
  }
}

void run_verify(const Arguments& arguments, Console& console) {
  const std::string& directory = arguments.positional(0);
  const Verification verification = verify(directory, stage(console, "verify", "items"));
  if (!verification.problems.empty()) {
    std::string message = directory + ": damaged, " + std::to_string(verification.problems.size()) + " problem(s):";
    for (const std::string& problem : verification.problems) message += "\n  " + problem;
    throw std::runtime_error(message);
  }
  const std::string decoded = std::to_string(verification.num_linears) + " weights decoded, ";
  if (verification.has_manifest) {
    console.report() << directory << ": whole; " << decoded << verification.num_files << " checksums right\n";
  } else {
    console.report() << directory << ": can be read; " << decoded
                     << "but there is no pare.json, so nothing says which bytes they should be\n";
  }
  for (const std::string& name : verification.unchecked) {
    console.report() << "not checked: " << name << " (written by an earlier version, without a checksum of its own)\n";
  }
  console.set_result(to_json(verification));
}

void run_bench(const Arguments& arguments, Console& console) {
  MemorySampler memory;
  const BenchOptions options = {.prefill_tokens = arguments.integer("prefill-tokens"),
                                .decode_tokens = arguments.integer("decode-tokens"),
                                .repetitions = arguments.integer("repetitions")};
  const Engine engine(arguments);
  const ModelDirectory directory(arguments.positional(0));
  Transformer model = engine.load(Checkpoint::open(directory.path()), console);
  use_bits(arguments, model);
  BenchResult result =
      bench(model, engine.isa(), engine.num_threads(), options, stage(console, "bench", "repetitions"));
  result.peak_memory_bytes = memory.peak_bytes();
  console.report() << to_text(result);
  console.set_result(to_json(result));
}

OptionSpec count(const std::string& name, const std::string& default_value, const std::string& help, double minimum) {
  return {.name = name,
          .kind = OptionKind::integer,
          .value_name = "N",
          .default_value = default_value,
          .help = help,
          .minimum = minimum};
}

OptionSpec number(const std::string& name, const std::string& default_value, const std::string& help) {
  return {.name = name,
          .kind = OptionKind::number,
          .value_name = "X",
          .default_value = default_value,
          .help = help,
          .minimum = 0.0};
}

// A share of something: in (0, 1].
OptionSpec share(const std::string& name, const std::string& default_value, const std::string& help) {
  OptionSpec option = number(name, default_value, help);
  option.above_minimum = true;
  option.maximum = 1.0;
  return option;
}

OptionSpec required_text(const std::string& name, const std::string& value_name, const std::string& help) {
  return {.name = name, .kind = OptionKind::text, .value_name = value_name, .help = help, .required = true};
}

// Defaults are shown from the structs that hold them.
Command generate_command() {
  const GenerationOptions defaults;
  const SamplingOptions& sampling = defaults.sampling;
  OptionSpec prompt = required_text("prompt", "TEXT", "the text to continue");
  prompt.may_be_empty = true;  // a model that begins with a token of its own can start from that
  return {.name = "generate",
          .summary = "Continue a prompt: prints the prompt and the model's continuation, greedy unless told otherwise.",
          .positionals = {kModel},
          .options = joined(
              {prompt,
               count("max-tokens", std::to_string(defaults.max_tokens), "stop after so many new tokens", 1),
               number("temperature", format_number(sampling.temperature, 0),
                      "logits are divided by it before drawing; 0 always takes the most probable token"),
               count("top-k", std::to_string(sampling.top_k), "draw from the N most probable tokens; 0: all", 0),
               share("top-p", format_number(sampling.top_p, 0),
                     "draw from the fewest tokens whose probabilities sum to at least X, in (0, 1]"),
               count("seed", std::to_string(sampling.seed), "of the draws: the same seed, the same text", 0),
               {.name = "verify", .help = "first check that the files are what pare.json says (eval always does)"},
               kv_bits_option(),
               attention_bits_option()},
              compute_options()),
          .run = run_generate};
}

// Of eval --instructions; what has no default here takes that of InstructionOptions.
std::vector<OptionSpec> instruction_options() {
  const InstructionOptions defaults;
  std::vector<std::string> templates;
  for (const PromptTemplate prompt_template : kPromptTemplates) {
    templates.emplace_back(prompt_template_name(prompt_template));
  }
  return {{.name = "instructions",
           .kind = OptionKind::text,
           .value_name = "FILE",
           .help = ".json or .jsonl of instruction, input and output (Alpaca, Dolly, Self-Instruct): Rouge-L of a "
                   "decoder's answers, each compared with its output"},
          count("examples", "", "of --instructions: the first N (default: all)", 1),
          count("max-new-tokens", "",
                "of --instructions: tokens of an answer (default: " + std::to_string(defaults.max_new_tokens) + ")", 1),
          number("temperature", "", "of --instructions: as in generate (default: 0, greedy)"),
          count("seed", "", "of --instructions: of the draws (default: " + std::to_string(defaults.seed) + ")", 0),
          {.name = "prompt-template",
           .kind = OptionKind::text,
           .value_name = "NAME",
           .help = "of --instructions: what stands around an instruction (default: " +
                   std::string(prompt_template_name(defaults.prompt_template)) + ")",
           .choices = templates},
          {.name = "no-stem", .help = "of --instructions: compare words as they are, not their stems"},
          {.name = "show", .help = "of --instructions: show the answers, too"}};
}

Command eval_command() {
  std::vector<std::string> protocols;
  std::string contexts;
  for (const Protocol protocol : {Protocol::gptq, Protocol::llama_cpp}) {
    protocols.emplace_back(protocol_name(protocol));
    contexts +=
        (contexts.empty() ? "" : ", ") + std::to_string(default_context(protocol)) + " with " + protocols.back();
  }
  return {
      .name = "eval",
      .summary =
          "Perplexity on a text, answers to instructions, or embeddings of pairs of texts, and the distance from a "
          "reference model.",
      .positionals = {kModel},
      .options = joined(
          joined(
              {{.name = "text",
                .kind = OptionKind::text,
                .value_name = "FILE",
                .help =
                    ".txt, .jsonl (field text) or .npy (token ids [N, T], used as they are): perplexity of a decoder"},
               {.name = "pairs",
                .kind = OptionKind::text,
                .value_name = "FILE",
                .help =
                    ".tsv of two texts and perhaps a score a line: embeddings of an encoder, compared with --reference "
                    "(cosine similarity, rank correlation) and with the scores"},
               {.name = "protocol",
                .kind = OptionKind::text,
                .value_name = "NAME",
                .default_value = std::string(protocol_name(EvaluationOptions{}.protocol)),
                .help = "how the text is cut and scored",
                .choices = protocols},
               count("context", "",
                     "tokens of a window (default: " + contexts + ", at most the model's context; a .npy has its own)",
                     2),
               count("windows", "", "score the first N windows (default: all)", 1),
               {.name = "reference",
                .kind = OptionKind::text,
                .value_name = "MODEL",
                .help = "also load this model, usually the uncompressed one, and compare token by token, or answer by "
                        "answer (its keys and values stay float32)"},
               {.name = "no-verify",
                .help = "do not check first that the files are what pare.json says: reads damaged models, too"},
               kv_bits_option(),
               attention_bits_option()},
              instruction_options()),
          compute_options()),
      .run = run_eval};
}

Command bench_command() {
  const BenchOptions defaults;
  return {
      .name = "bench",
      .summary = "Speed of prefill and decode, and their share of what this machine's cores and memory can do.",
      .positionals = {kModel},
      .options = joined(
          {count("prefill-tokens", std::to_string(defaults.prefill_tokens), "length of the prompt", 1),
           count("decode-tokens", std::to_string(defaults.decode_tokens), "tokens decoded one by one", 1),
           count("repetitions", std::to_string(defaults.repetitions), "measure so often; best and median are shown", 1),
           kv_bits_option(), attention_bits_option()},
          compute_options()),
      .run = run_bench};
}

}  // namespace

std::vector<OptionSpec> compute_options() {
  std::vector<std::string> isas;
  for (const Isa isa : kIsas) isas.emplace_back(isa_name(isa));
  OptionSpec threads =
      count("threads", "", "CPU threads (default: all, or OMP_NUM_THREADS); results do not depend on it", 1);
  threads.maximum = kMaxThreads;
  return {threads,
          {.name = "isa",
           .kind = OptionKind::text,
           .value_name = "NAME",
           .help = "instruction set of the kernels (default: the widest this CPU has, up to PARE_ISA)",
           .choices = std::move(isas)}};
}

std::vector<Command> runtime_commands() {
  const Command import = {
      .name = "import",
      .summary = "Turn a GGUF file or a llama2.c checkpoint into a Hugging Face directory (with its tokenizer).",
      .positionals = {{"SOURCE", "a .gguf file, or a llama2.c .bin file"},
                      {"OUT", "directory to write; must not exist"}},
      .options = {{.name = "tokenizer",
                   .kind = OptionKind::text,
                   .value_name = "FILE",
                   .help = "vocabulary of a llama2.c checkpoint (default: the one tok*.bin beside it)"},
                  {.name = "dtype",
                   .kind = OptionKind::text,
                   .value_name = "NAME",
                   .default_value = "bfloat16",
                   .help = "type of the weights written",
                   .choices = {"bfloat16", "float16", "float32"}}},
      .run = run_import};
  const Command tokenize = {
      .name = "tokenize",
      .summary = "Token ids of a text, on one line.",
      .positionals = {{"MODEL", "a checkpoint directory, a tokenizer.json or a .gguf file (its vocabulary is enough)"}},
      .options = {required_text("text", "FILE", ".txt or .jsonl (field text)"),
                  {.name = "no-special-tokens",
                   .help = "leave out what the tokenizer puts around a text, such as a leading BOS"}},
      .run = run_tokenize};
  const Command inspect_command = {
      .name = "inspect",
      .summary = "What a path holds: architecture, sizes, bits per weight, zeros of pruned layers, tensors.",
      .positionals = {{"PATH", "a checkpoint directory, or a .safetensors, .gguf or .npy file"}},
      .options = {{.name = "tensors", .help = "list every tensor (--json always does)"}},
      .run = run_inspect};
  const Command verify_command = {.name = "verify",
                                  .summary =
                                      "Check that a checkpoint is whole: the checksums of all its files, every weight "
                                      "decodes. Exit status 1 if not.",
                                  .positionals = {{"DIR", "directory of a checkpoint"}},
                                  .options = {},
                                  .run = run_verify};
  return {import, eval_command(), generate_command(), tokenize, inspect_command, verify_command, bench_command()};
}

}  // namespace pare
