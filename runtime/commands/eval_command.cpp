#include "runtime/commands/eval_command.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "runtime/commands/command_parts.h"
#include "runtime/evaluate/evaluate.h"
#include "runtime/evaluate/evaluate_embeddings.h"
#include "runtime/evaluate/evaluate_instructions.h"
#include "runtime/evaluate/token_source.h"
#include "runtime/evaluate/windows_tokenizer.h"
#include "runtime/import/model_directory.h"
#include "runtime/system/memory_usage.h"
#include "runtime/tokenizer/tokenizer.h"

namespace pare {
namespace {

// Both models must cut the text into the same tokens. Otherwise their figures measure different things.
void check_same_tokens(const ScoredWindows& data, const std::filesystem::path& text, const Checkpoint& reference,
                       const EvaluationOptions& options) {
  if (holds_token_windows(text)) return;
  const Tokenizer tokenizer = Tokenizer::open(reference.directory());
  EvaluationOptions same = options;
  same.context = data.windows.num_tokens;
  if (make_scored_windows(text, &tokenizer, reference.description(), same).windows.ids_NT != data.windows.ids_NT) {
    throw std::invalid_argument(reference.directory().string() +
                                ": its tokenizer gives different tokens than the model's: they cannot be compared");
  }
}

// One form of eval: the option that asks for it, and the options that it has besides --reference. Options of other
// forms have no meaning for it.
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

// Returns the form that is asked for. Throws WrongUsage if there is none, and for options of another form.
std::string eval_form(const Arguments& arguments) {
  const EvalForm* chosen = nullptr;
  for (const EvalForm& form : eval_forms()) {
    if (chosen == nullptr && arguments.given(form.option)) chosen = &form;
  }
  if (chosen == nullptr) {
    throw WrongUsage(
        "missing option: expected one of --text FILE, --instructions FILE and --pairs FILE (for an encoder)");
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
      if (option == form.option) {
        throw WrongUsage("--" + chosen->option + " " + chosen->measures + ", and --" + option + " " + form.measures +
                         ": give one of them, and run eval once for each");
      }
      throw WrongUsage("--" + chosen->option + " " + chosen->measures + ", and --" + option + " belongs to --" +
                       form.option + ", which " + form.measures + ": leave one out");
    }
  }
  return chosen->option;
}

void check_evaluated(const Arguments& arguments, const std::filesystem::path& directory, Console& console) {
  if (!arguments.flag("no-verify")) check_files_of(directory, ", or use it as it is with --no-verify", console);
}

// Evaluates an encoder: its embeddings of the texts of --pairs.
void run_eval_pairs(const Arguments& arguments, Console& console) {
  MemorySampler memory;
  const ModelLoader loader(arguments);
  check_evaluated(arguments, arguments.positional(0), console);
  const Checkpoint checkpoint = Checkpoint::open(arguments.positional(0));
  const Pooling pooling = read_pooling(checkpoint.directory(), checkpoint.encoder());
  const TextPairs data =
      read_text_pairs(arguments.text("pairs"), Tokenizer::open(checkpoint.directory()), pooling.max_tokens);
  std::optional<Checkpoint> reference_checkpoint;
  std::optional<Encoder> reference;
  std::vector<const Checkpoint*> checkpoints = {&checkpoint};
  if (arguments.given("reference")) {
    check_evaluated(arguments, arguments.text("reference"), console);
    reference_checkpoint = Checkpoint::open(arguments.text("reference"));
    check_comparable(checkpoint, *reference_checkpoint, data);
    checkpoints.push_back(&*reference_checkpoint);
  }
  loader.check_encoder_memory(checkpoints, std::max(Encoder::kBatchRows, checkpoint.encoder().context_length));
  if (reference_checkpoint) reference = loader.load_encoder(*reference_checkpoint, console);
  Encoder model = loader.load_encoder(checkpoint, console);
  EmbeddingEvaluation evaluation =
      evaluate_embeddings(model, reference ? &*reference : nullptr, data, pooling, stage(console, "evaluate", "texts"));
  evaluation.peak_memory_bytes = memory.peak_bytes();
  console.report() << to_text(evaluation);
  console.set_result(to_json(evaluation));
}

// Evaluates a decoder: its answers to --instructions. Texts are compared, so the reference may have another tokenizer.
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
  const ModelLoader loader(arguments);
  std::vector<std::unique_ptr<Answerer>> answerers;
  answerers.push_back(std::make_unique<Answerer>(arguments.positional(0), arguments, console));
  if (arguments.given("reference")) {
    answerers.push_back(std::make_unique<Answerer>(arguments.text("reference"), arguments, console));
  }
  for (const auto& answerer : answerers) {
    answerer->prompts = make_prompts(data, options, answerer->tokenizer, answerer->checkpoint.description());
  }
  std::vector<InstructionEvaluation> evaluations;
  for (const auto& answerer : answerers) {  // one after the other, so that only one model is held
    int64_t num_tokens = 0;
    for (const std::vector<int32_t>& ids : answerer->prompts.ids) {
      num_tokens = std::max(num_tokens, static_cast<int64_t>(ids.size()) + options.max_new_tokens);
    }
    const Checkpoint* const checkpoint = &answerer->checkpoint;
    loader.check_memory({&checkpoint, 1}, {.num_rows = num_tokens,
                                           .num_tokens = num_tokens,
                                           .keeps_every_layer = true,
                                           .kv_bits = evaluations.empty() ? kv_bits(arguments) : kKvFloatBits});
    Transformer model = loader.load(answerer->checkpoint, console);
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

  const ModelLoader loader(arguments);
  const ModelDirectory directory(arguments.positional(0));
  check_evaluated(arguments, directory.path(), console);
  const Checkpoint checkpoint = Checkpoint::open(directory.path());
  std::vector<std::string> events;
  check_windows_tokenizers({text}, checkpoint.directory(), events);
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
    std::vector<std::string> of_reference;  // what was said of the model's windows is not repeated
    check_windows_tokenizers({text}, reference_checkpoint->directory(), of_reference);
  }
  std::vector<const Checkpoint*> checkpoints = {&checkpoint};
  if (reference_checkpoint) checkpoints.push_back(&*reference_checkpoint);
  const int64_t num_rows = std::max(data.windows.num_tokens, Transformer::kBatchRows);
  loader.check_memory(checkpoints, {.num_rows = num_rows, .num_tokens = num_rows, .kv_bits = kv_bits(arguments)});
  if (reference_checkpoint) reference = loader.load(*reference_checkpoint, console);
  Transformer model = loader.load(checkpoint, console);
  use_bits(arguments, model);

