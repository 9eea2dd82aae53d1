#include "runtime/commands/generate_command.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

#include "runtime/chat/chat_template.h"
#include "runtime/commands/artifact_files.h"
#include "runtime/commands/command_parts.h"
#include "runtime/engine/chosen_sampling.h"
#include "runtime/engine/generate.h"
#include "runtime/engine/generate_together.h"
#include "runtime/engine/transformer.h"
#include "runtime/evaluate/prompts.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/input_files.h"
#include "runtime/system/json_text.h"
#include "runtime/system/memory_usage.h"
#include "runtime/system/progress.h"
#include "runtime/tokenizer/added_text.h"
#include "runtime/tokenizer/tokenizer.h"

namespace pare::runtime {
namespace {

using Clock = std::chrono::steady_clock;

// Prints a prompt and, piece by piece, what a model adds to it. Nothing appears before the first new token, so that a
// refused generation prints nothing.
class ContinuedText {
 public:
  ContinuedText(const Tokenizer& tokenizer, std::string prompt, std::span<const int32_t> ids, std::ostream& out)
      : prompt_(std::move(prompt)), out_(out), added_(tokenizer, ids) {}

  void add(int32_t id) { print(added_.add(id)); }

  // Prints the text that was held back, and the end of the line.
  void finish() {
    print(added_.finish());
    out_ << '\n' << std::flush;  // the next message on standard error gets a line of its own
  }

  // Returns all text without the prompt.
  const std::string& continuation() const { return continuation_; }

 private:
  void print(const std::string& piece) {
    out_ << std::exchange(prompt_, "") << piece << std::flush;
    continuation_ += piece;
  }

  std::string prompt_;  // empty once it is printed
  std::ostream& out_;
  AddedText added_;
  std::string continuation_;
};

// A text to continue.
struct Prompt {
  std::string text;   // as it is reported
  std::string shown;  // what is printed before the continuation; "" for a chat's
  std::vector<int32_t> ids;
};

// The two ways of generating share these.
struct Generating {
  const Arguments& arguments;
  const ModelLoader& loader;
  NamedModel& named;
  const Tokenizer& tokenizer;
  const SamplingOptions& sampling;
  GenerationOptions options;
  MemorySampler& memory;
};

void check_chat_options(const Arguments& arguments) {
  if (arguments.given("prompt") == arguments.given("prompts")) {
    throw WrongUsage(arguments.given("prompt") ? "--prompt and --prompts: give one of them"
                                               : "missing option: expected one of --prompt TEXT and --prompts FILE");
  }
  if (!arguments.flag("chat") && arguments.given("system")) throw WrongUsage("--system belongs to --chat: add it");
}

// Returns a user's turn as the model's chat template writes it.
std::string as_chat(const Arguments& arguments, const ChatTemplate& chat, const std::string& prompt) {
  return chat.render(make_chat(arguments.given("system") ? arguments.text("system") : "", prompt));
}

std::vector<Prompt> prompts_of(const Arguments& arguments, const Tokenizer& tokenizer) {
  const bool is_chat = arguments.flag("chat");
  SourceTexts texts;
  if (arguments.given("prompt")) {
    texts.texts = {arguments.text("prompt")};
  } else {
    texts = read_prompts(arguments.text("prompts"), &tokenizer);
  }
  if (is_chat && texts.are_chats) {
    throw std::invalid_argument(arguments.text("prompts") +
                                ": conversations go through the chat template by themselves: leave out --chat");
  }
  std::optional<ChatTemplate> chat;
  if (is_chat) chat = ChatTemplate::open(tokenizer);
  std::vector<Prompt> prompts;
  for (std::string& text : texts.texts) {
    const bool has_special_tokens = is_chat || texts.are_chats;
    std::vector<int32_t> ids =
        tokenizer.encode(is_chat ? as_chat(arguments, *chat, text) : text, /*add_special_tokens=*/!has_special_tokens);
    prompts.push_back({.text = text, .shown = has_special_tokens ? "" : text, .ids = std::move(ids)});
  }
  return prompts;
}

nlohmann::ordered_json json_of(const SamplingOptions& sampling) {
  return {{"temperature", sampling.temperature},
          {"top_k", sampling.top_k},
          {"top_p", sampling.top_p},
          {"min_p", sampling.min_p},
          {"repetition_penalty", sampling.repetition_penalty}};
}

nlohmann::ordered_json json_of(const Prompt& prompt, const Generation& generation, const std::string& text) {
  return {{"prompt", prompt.text},
          {"text", text},
          {"ids", generation.ids},
          {"stopped_by", generation.reached_end ? "end" : "max-tokens"},
          {"prompt_tokens", generation.prompt_tokens},
          {"tokens", generation.ids.size()}};
}

void add_zeros(const InputZeros& zeros, nlohmann::ordered_json& result, Console& console) {
  if (!zeros.is_counted()) return;
  console.progress().print(zeros_text(zeros));
  result["zero_inputs"] = zeros.zero_share();
  result["skipped_columns"] = zeros.skipped_share();
}

void say_empty(const Generation& generation, const std::string& which, Console& console) {
  if (!generation.ids.empty()) return;
  console.progress().print(which + "the model ended the text at once: its first token ends texts (id " +
                           std::to_string(generation.end_token) + "), so nothing follows the prompt");
}

void continue_one(const Generating& run, const Prompt& prompt, Console& console) {
  const Checkpoint& checkpoint = run.named.described();
  check_length(checkpoint.description(), static_cast<int64_t>(prompt.ids.size()), run.options.max_tokens);
  const auto num_tokens = static_cast<int64_t>(prompt.ids.size()) + run.options.max_tokens;
  run.loader.check_workload(checkpoint, {.num_rows = num_tokens,
                                         .num_tokens = num_tokens,
                                         .keeps_every_layer = true,
                                         .kv_bits = kv_bits(run.arguments, checkpoint.description())});
  Transformer model = run.loader.load(run.named.whole(), console);
  use_bits(run.arguments, model);
  ContinuedText stream(run.tokenizer, prompt.shown, prompt.ids, console.model_text());
  const Generation generation = generate(model, prompt.ids, run.options, [&](int32_t id) { stream.add(id); });
  stream.finish();
  say_empty(generation, "", console);
  console.progress().print(std::to_string(generation.prompt_tokens) + " prompt tokens at " +
                           format_number(generation.prefill_tokens_per_second(), 1) + " tokens/s, " +
                           std::to_string(generation.ids.size()) + " new ones" +
                           (generation.decoded_tokens == 0
                                ? std::string()
                                : " at " + format_number(generation.decode_tokens_per_second(), 1) + " tokens/s"));
  nlohmann::ordered_json result = json_of(prompt, generation, stream.continuation());
  result.update(json_of(run.sampling));
  result["prefill_tokens_per_second"] = generation.prefill_tokens_per_second();
  result["decode_tokens_per_second"] = generation.decode_tokens_per_second();
  result["peak_memory_bytes"] = run.memory.peak_bytes();
  result["activations"] = activation_mode_name(run.loader.activations());
  add_zeros(model.input_zeros(), result, console);
  console.set_result(dump(result));
}

// Prints the texts in the order of their prompts, each as soon as it and those before it have ended.
class OrderedTexts {
 public:
  OrderedTexts(std::span<const Prompt> prompts, const Tokenizer& tokenizer, Console& console)
      : prompts_(prompts), tokenizer_(tokenizer), console_(console), results_(nlohmann::ordered_json::array()) {}

