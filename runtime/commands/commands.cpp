#include "runtime/commands/commands.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <utility>

#include "runtime/chat/chat_template.h"
#include "runtime/commands/artifact_files.h"
#include "runtime/commands/bench.h"
#include "runtime/commands/command_parts.h"
#include "runtime/commands/doctor_command.h"
#include "runtime/commands/eval_command.h"
#include "runtime/commands/generate_command.h"
#include "runtime/commands/inspect.h"
#include "runtime/commands/verify.h"
#include "runtime/engine/chosen_sampling.h"
#include "runtime/engine/generate.h"
#include "runtime/engine/transformer.h"
#include "runtime/evaluate/token_source.h"
#include "runtime/evaluate/windows_tokenizer.h"
#include "runtime/import/import.h"
#include "runtime/import/model_directory.h"
#include "runtime/model/checkpoint.h"
#include "runtime/model/mistaken_path.h"
#include "runtime/system/input_files.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/json_text.h"
#include "runtime/system/memory_usage.h"
#include "runtime/system/partial_output.h"
#include "runtime/system/private_files.h"
#include "runtime/system/progress.h"
#include "runtime/system/visible_text.h"
#include "runtime/tokenizer/added_text.h"
#include "runtime/tokenizer/tokenizer.h"
#include "runtime/tokenizer/tokenizer_hash.h"

namespace pare::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kDtypeOfSource = "source";
constexpr int64_t kWindowTokens = 512;  // for tokenize --windows

void run_import(const Arguments& arguments, Console& console) {
  const std::filesystem::path source = arguments.positional(0), output = output_place(arguments.positional(1));
  const Clock::time_point start = Clock::now();
  refuse_output_in_artifact(output);
  ImportOptions options;
  if (arguments.given("tokenizer")) options.tokenizer = arguments.text("tokenizer");
  keep_as_private_as(import_inputs(source, options), output);
  if (const std::string dtype = arguments.text("dtype"); dtype != kDtypeOfSource) {
    options.dtype = parse_dtype_name(dtype);
  }
  options.progress = stage(console, "import", "tensors");
  import_model(source, output, options);
  const Inspection written = inspect(output);
  console.report() << visible_line(output.string()) << '\n' << to_text(written, false);
  console.set_result(dump({{"output", output.string()},
                           {"bytes", written.num_bytes},
                           {"parameters", written.sizes->all_parameters},
                           {"seconds", seconds_since(start)}}));
}

// Opens the tokenizer of a model. Other files of the model need not be there.
Tokenizer open_tokenizer(const std::filesystem::path& named) {
  const std::filesystem::path model = stored_model(named);
  if (!is_there(model / "tokenizer.json")) refuse_mistaken_model(model);
  if (model.extension() != ".gguf") {
    require_listed_files(std::filesystem::is_directory(model) ? model : model.parent_path());
  }
  return Tokenizer::open(model);
}

// Writes windows to a .npy for other runs and tools, with the hash of the tokenizer beside it. If `text` holds windows
// already, they are taken as they are: the user vouches for them.
void write_token_windows(const Arguments& arguments, Console& console) {
  const std::filesystem::path model = arguments.positional(0), text = arguments.text("text");
  const std::filesystem::path output = output_place(arguments.text("windows"));
  if (!holds_token_windows(output)) {
    throw WrongUsage("--windows " + output.string() + ": expected the name of a .npy file");
  }
  for (const std::filesystem::path& path : {output, windows_tokenizer_file(output)}) {
    if (is_there(path)) throw std::runtime_error("output '" + path.string() + "' exists: remove it or choose another");
  }
  const bool is_cut = holds_token_windows(text);
  if (is_cut && arguments.given("tokens")) {
    throw WrongUsage("--tokens: the windows of '" + text.string() + "' are used as they are: leave it out");
  }
  refuse_output_in_artifact(output);
  refuse_output_inside(output, model);
  keep_as_private_as({model, text}, output);
  const Tokenizer tokenizer = open_tokenizer(model);
  const TokenWindows windows =
      read_token_windows(text, &tokenizer, arguments.given("tokens") ? arguments.integer("tokens") : kWindowTokens,
                         /*num_windows=*/0, !arguments.flag("no-special-tokens"), tokenizer.vocabulary_size());
  const std::string hash = tokenizer_hash(model);
  write_windows(output, windows, hash);
  console.report() << visible_line(output.string()) << ": " << windows.num_windows << " windows of "
                   << windows.num_tokens << " tokens, tokenizer " << hash << '\n';
  console.set_result(dump({{"output", output.string()},
                           {"windows", windows.num_windows},
                           {"tokens", windows.num_tokens},
                           {"tokenizer", hash}}));
}

void run_tokenize(const Arguments& arguments, Console& console) {
  if (arguments.given("windows")) return write_token_windows(arguments, console);
  if (arguments.given("tokens")) throw WrongUsage("--tokens belongs to --windows: leave it out");
  const Tokenizer tokenizer = open_tokenizer(arguments.positional(0));
  const SourceTexts source = read_source_texts(arguments.text("text"), tokenizer);
  size_t num_bytes = 0;
  for (const std::string& text : source.texts) num_bytes += text.size();
  const Clock::time_point start = Clock::now();
  const std::vector<int32_t> ids = encode_stream(source, tokenizer, !arguments.flag("no-special-tokens"));
  const double seconds = seconds_since(start);
  std::string line;
  for (const int32_t id : ids) line += (line.empty() ? "" : " ") + std::to_string(id);
  console.report() << line << '\n';
  // The ids do not go through a JSON value, which takes many times the memory for millions of them.
  std::replace(line.begin(), line.end(), ' ', ',');
  std::string json = dump({{"tokens", ids.size()}, {"bytes", num_bytes}, {"seconds", seconds}});
  json.pop_back();
  console.set_result(json + ",\"ids\":[" + line + "]}");
}

