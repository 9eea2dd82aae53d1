#include "runtime/api/pare.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <optional>
#include <stdexcept>
#include <utility>

#include "runtime/chat/chat_template.h"
#include "runtime/commands/artifact_files.h"
#include "runtime/device/make_backend.h"
#include "runtime/engine/generate.h"
#include "runtime/engine/memory_need.h"
#include "runtime/engine/transformer.h"
#include "runtime/harness/generate_until.h"
#include "runtime/harness/loglikelihood.h"
#include "runtime/import/model_directory.h"
#include "runtime/machine/limits.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/version.h"
#include "runtime/tokenizer/added_text.h"
#include "runtime/tokenizer/tokenizer.h"

namespace pare {
namespace {

constexpr int64_t kDefaultMaxTokens = 2048;
// The predictions whose logits are computed at once, as in evaluate(). Rows do not depend on one another.
constexpr int64_t kScoredRows = 512;

void check_options(const LoadOptions& options) {
  if (options.num_threads < 0) {
    throw std::invalid_argument("num_threads " + std::to_string(options.num_threads) +
                                ": expected at least 1, or 0 for as many as the process may use");
  }
  if (std::find(std::begin(runtime::kKvBits), std::end(runtime::kKvBits), options.kv_bits) ==
      std::end(runtime::kKvBits)) {
    throw std::invalid_argument("kv_bits " + std::to_string(options.kv_bits) + ": expected 32, 16 or 8");
  }
}

int64_t chosen_max_tokens(const LoadOptions& options, const runtime::ModelDescription& model) {
  if (options.max_tokens == 0) return std::min(kDefaultMaxTokens, model.context_length);
  if (options.max_tokens == kWholeContext) return model.context_length;
  if (options.max_tokens < 1 || options.max_tokens > model.context_length) {
    throw std::invalid_argument("max_tokens " + std::to_string(options.max_tokens) + ": expected from 1 to " +
                                std::to_string(model.context_length) + ", the model's context, or 0 for a default");
  }
  return options.max_tokens;
}

runtime::SamplingOptions sampling_options(const DrawOptions& options) {
  return {.temperature = options.temperature,
          .top_k = options.top_k,
          .top_p = options.top_p,
          .min_p = options.min_p,
          .repetition_penalty = options.repetition_penalty,
          .seed = options.seed};
}

// Returns a progress of texts, windows or blocks for those who want a share.
std::function<void(double, int64_t)> share_of(const OnProgress& on_progress) {
  if (!on_progress) return {};
  return [&on_progress](double done, int64_t all) { on_progress(all == 0 ? 1.0 : done / static_cast<double>(all)); };
}

// A model's chat template, or why there is none. It is read with the model, whose files may be temporary.
struct ModelChat {
  std::optional<runtime::ChatTemplate> chat_template;
  std::string text;          // of the default one
  std::exception_ptr error;  // thrown when a conversation is to be written
};
ModelChat read_chat(const runtime::Tokenizer& tokenizer, const std::filesystem::path& directory) {
  ModelChat chat;
  try {
    const auto templates = runtime::read_chat_templates(directory);
    for (const auto& [name, text] : templates) {
      if (name == "default" || templates.size() == 1) chat.text = text;
    }
    chat.chat_template = runtime::ChatTemplate::open(tokenizer);
  } catch (const std::exception&) {
    chat.error = std::current_exception();
  }
  return chat;
}

}  // namespace

struct StopCheck::State {
  runtime::InterruptionCheck check;
};
StopCheck::StopCheck(std::function<void()> check) : state_(new State{runtime::InterruptionCheck(std::move(check))}) {}
StopCheck::~StopCheck() = default;

struct Model::State {
  std::unique_ptr<runtime::Backend> backend;
  std::optional<runtime::Transformer> transformer;
  std::optional<runtime::Tokenizer> tokenizer;  // empty: there is no tokenizer.json
  ModelChat chat;
  std::filesystem::path path;  // for messages
  int64_t max_tokens = 0;
  int num_threads = 0;