  Evaluation evaluation =
      evaluate(model, data, reference ? &*reference : nullptr, stage(console, "evaluate", "windows"));
  evaluation.events = events;
  evaluation.peak_memory_bytes = memory.peak_bytes();
  console.report() << to_text(evaluation);
  console.set_result(to_json(evaluation));
}

// Returns the options of eval --instructions. Options without a default here take that of InstructionOptions.
std::vector<OptionSpec> instruction_options() {
  const InstructionOptions defaults;
  std::vector<std::string> templates;
  for (const PromptTemplate prompt_template : kPromptTemplates) {
    templates.emplace_back(prompt_template_name(prompt_template));
  }
  return {
      {.name = "instructions",
       .kind = OptionKind::text,
       .value_name = "FILE",
       .help = "measure Rouge-L of a decoder's answers on this .json or .jsonl of instruction, input and output "
               "(Alpaca, Dolly, Self-Instruct); each answer is compared with its output"},
      count("examples", "", "with --instructions: the first N examples (default: all)", 1),
      count("max-new-tokens", "",
            "with --instructions: most tokens of an answer (default: " + std::to_string(defaults.max_new_tokens) + ")",
            1),
      number("temperature", "", "with --instructions: as in generate (default: 0, greedy)"),
      count("seed", "", "with --instructions: seed of the draws (default: " + std::to_string(defaults.seed) + ")", 0),
      {.name = "prompt-template",
       .kind = OptionKind::text,
       .value_name = "NAME",
       .help = "prompt template of --instructions (default: " +
               std::string(prompt_template_name(defaults.prompt_template)) + ")",
       .choices = templates},
      {.name = "no-stem", .help = "with --instructions: compare words as they are, not their stems"},
      {.name = "show", .help = "with --instructions: show the answers too"}};
}

}  // namespace

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
          "Measure perplexity on a text, answers to instructions or embeddings of pairs of texts, and the distance "
          "from a reference model.",
      .positionals = {kModel},
      .options = joined(
          joined(
              {{.name = "text",
                .kind = OptionKind::text,
                .value_name = "FILE",
                .help = "measure the perplexity of a decoder on this text: UTF-8 (- for standard input), .jsonl (field "
                        "text) or .npy (token ids [N, T], used as they are)"},
               {.name = "pairs",
                .kind = OptionKind::text,
                .value_name = "FILE",
                .help = "measure the embeddings of an encoder on this .tsv, which has two texts and perhaps a score on "
                        "each line: compare them with --reference (cosine similarity, rank correlation) and with the "
                        "scores"},
               {.name = "protocol",
                .kind = OptionKind::text,
                .value_name = "NAME",
                .default_value = std::string(protocol_name(EvaluationOptions{}.protocol)),
                .help = "how the text is cut and scored",
                .choices = protocols},
               count("context", "",
                     "tokens per window (default: " + contexts + ", at most the model's context; a .npy has its own)",
                     2),
               count("windows", "", "score the first N windows (default: all)", 1),
               {.name = "reference",
                .kind = OptionKind::text,
                .value_name = "MODEL",
                .help = "also load this model, usually the uncompressed one, and compare token by token, or answer by "
                        "answer (its keys and values stay float32)"},
               {.name = "no-verify",
                .help = "do not check first that the files match pare.json; damaged models are read too"},
               device_option(),
               kv_bits_option(),
               attention_bits_option()},
              instruction_options()),
          compute_options()),
      .run = run_eval};
}

}  // namespace pare
