#include "runtime/evaluate/instructions.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "runtime/system/json_text.h"
#include "runtime/system/memory_usage.h"
#include "runtime/system/progress.h"
#include "runtime/system/visible_text.h"
#include "runtime/text/unicode.h"

namespace pare::runtime {
namespace {

RougeL best_score(const std::string& text, const std::vector<std::string>& references, bool stem) {
  RougeL best;
  for (const std::string& reference : references) {
    const RougeL score = rouge_l(text, reference, stem);
    if (score.f_measure > best.f_measure) best = score;
  }
  return best;
}

int64_t count_characters(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

std::vector<double> f_measures(const InstructionEvaluation& evaluation) {
  std::vector<double> scores;
  for (const InstructionAnswer& answer : evaluation.answers) scores.push_back(answer.score.f_measure);
  return scores;
}

// A model's prompts, and the tokenizer that its answers are read with.
struct Answering {
  std::shared_ptr<const Tokenizer> tokenizer;
  InstructionPrompts prompts;
};

class InstructionsMeasurement : public Measurement {
 public:
  InstructionsMeasurement(const InstructionsOptions& options, InstructionData data, Answering own, Answering others)
      : options_(options), data_(std::move(data)), own_(std::move(own)), others_(std::move(others)) {}

  EvaluationExtent extent() const override {
    const auto num_examples = static_cast<int64_t>(data_.examples.size());
    EvaluationExtent extent = {
        .reference = options_.reference,
        .num_texts = num_examples,
        .num_new_tokens = num_examples * options_.answers.max_new_tokens,
        .workload = {.keeps_every_layer = true, .kv_bits = std::min(options_.bits.kv, options_.bits.products)},
        .in_turn = true};
    int64_t& longest = extent.workload.num_tokens;
    for (const std::vector<int32_t>& ids : own_.prompts.ids) extent.num_tokens += static_cast<int64_t>(ids.size());
    for (const Answering* answering : {&own_, &others_}) {
      for (const std::vector<int32_t>& ids : answering->prompts.ids) {
        longest = std::max(longest, static_cast<int64_t>(ids.size()) + options_.answers.max_new_tokens);
      }
    }
    extent.workload.num_rows = longest;
    return extent;
  }

  std::unique_ptr<EvaluationResult> run(EvaluatedModels& models, Progress& progress) const override {
    models.decoder().use_attention_bits(options_.bits);
    auto result = std::make_unique<InstructionEvaluation>(answers(models.decoder(), own_, progress));
    if (!options_.reference) return result;
    models.release_model();
    result->comparison = compare_instructions(*result, answers(models.reference_decoder(), others_, progress));
    return result;
  }

 private:
  InstructionEvaluation answers(Transformer& model, const Answering& answering, Progress& progress) const {
    return evaluate_instructions(model, *answering.tokenizer, data_, answering.prompts, options_.answers,
                                 stage_of(progress, "evaluate", "examples"));
  }

  InstructionsOptions options_;
  InstructionData data_;
  Answering own_, others_;
};

}  // namespace

InstructionPrompts make_prompts(const InstructionData& data, const AnswerOptions& options, const Tokenizer& tokenizer,
                                const ModelDescription& model) {
  const Sampler possible({.temperature = options.temperature});  // throws for options that it cannot draw with
  InstructionPrompts prompts;
  prompts.end_tokens = end_tokens(options.prompt_template, tokenizer);
  prompts.vocabulary_size = tokenizer.vocabulary_size();
  for (const InstructionExample& example : data.examples) {
    prompts.ids.push_back(tokenizer.encode(make_prompt(example, options.prompt_template), true));
    try {
      check_length(model, static_cast<int64_t>(prompts.ids.back().size()), options.max_new_tokens);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(data.source + ", example " + std::to_string(prompts.ids.size()) + ": " +
                                  error.what());
    }
  }
  return prompts;
}

InstructionEvaluation evaluate_instructions(Transformer& model, const Tokenizer& tokenizer, const InstructionData& data,
                                            const InstructionPrompts& prompts, const AnswerOptions& options,
                                            const std::function<void(int64_t, int64_t)>& progress) {
  if (data.examples.empty() || prompts.ids.size() != data.examples.size()) {
    throw std::invalid_argument(data.source + ": expected as many prompts as examples and at least one, found " +
                                std::to_string(prompts.ids.size()) + " and " + std::to_string(data.examples.size()));
  }
  MemorySampler memory;
  InstructionEvaluation result;
  result.source = data.source;
  result.options = options;
  const auto start = std::chrono::steady_clock::now();
  const auto num_examples = static_cast<int64_t>(data.examples.size());
  if (progress) progress(0, num_examples);
  RandomNumbers seeds(options.seed);
  for (size_t n = 0; n < data.examples.size(); ++n) {
    const Generation generation = generate(model, prompts.ids[n],
                                           {.max_tokens = options.max_new_tokens,
                                            .sampling = {.temperature = options.temperature, .seed = seeds.next()},
                                            .vocabulary_size = prompts.vocabulary_size,
                                            .end_tokens = prompts.end_tokens});
    InstructionAnswer answer;
    answer.text = utf8_with_replacements(tokenizer.decode(generation.ids, /*skip_special_tokens=*/true));
    answer.num_tokens = static_cast<int64_t>(generation.ids.size());
    answer.reached_end = generation.reached_end;
    answer.score = best_score(answer.text, data.examples[n].references, options.stem);
    result.prompt_tokens += generation.prompt_tokens;
    result.new_tokens += answer.num_tokens;
    result.ended += (answer.reached_end ? 1.0 : 0.0) / static_cast<double>(num_examples);
    result.answers.push_back(std::move(answer));
    if (progress) progress(static_cast<int64_t>(n) + 1, num_examples);
  }
  result.seconds = seconds_since(start);
  result.rouge_l = estimate_over_windows(f_measures(result));
  result.peak_memory_bytes = memory.peak_bytes();
  return result;
}

InstructionComparison compare_instructions(const InstructionEvaluation& model, const InstructionEvaluation& reference) {
  if (model.source != reference.source || model.answers.size() != reference.answers.size()) {
    throw std::invalid_argument("the model answered " + std::to_string(model.answers.size()) + " examples of " +
                                model.source + ", the reference " + std::to_string(reference.answers.size()) + " of " +
                                reference.source + ": they cannot be compared");
  }
  std::vector<double> differences = f_measures(model);
  const std::vector<double> subtracted = f_measures(reference);
  for (size_t n = 0; n < differences.size(); ++n) differences[n] -= subtracted[n];
  return {.reference_rouge_l = reference.rouge_l, .difference = estimate_over_windows(differences)};
}

std::string InstructionEvaluation::to_json() const {
  using Json = nlohmann::ordered_json;
  Json json;
  const auto put = [&](const std::string& name, const Estimate& estimate, const std::string& error_name) {
    json[name] = estimate.value;
    json[error_name] = estimate.standard_error ? Json(*estimate.standard_error) : nullptr;
  };
  put("rouge_l", rouge_l, "standard_error");
  if (comparison) {
    put("reference_rouge_l", comparison->reference_rouge_l, "reference_standard_error");
    put("difference", comparison->difference, "difference_standard_error");
  }
  json["source"] = source;
  json["examples"] = answers.size();
  json["prompt_template"] = name_of(options.prompt_template);
  json["stem"] = options.stem;
  json["max_new_tokens"] = options.max_new_tokens;
  json["temperature"] = options.temperature;
  json["seed"] = options.seed;
  json["ended"] = ended;
  json["prompt_tokens"] = prompt_tokens;
  json["new_tokens"] = new_tokens;
  json["scores"] = Json::array();
  for (const InstructionAnswer& answer : answers) {
    Json item = {{"rouge_l", answer.score.f_measure},
                 {"precision", answer.score.precision},
                 {"recall", answer.score.recall},
                 {"tokens", answer.num_tokens},
                 {"characters", count_characters(answer.text)},
                 {"ended", answer.reached_end}};
    if (options.show) item["text"] = answer.text;
    json["scores"].push_back(std::move(item));
  }
  json["seconds"] = seconds;
  json["tokens_per_second"] = tokens_per_second();
  json["peak_memory_bytes"] = peak_memory_bytes;
  return json_text(json);
}

std::vector<Figure> InstructionEvaluation::figures() const {
  std::vector<Figure> all = {{"rouge_l", "Rouge-L of the answers", rouge_l.value, rouge_l.standard_error}};
  if (!comparison) return all;
  all.front().reference = comparison->reference_rouge_l.value;
  all.push_back({"difference", "Rouge-L minus the original's", comparison->difference.value,
                 comparison->difference.standard_error});
  return all;
}

std::string InstructionEvaluation::to_text() const {
  std::ostringstream text;
  for (size_t n = 0; options.show && n < answers.size(); ++n) {
    const InstructionAnswer& answer = answers[n];
    text << "--- example " << n + 1 << ", Rouge-L " << format_number(answer.score.f_measure, 4) << ", "
         << answer.num_tokens << " tokens" << (answer.reached_end ? "" : ", cut off") << '\n'
         << answer.text << '\n';
  }
  text << "instructions          " << visible_line(source) << ", " << answers.size() << " examples, prompt "
       << name_of(options.prompt_template) << ", up to " << options.max_new_tokens << " new tokens, "
       << (options.temperature == 0.0
               ? std::string("greedy")
               : "temperature " + format_number(options.temperature, 2) + ", seed " + std::to_string(options.seed))
       << '\n'
       << "Rouge-L               " << with_error(rouge_l, 4) << (options.stem ? "" : ", words not stemmed") << '\n';
  if (comparison) {
    text << "reference's           " << with_error(comparison->reference_rouge_l, 4) << '\n'
         << "difference            " << with_error(comparison->difference, 4) << " (paired)\n";
  }
  text << "answers               " << format_number(100.0 * ended, 1) << " % ended by themselves, " << new_tokens
       << " new tokens\n"
       << "speed                 " << format_number(tokens_per_second(), 1) << " new tokens/s, "
       << format_duration(seconds) << '\n'
       << "peak memory           " << format_bytes(peak_memory_bytes) << '\n';
  return text.str();
}

void InstructionsOptions::fields(FieldVisitor& visit) {
  visit("file", data,
        "The model answers the instructions of this file, a `.json` or a `.jsonl`. Rouge-L compares the answers.");
  visit("examples", num_examples, {.low = 0, .high = 1 << 30},
        "This many instructions are asked, from the first on. 0 asks all.");
  visit("max_new_tokens", answers.max_new_tokens, {.low = 1, .high = 1 << 20},
        "An answer has at most this many tokens.");
  visit("temperature", answers.temperature, {.low = 0.0, .high = 1e6},
        "Logits are divided by this before a token is drawn. 0 always takes the most probable token.");
  visit("seed", answers.seed, {.low = 0}, "Tokens are drawn with this seed.");
  visit("prompt_template", answers.prompt_template,
        "The instructions are given as they are, in the words of Stanford Alpaca, or in the tokens of ChatML.");
  visit("stem", answers.stem, "Words are compared by their stems, as Google's rouge_score does.");
  visit("show", answers.show, "The answers are shown, and stand in the report.");
  visit_bits(visit, bits);
  visit("reference", reference, "The uncompressed model answers as well, and is compared with.");
}

std::string InstructionsOptions::help(std::string_view key) const {
  static const std::map<std::string_view, std::string_view> kHelp = {
      {"file",
       "measure Rouge-L of a decoder's answers on this .json or .jsonl of instruction, input and output (Alpaca, "
       "Dolly, Self-Instruct); each answer is compared with its output"},
      {"examples", "the first N examples, or all with 0"},
      {"max_new_tokens", "most tokens of an answer"},
      {"temperature", "as in generate; 0 is greedy"},
      {"seed", "seed of the draws"},
      {"prompt_template", "prompt template"},
      {"stem", "compare words as they are, not their stems"},
      {"show", "show the answers too"}};
  const auto found = kHelp.find(key);
  return found == kHelp.end() ? "" : std::string(found->second);
}

std::unique_ptr<Measurement> InstructionsOptions::read(EvaluationSource& source) const {
  InstructionData examples = read_instructions(data, num_examples);
  const std::shared_ptr<const Tokenizer> tokenizer = source.tokenizer();
  Answering own{tokenizer, make_prompts(examples, answers, *tokenizer, source.model.description())};
  Answering others = own;
  if (source.other != nullptr) {  // texts are compared, so it may have another tokenizer
    others.tokenizer = std::make_shared<const Tokenizer>(Tokenizer::open(source.other->directory()));
    others.prompts = make_prompts(examples, answers, *others.tokenizer, source.other->description());
  }
  return std::make_unique<InstructionsMeasurement>(*this, std::move(examples), std::move(own), std::move(others));
}

EvaluationRow instructions_row() {
  return {.key = "instructions",
          .data_key = "file",
          .option = "instructions",
          .kind = EvaluatedKind::decoder,
          .subject = "answers to instructions",
          .meaning = "This measures a decoder's answers to instructions.",
          .make_options = [] { return std::make_unique<InstructionsOptions>(); }};
}

}  // namespace pare::runtime
