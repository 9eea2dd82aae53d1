#include "runtime/harness/generate_until.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "runtime/harness/loglikelihood.h"
#include "runtime/text/unicode.h"
#include "runtime/tokenizer/added_text.h"

namespace pare::runtime {
namespace {

// Reads a text as it grows, and finds where it is to end.
struct GrowingText {
  GrowingText(const Tokenizer& tokenizer, const std::vector<std::string>& until)
      : stream(tokenizer, /*skip_special_tokens=*/true), stops(until) {}
  bool ends_after(int32_t id) {
    stops.add(stream.add(id));
    return stops.found();
  }
  TextStream stream;
  StopStrings stops;
};

// The harness cuts at one string after the other.
std::string cut_at(std::string text, const std::vector<std::string>& until) {
  for (const std::string& stop : until) text = text.substr(0, text.find(stop));
  return text;
}

}  // namespace

UntilPrompts encode_contexts(const Tokenizer& tokenizer, std::span<const std::string> contexts, int64_t max_new_tokens,
                             int64_t max_tokens) {
  const int64_t room = max_tokens - max_new_tokens;
  if (room < 1) {
    throw std::invalid_argument(std::to_string(max_new_tokens) + " new tokens leave no room for a prompt in " +
                                std::to_string(max_tokens) + " tokens: ask for fewer");
  }
  UntilPrompts prompts;
  for (const std::string& context : contexts) {
    prompts.ids.push_back(encode_as_harness(tokenizer, context));
    std::vector<int32_t>& ids = prompts.ids.back();
    if (ids.empty()) {
      throw std::invalid_argument("prompt " + std::to_string(prompts.ids.size()) +
                                  " has no tokens: give at least one word");
    }
    const int64_t num_over = static_cast<int64_t>(ids.size()) - room;
    if (num_over <= 0) continue;
    ids.erase(ids.begin(), ids.begin() + num_over);
    ++prompts.num_cut;
  }
  return prompts;
}

std::vector<UntilText> generate_until(Transformer& model, const Tokenizer& tokenizer, const UntilPrompts& prompts,
                                      const UntilOptions& options,
                                      const std::function<void(int64_t, int64_t)>& progress) {
  const std::vector<int32_t> stop_ids = special_token_ids(tokenizer, options.until);
  std::vector<int32_t> ends = stop_ids;
  for (const auto& [name, content] : tokenizer.special_tokens()) {
    if (name != "eos_token") continue;
    if (const std::optional<int32_t> id = tokenizer.token_id(content)) ends.push_back(*id);
  }
  std::vector<std::shared_ptr<GrowingText>> growing;
  std::vector<GenerationRequest> requests;
  for (const std::vector<int32_t>& ids : prompts.ids) {
    const auto text = std::make_shared<GrowingText>(tokenizer, options.until);
    growing.push_back(text);
    requests.push_back({.prompt = ids,
                        .options = {.max_tokens = options.max_new_tokens,
                                    .sampling = options.sampling,
                                    .vocabulary_size = tokenizer.vocabulary_size(),
                                    .end_tokens = ends,
                                    .ends_after = [text](int32_t id) { return text->ends_after(id); }}});
    requests.back().options.sampling.seed = text_seed(options.sampling.seed, static_cast<int64_t>(requests.size()) - 1);
  }
  const auto num_texts = static_cast<int64_t>(requests.size());
  int64_t num_done = 0;
  const auto report = [&] {
    if (progress) progress(num_done, num_texts);
  };
  const auto finished = [&](size_t, const Generation&) {
    ++num_done;
    report();
  };
  std::vector<UntilText> texts;
  for (Generation& generation : generate_together(model, requests, {}, finished, report)) {
    const bool is_stop_id =
        generation.reached_end && std::find(stop_ids.begin(), stop_ids.end(), generation.end_token) != stop_ids.end();
    const std::string text = tokenizer.decode(generation.ids, /*skip_special_tokens=*/true);
    texts.push_back({.text = cut_at(utf8_with_replacements(text), options.until),
                     .ids = std::move(generation.ids),
                     .reached_end = generation.reached_end && !is_stop_id,
                     .reached_stop = generation.was_ended || is_stop_id});
  }
  return texts;
}

}  // namespace pare::runtime