  void add(size_t number, const Generation& generation) {
    ended_.emplace(number, generation);
    for (auto next = ended_.find(num_printed_); next != ended_.end(); next = ended_.find(++num_printed_)) {
      print(prompts_[num_printed_], next->second);
      ended_.erase(next);
    }
  }
  const nlohmann::ordered_json& results() const { return results_; }

 private:
  void print(const Prompt& prompt, const Generation& generation) {
    std::ostream& out = console_.model_text();
    const std::string which = std::to_string(num_printed_ + 1);
    out << "--- prompt " << which << '\n';
    ContinuedText text(tokenizer_, prompt.shown, prompt.ids, out);
    for (const int32_t id : generation.ids) text.add(id);
    text.finish();
    say_empty(generation, "prompt " + which + ": ", console_);
    results_.push_back(json_of(prompt, generation, text.continuation()));
  }

  std::span<const Prompt> prompts_;
  const Tokenizer& tokenizer_;
  Console& console_;
  std::map<size_t, Generation> ended_;  // waits for one before it
  size_t num_printed_ = 0;
  nlohmann::ordered_json results_;
};

void continue_all(const Generating& run, const std::vector<Prompt>& prompts, Console& console) {
  const Checkpoint& checkpoint = run.named.described();
  int64_t longest = 0, num_prompt_tokens = 0;
  std::vector<GenerationRequest> requests;
  for (const Prompt& prompt : prompts) {
    const auto number = static_cast<int64_t>(requests.size());
    const auto num_ids = static_cast<int64_t>(prompt.ids.size());
    try {
      check_length(checkpoint.description(), num_ids, run.options.max_tokens);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(run.arguments.text("prompts") + ": prompt " + std::to_string(number + 1) + ": " +
                                  error.what());
    }
    requests.push_back({.prompt = prompt.ids, .options = run.options});
    requests.back().options.sampling.seed = text_seed(run.sampling.seed, number);
    longest = std::max(longest, num_ids + run.options.max_tokens);
    num_prompt_tokens += num_ids;
  }
  run.loader.check_workload(checkpoint, {.num_rows = longest,
                                         .num_tokens = longest - 1,  // the last token is never fed
                                         .keeps_every_layer = true,
                                         .kv_bits = kv_bits(run.arguments, checkpoint.description()),
                                         .num_texts = static_cast<int64_t>(requests.size()),
                                         .in_lanes = true});
  Transformer model = run.loader.load(run.named.whole(), console);
  use_bits(run.arguments, model);
  OrderedTexts texts(prompts, run.tokenizer, console);
  const Clock::time_point start = Clock::now();
  LaneUse use;
  const std::vector<Generation> generations = generate_together(
      model, requests, {}, [&](size_t number, const Generation& text) { texts.add(number, text); }, {}, &use);
  const double seconds = seconds_since(start);
  size_t num_tokens = 0;
  for (const Generation& generation : generations) num_tokens += generation.ids.size();
  console.progress().print(std::to_string(prompts.size()) + " prompts of " + std::to_string(num_prompt_tokens) +
                           " tokens, " + std::to_string(num_tokens) + " new ones in " + format_number(seconds, 1) +
                           " s, at most " + std::to_string(use.most_texts) + " texts at a time");
  nlohmann::ordered_json result = {{"generations", texts.results()}};
  result.update(json_of(run.sampling));
  result["texts_at_a_time"] = use.most_texts;
  result["seconds"] = seconds;
  result["peak_memory_bytes"] = run.memory.peak_bytes();
  result["activations"] = activation_mode_name(run.loader.activations());
  add_zeros(model.input_zeros(), result, console);
  console.set_result(dump(result));
}

void run_generate(const Arguments& arguments, Console& console) {
  MemorySampler memory;
  check_chat_options(arguments);
  const ModelLoader loader(arguments, console);
  NamedModel named(arguments.positional(0), arguments.flag("verify"), "", console);
  const Checkpoint& checkpoint = named.described();
  require_listed_files(named.directory());
  const ChosenSampling chosen =
      choose_sampling(given_sampling(arguments, /*has_top_k=*/true), checkpoint.generation(),
                      /*otherwise=*/{.seed = static_cast<uint64_t>(arguments.integer("seed"))});
  for (const std::string& note : chosen.notes) console.progress().print(note);
  const Sampler possible(chosen.sampling);  // throws for options that it cannot draw with
  const Tokenizer tokenizer = Tokenizer::open(checkpoint.directory());
  const std::vector<Prompt> prompts = prompts_of(arguments, tokenizer);
  const Generating run{.arguments = arguments,
                       .loader = loader,
                       .named = named,
                       .tokenizer = tokenizer,
                       .sampling = chosen.sampling,
                       .options = {.max_tokens = arguments.integer("max-tokens"),
                                   .sampling = chosen.sampling,
                                   .vocabulary_size = tokenizer.vocabulary_size()},
                       .memory = memory};
  if (arguments.given("prompt")) {
    continue_one(run, prompts.front(), console);
  } else {
    continue_all(run, prompts, console);
  }
}

}  // namespace

// Defaults are shown from the structs that hold them.
Command generate_command() {
  const GenerationOptions defaults;
  const SamplingOptions& sampling = defaults.sampling;
  OptionSpec prompt = words("prompt", "TEXT", "the text to continue");
  prompt.may_be_empty = true;  // a model with a beginning token of its own can start from that
  std::vector<OptionSpec> options = {
      prompt,
      {.name = "prompts",
       .kind = OptionKind::text,
       .value_name = "FILE",
       .help =
           "continue each prompt of this .jsonl (field prompt, or messages of a conversation) or .json (instruction, "
           "input), several at a time; each is drawn by itself"},
      {.name = "chat",
       .help = "a prompt is a user's turn: write it as the model's chat template does, and print the answer alone"},
      words("system", "TEXT", "the system's message, before the user's turn of --chat"),
      count("max-tokens", std::to_string(defaults.max_tokens), "stop after N new tokens", 1)};
  options = joined(std::move(options), sampling_options(sampling, /*has_top_k=*/true));
  options =
      joined(std::move(options),
             {count("seed", std::to_string(sampling.seed), "seed of the draws; the same seed gives the same text", 0),
              {.name = "verify",
               .help = "first check that the files match pare.json (eval does so unless it has --no-verify)"},
              device_option(),
              kv_bits_option(KvBitsDefault::of_dtype),
              attention_bits_option(),
              activations_option()});
  options = joined(std::move(options), compute_options());
  return {
      .name = "generate",
      .summary =
          "Print a prompt and the model's continuation, greedy unless options or generation_config.json say otherwise.",
      .positionals = {kModel},
      .options = std::move(options),
      .run = run_generate};
}

}  // namespace pare::runtime