  const runtime::Tokenizer& need_tokenizer() const {
    if (tokenizer) return *tokenizer;
    throw std::runtime_error(path.string() + ": there is no tokenizer.json to turn texts into ids: work with ids");
  }

  runtime::GenerationOptions generation_options(const DrawOptions& options) const {
    return {.max_tokens = options.max_new_tokens,
            .sampling = sampling_options(options),
            .vocabulary_size = tokenizer ? tokenizer->vocabulary_size() : 0,
            .end_tokens = {},
            .ends_after = {}};
  }

  void check_length(int64_t num_tokens, int64_t least) const {
    if (num_tokens >= least && num_tokens <= max_tokens) return;
    throw std::invalid_argument("a sequence of " + std::to_string(num_tokens) + " tokens: expected from " +
                                std::to_string(least) + " to " + std::to_string(max_tokens) +
                                " (max_tokens of the loaded model)");
  }

  // The hidden states [T, D] behind the final norm.
  runtime::Buffer<float> hidden_states(std::span<const int32_t> ids_T, const OnProgress& on_progress) {
    const auto num_tokens = static_cast<int64_t>(ids_T.size());
    runtime::Buffer<float> hidden_TD = backend->allocate(num_tokens * transformer->description().hidden_size);
    transformer->prefill_windows(ids_T, 1, hidden_TD.get(), on_progress);
    return hidden_TD;
  }