void run_inspect(const Arguments& arguments, Console& console) {
  Inspection inspection = inspect(arguments.positional(0));
  inspection.engines = judge(arguments.positional(0));
  console.report() << to_text(inspection, arguments.flag("tensors"));
  console.set_result(to_json(inspection));
  for (const LayerSparsity& layer : inspection.sparsity) {
    if (!layer.problem.empty()) throw std::runtime_error(arguments.positional(0) + ": " + layer.problem);
  }
}

void run_verify(const Arguments& arguments, Console& console) {
  const std::string& directory = arguments.positional(0);
  if (stored_model(directory) == directory) refuse_mistaken_model(directory);
  const Verification verification = verify(directory, stage(console, "verify", "items"));
  if (!verification.problems.empty()) {
    throw ErrorOfLines(damage_lines(directory, verification.problems));
  }
  const std::string decoded = std::to_string(verification.num_linears) + " weights decoded, ";
  if (verification.has_manifest) {
    console.report() << visible_line(directory) << ": whole; " << decoded << verification.num_files
                     << " checksums right\n";
  } else {
    console.report() << visible_line(directory) << ": can be read; " << decoded
                     << "but there is no pare.json with checksums to compare the files with\n";
  }
  for (const std::string& name : verification.unchecked) {
    console.report() << "not checked: " << visible_line(name)
                     << " (written by an earlier version, without a checksum of its own)\n";
  }
  console.set_result(to_json(verification));
}

void run_bench(const Arguments& arguments, Console& console) {
  MemorySampler memory;
  const BenchOptions options = {.prefill_tokens = arguments.integer("prefill-tokens"),
                                .decode_tokens = arguments.integer("decode-tokens"),
                                .batch = arguments.integer("batch"),
                                .repetitions = arguments.integer("repetitions")};
  const ModelLoader loader(arguments, console);
  const ModelDirectory directory(arguments.positional(0));
  const Checkpoint checkpoint = Checkpoint::open(directory.path());
  loader.check_workload(checkpoint, bench_workload(checkpoint.description(), loader.options(), options,
                                                   kv_bits(arguments, checkpoint.description())));
  Transformer model = loader.load(checkpoint, console);
  use_bits(arguments, model);
  BenchResult result = bench(model, loader.options(), options, stage(console, "bench", "repetitions"));
  result.peak_memory_bytes = memory.peak_bytes();
  result.activations = activation_mode_name(loader.activations());
  console.report() << to_text(result);
  console.set_result(to_json(result));
}

Command bench_command() {
  const BenchOptions defaults;
  OptionSpec batch =
      count("batch", std::to_string(defaults.batch), "texts decoded together; their tokens per second are added up", 1);
  batch.maximum = BenchOptions::kMostBatch;
  return {
      .name = "bench",
      .summary =
          "Measure the speed of prefill and decode, and their share of what this machine's cores and memory can do.",
      .positionals = {kModel},
      .options = joined(
          {count("prefill-tokens", std::to_string(defaults.prefill_tokens), "length of the prompt", 1),
           count("decode-tokens", std::to_string(defaults.decode_tokens), "tokens decoded one by one", 1), batch,
           count("repetitions", std::to_string(defaults.repetitions),
                 "number of measurements; best and median are shown", 1),
           device_option(), kv_bits_option(KvBitsDefault::of_dtype), attention_bits_option(), activations_option()},
          compute_options()),
      .run = run_bench};
}

}  // namespace

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
                   .default_value = kDtypeOfSource,
                   .help = "type of the weights written; source: that of each weight of a .gguf in floats, else "
                           "bfloat16",
                   .choices = {kDtypeOfSource, "bfloat16", "float16", "float32"}}},
      .run = run_import};
  const Command tokenize = {
      .name = "tokenize",
      .summary =
          "Print the token ids of a text on one line, or write them in windows for calibration, training and "
          "evaluation.",
      .positionals = {{"MODEL", "a checkpoint directory, a tokenizer.json or a .gguf file (its vocabulary is enough)"}},
      .options =
          {required_text(
               "text", "FILE",
               "a text in UTF-8, - for standard input, or .jsonl (field text or messages); with --windows also .npy, "
               "taken as it is"),
           {.name = "windows",
            .kind = OptionKind::text,
            .value_name = "OUT.npy",
            .help = "write the ids to this file instead, in consecutive windows without the incomplete last one; "
                    "OUT.npy.json beside it names the tokenizer, and a model with another one refuses the windows"},
           count("tokens", "", "tokens per window (default: " + std::to_string(kWindowTokens) + ")", 1),
           {.name = "no-special-tokens",
            .help = "leave out what the tokenizer puts around a text, such as a leading BOS"}},
      .run = run_tokenize};
  const Command inspect_command = {
      .name = "inspect",
      .summary =
          "Show what a path holds: architecture, sizes, bits per weight, zeros of pruned layers, tensors; who loads "
          "it.",
      .positionals = {{"PATH", "a checkpoint directory, or a .safetensors, .gguf or .npy file"}},
      .options = {{.name = "tensors", .help = "list every tensor (--json always does)"}},
      .run = run_inspect};
  const Command verify_command = {
      .name = "verify",
      .summary =
          "Check that a checkpoint is whole: the checksums of all its files match, and every "
          "weight decodes. The exit status is 1 if not.",
      .positionals = {{"DIR", "directory of a checkpoint"}},
      .options = {},
      .run = run_verify};
  return {import,          eval_command(), generate_command(), tokenize,
          inspect_command, verify_command, doctor_command(),   bench_command()};
}

}  // namespace pare::runtime
