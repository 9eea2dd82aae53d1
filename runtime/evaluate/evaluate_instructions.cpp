#include "runtime/evaluate/evaluate_instructions.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

#include "runtime/system/json_text.h"
#include "runtime/system/memory_usage.h"
#include "runtime/system/progress.h"
#include "runtime/system/visible_text.h"
#include "runtime/tokenizer/unicode.h"

namespace pare {
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

std::string with_error(const Estimate& estimate) {
  const std::string value = format_number(estimate.value, 4);
  return estimate.standard_error ? value + " +- " + format_number(*estimate.standard_error, 4) : value;
}

}  // namespace

InstructionPrompts make_prompts(const InstructionData& data, const InstructionOptions& options,
                                const Tokenizer& tokenizer, const ModelDescription& model) {
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
                                            const InstructionPrompts& prompts, const InstructionOptions& options,
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

std::string to_json(const InstructionEvaluation& evaluation, bool with_texts) {
  using Json = nlohmann::ordered_json;
  Json json;
  const auto put = [&](const std::string& name, const Estimate& estimate, const std::string& error_name) {
    json[name] = estimate.value;
    json[error_name] = estimate.standard_error ? Json(*estimate.standard_error) : nullptr;
  };
  put("rouge_l", evaluation.rouge_l, "standard_error");
  if (evaluation.comparison) {
    put("reference_rouge_l", evaluation.comparison->reference_rouge_l, "reference_standard_error");
    put("difference", evaluation.comparison->difference, "difference_standard_error");
  }
  const InstructionOptions& options = evaluation.options;
  json["source"] = evaluation.source;
  json["examples"] = evaluation.answers.size();
  json["prompt_template"] = prompt_template_name(options.prompt_template);
  json["stem"] = options.stem;
  json["max_new_tokens"] = options.max_new_tokens;
  json["temperature"] = options.temperature;
  json["seed"] = options.seed;
  json["ended"] = evaluation.ended;
  json["prompt_tokens"] = evaluation.prompt_tokens;
  json["new_tokens"] = evaluation.new_tokens;
  json["scores"] = Json::array();
  for (const InstructionAnswer& answer : evaluation.answers) {
    Json item = {{"rouge_l", answer.score.f_measure},
                 {"precision", answer.score.precision},
                 {"recall", answer.score.recall},
                 {"tokens", answer.num_tokens},
                 {"characters", count_characters(answer.text)},
                 {"ended", answer.reached_end}};
    if (with_texts) item["text"] = answer.text;
    json["scores"].push_back(std::move(item));
  }
  json["seconds"] = evaluation.seconds;
  json["tokens_per_second"] = evaluation.tokens_per_second();
  json["peak_memory_bytes"] = evaluation.peak_memory_bytes;
  return json_text(json);
}

std::string to_text(const InstructionEvaluation& evaluation, bool with_texts) {
  std::ostringstream text;
  for (size_t n = 0; with_texts && n < evaluation.answers.size(); ++n) {
    const InstructionAnswer& answer = evaluation.answers[n];
    text << "--- example " << n + 1 << ", Rouge-L " << format_number(answer.score.f_measure, 4) << ", "
         << answer.num_tokens << " tokens" << (answer.reached_end ? "" : ", cut off") << '\n'
         << answer.text << '\n';
  }
  const InstructionOptions& options = evaluation.options;
  text << "instructions          " << visible_line(evaluation.source) << ", " << evaluation.answers.size()
       << " examples, prompt " << prompt_template_name(options.prompt_template) << ", up to " << options.max_new_tokens
       << " new tokens, "
       << (options.temperature == 0.0
               ? std::string("greedy")
               : "temperature " + format_number(options.temperature, 2) + ", seed " + std::to_string(options.seed))
       << '\n'
       << "Rouge-L               " << with_error(evaluation.rouge_l) << (options.stem ? "" : ", words not stemmed")
       << '\n';
  if (evaluation.comparison) {
    text << "reference's           " << with_error(evaluation.comparison->reference_rouge_l) << '\n'
         << "difference            " << with_error(evaluation.comparison->difference) << " (paired)\n";
  }
  text << "answers               " << format_number(100.0 * evaluation.ended, 1) << " % ended by themselves, "
       << evaluation.new_tokens << " new tokens\n"
       << "speed                 " << format_number(evaluation.tokens_per_second(), 1) << " new tokens/s, "
       << format_duration(evaluation.seconds) << '\n'
       << "peak memory           " << format_bytes(evaluation.peak_memory_bytes) << '\n';
  return text.str();
}

}  // namespace pare