  runtime::Generation run(std::span<const int32_t> prompt, const runtime::GenerationOptions& options,
                          const std::function<void(int32_t)>& on_id) {
    const auto num_prompt = static_cast<int64_t>(prompt.size());
    runtime::check_length(transformer->description(), num_prompt, options.max_tokens);
    if (num_prompt + options.max_tokens - 1 > max_tokens) {  // the last token drawn is never fed
      throw std::invalid_argument("the prompt's " + std::to_string(num_prompt) + " tokens and " +
                                  std::to_string(options.max_tokens) + " new ones do not fit the " +
                                  std::to_string(max_tokens) + " tokens that the model was loaded for (max_tokens)");
    }
    return runtime::generate(*transformer, prompt, options, on_id);
  }
};

Model::Model(std::unique_ptr<State> state) : state_(std::move(state)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Model Model::load(const std::filesystem::path& path, const LoadOptions& options) {
  check_options(options);
  auto state = std::make_unique<State>();
  state->path = path;
  state->num_threads =
      runtime::usable_threads(options.num_threads > 0 ? options.num_threads : runtime::default_num_threads());
  state->backend = runtime::make_backend({.num_threads = state->num_threads});
  const runtime::ModelDirectory directory(path);
  const runtime::Checkpoint checkpoint =
      options.check_files ? runtime::open_described(directory.path(), "") : runtime::Checkpoint::open(directory.path());
  state->max_tokens = chosen_max_tokens(options, checkpoint.description());
  runtime::require_listed_files(directory.path());
  if (std::filesystem::exists(directory.path() / "tokenizer.json")) {
    state->tokenizer = runtime::Tokenizer::open(directory.path());
    state->chat = read_chat(*state->tokenizer, directory.path());
  }
  const runtime::MemoryNeed need = runtime::memory_need(checkpoint, {.num_rows = state->max_tokens,
                                                                     .num_tokens = state->max_tokens,
                                                                     .keeps_every_layer = true,
                                                                     .kv_bits = options.kv_bits,
                                                                     .on_host = true});
  runtime::require_host_memory(*state->backend, {&need, 1}, runtime::free_memory());
  if (options.check_files) {
    runtime::require_whole_files(directory.path(), "");
    checkpoint.check_unchanged();
  }
  state->transformer = runtime::Transformer::load(
      checkpoint, *state->backend, [progress = share_of(options.on_progress)](int64_t done, int64_t all) {
        if (progress) progress(static_cast<double>(done), all);
      });
  state->transformer->use_attention_bits({.kv = options.kv_bits, .products = runtime::kKvFloatBits});
  return Model(std::move(state));
}

int64_t Model::vocabulary_size() const {
  return state_->transformer->description().vocabulary_size;
}

int64_t Model::max_tokens() const {
  return state_->max_tokens;
}

int64_t Model::context_length() const {
  return state_->transformer->description().context_length;
}

int Model::num_threads() const {
  return state_->num_threads;
}

std::vector<int32_t> Model::tokenize(std::string_view text, bool add_special_tokens) const {
  return state_->need_tokenizer().encode(text, add_special_tokens);
}

std::string Model::text_of(std::span<const int32_t> ids) const {
  return state_->need_tokenizer().decode(ids, /*skip_special_tokens=*/true);
}

std::string Model::chat_text(std::string_view conversation, bool is_to_be_answered) const {
  state_->need_tokenizer();
  if (state_->chat.error) std::rethrow_exception(state_->chat.error);
  runtime::Chat chat = runtime::parse_chat(conversation, "the conversation");
  chat.is_to_be_answered = is_to_be_answered;
  return state_->chat.chat_template->render(chat);
}

std::string Model::chat_template() const {
  return state_->chat.text;
}

std::vector<float> Model::logits(std::span<const int32_t> ids_T, const OnProgress& on_progress) {
  const auto num_tokens = static_cast<int64_t>(ids_T.size());
  state_->check_length(num_tokens, 1);
  const runtime::Buffer<float> hidden_TD = state_->hidden_states(ids_T, on_progress);
  std::vector<float> logits_TV(ids_T.size() * static_cast<size_t>(vocabulary_size()));
  state_->transformer->logits(hidden_TD.get(), num_tokens, logits_TV);
  return logits_TV;
}

std::vector<float> Model::score(std::span<const int32_t> ids_T, const OnProgress& on_progress) {
  const auto num_tokens = static_cast<int64_t>(ids_T.size());
  state_->check_length(num_tokens, 2);
  const runtime::ModelDescription& model = state_->transformer->description();
  const runtime::Buffer<float> hidden_TD = state_->hidden_states(ids_T, on_progress);
  std::vector<float> scores(ids_T.size() - 1);
  std::vector<uint8_t> unused_top1(kScoredRows);
  for (int64_t first = 0; first < num_tokens - 1; first += kScoredRows) {
    const auto num = static_cast<size_t>(std::min(kScoredRows, num_tokens - 1 - first));
    state_->backend->cross_entropy(state_->transformer->head(), hidden_TD.get() + first * model.hidden_size,
                                   ids_T.subspan(static_cast<size_t>(first) + 1, num), model.logit_softcap,
                                   scores.data() + first, unused_top1.data());
  }
  for (size_t t = 0; t < scores.size(); ++t) {
    if (!std::isfinite(scores[t])) {
      throw std::runtime_error(
          state_->path.string() + ", position " + std::to_string(t) +
          ": the likelihood is not finite: the weights are damaged or the model overflows float32");
    }
    scores[t] = std::min(-scores[t], 0.0f);  // a likelihood of 1 may be rounded to more
  }
  return scores;
}

std::vector<Likelihood> Model::loglikelihoods(std::span<const TextPair> pairs, const OnProgress& on_progress) {
  const runtime::Tokenizer& tokenizer = state_->need_tokenizer();
  std::vector<runtime::ScoredTokens> texts;
  for (const TextPair& pair : pairs) {
    try {
      texts.push_back(runtime::encode_pair(tokenizer, pair.context, pair.continuation, max_tokens()));
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument("pair " + std::to_string(texts.size() + 1) + ": " + error.what());
    }
  }
  std::vector<Likelihood> results;
  for (const runtime::Loglikelihood& found :
       runtime::loglikelihoods(*state_->transformer, texts, share_of(on_progress))) {
    const runtime::ScoredTokens& text = texts[results.size()];
    results.push_back(
        {.sum = found.sum, .num_tokens = text.num_scored, .is_greedy = found.is_greedy, .num_cut = text.num_cut});
  }
  return results;
}

std::vector<double> Model::text_loglikelihoods(std::span<const std::string> texts, const OnProgress& on_progress) {
  const runtime::Tokenizer& tokenizer = state_->need_tokenizer();
  std::vector<runtime::ScoredTokens> windows;
  std::vector<size_t> text_of_window;
  for (size_t n = 0; n < texts.size(); ++n) {
    for (runtime::ScoredTokens& window : runtime::rolling_windows(tokenizer, texts[n], max_tokens())) {
      windows.push_back(std::move(window));
      text_of_window.push_back(n);
    }
  }
  std::vector<double> sums(texts.size());
  size_t at = 0;
  for (const runtime::Loglikelihood& found :
       runtime::loglikelihoods(*state_->transformer, windows, share_of(on_progress))) {
    sums[text_of_window[at++]] += found.sum;
  }
  return sums;
}

GeneratedText Model::generate(std::string_view prompt, const DrawOptions& options,
                              const std::function<void(std::string_view)>& on_text) {
  const runtime::Tokenizer& tokenizer = state_->need_tokenizer();
  const std::vector<int32_t> ids = tokenizer.encode(prompt, /*add_special_tokens=*/true);
  runtime::AddedText added(tokenizer, ids);
  runtime::StopStrings stops(options.stop);
  GeneratedText result;
  const auto append = [&](const std::string& piece) {
    if (piece.empty()) return;
    result.text += piece;
    if (on_text) on_text(piece);
  };
  runtime::GenerationOptions generation_options = state_->generation_options(options);
  generation_options.end_tokens = runtime::special_token_ids(tokenizer, options.stop);
  generation_options.ends_after = [&](int32_t id) {
    append(stops.add(added.add(id)));
    return stops.found();
  };
  runtime::Generation generation = state_->run(ids, generation_options, {});
  append(stops.add(added.finish()));
  append(stops.finish());
  const std::vector<int32_t>& ends = generation_options.end_tokens;
  result.reached_stop = stops.found() || (generation.reached_end &&
                                          std::find(ends.begin(), ends.end(), generation.end_token) != ends.end());
  result.reached_end = generation.reached_end && !result.reached_stop;
  result.ids = std::move(generation.ids);
  return result;
}

std::vector<int32_t> Model::generate_ids(std::span<const int32_t> prompt, const DrawOptions& options,
                                         const std::function<void(int32_t)>& on_id) {
  if (!options.stop.empty()) {
    throw std::invalid_argument("stop strings are found in texts, and this call gives ids: use generate");
  }
  return state_->run(prompt, state_->generation_options(options), on_id).ids;
}

std::vector<GeneratedText> Model::generate_until(std::span<const std::string> prompts, const DrawOptions& options,
                                                 const OnProgress& on_progress) {
  const runtime::Tokenizer& tokenizer = state_->need_tokenizer();
  const runtime::UntilOptions until = {
      .max_new_tokens = options.max_new_tokens, .until = options.stop, .sampling = sampling_options(options)};
  const runtime::UntilPrompts encoded =
      runtime::encode_contexts(tokenizer, prompts, options.max_new_tokens, max_tokens());
  const auto progress = share_of(on_progress);
  std::vector<GeneratedText> results;
  for (runtime::UntilText& text :
       runtime::generate_until(*state_->transformer, tokenizer, encoded, until, [&](int64_t done, int64_t all) {
         if (progress) progress(static_cast<double>(done), all);
       })) {
    results.push_back({.text = std::move(text.text),
                       .ids = std::move(text.ids),
                       .reached_end = text.reached_end,
                       .reached_stop = text.reached_stop});
  }
  return results;
}

std::string_view version() {
  return runtime::version();
}

}  // namespace pare
