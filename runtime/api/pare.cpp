#include "runtime/api/pare.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <utility>

#include "runtime/commands/artifact_files.h"
#include "runtime/device/make_backend.h"
#include "runtime/engine/generate.h"
#include "runtime/engine/memory_need.h"
#include "runtime/engine/transformer.h"
#include "runtime/import/model_directory.h"
#include "runtime/machine/limits.h"
#include "runtime/model/checkpoint.h"
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
  if (options.kv_bits != runtime::kKvFloatBits && options.kv_bits != 8) {
    throw std::invalid_argument("kv_bits " + std::to_string(options.kv_bits) + ": expected 32 or 8");
  }
}

int64_t chosen_max_tokens(const LoadOptions& options, const runtime::ModelDescription& model) {
  if (options.max_tokens == 0) return std::min(kDefaultMaxTokens, model.context_length);
  if (options.max_tokens < 1 || options.max_tokens > model.context_length) {
    throw std::invalid_argument("max_tokens " + std::to_string(options.max_tokens) + ": expected from 1 to " +
                                std::to_string(model.context_length) + ", the model's context, or 0 for a default");
  }
  return options.max_tokens;
}

runtime::GenerationOptions generation_options(const DrawOptions& options,
                                              const std::optional<runtime::Tokenizer>& tokenizer) {
  return {.max_tokens = options.max_new_tokens,
          .sampling = {.temperature = options.temperature,
                       .top_k = options.top_k,
                       .top_p = options.top_p,
                       .min_p = options.min_p,
                       .repetition_penalty = options.repetition_penalty,
                       .seed = options.seed},
          .vocabulary_size = tokenizer ? tokenizer->vocabulary_size() : 0,
          .end_tokens = {}};
}

}  // namespace

struct Model::State {
  std::unique_ptr<runtime::Backend> backend;
  std::optional<runtime::Transformer> transformer;
  std::optional<runtime::Tokenizer> tokenizer;  // empty: there is no tokenizer.json
  std::filesystem::path path;                   // for messages
  int64_t max_tokens = 0;

  const runtime::Tokenizer& need_tokenizer() const {
    if (tokenizer) return *tokenizer;
    throw std::runtime_error(path.string() + ": there is no tokenizer.json to turn texts into ids: work with ids");
  }

  runtime::Generation run(std::span<const int32_t> prompt, const DrawOptions& options,
                          const std::function<void(int32_t)>& on_id) {
    const auto num_prompt = static_cast<int64_t>(prompt.size());
    runtime::check_length(transformer->description(), num_prompt, options.max_new_tokens);
    if (num_prompt + options.max_new_tokens - 1 > max_tokens) {  // the last token drawn is never fed
      throw std::invalid_argument("the prompt's " + std::to_string(num_prompt) + " tokens and " +
                                  std::to_string(options.max_new_tokens) + " new ones do not fit the " +
                                  std::to_string(max_tokens) + " tokens that the model was loaded for (max_tokens)");
    }
    return runtime::generate(*transformer, prompt, generation_options(options, tokenizer), on_id);
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
  const int num_threads = options.num_threads > 0 ? options.num_threads : runtime::default_num_threads();
  state->backend = runtime::make_backend({.num_threads = num_threads});
  const runtime::ModelDirectory directory(path);
  const runtime::Checkpoint checkpoint =
      options.check_files ? runtime::open_described(directory.path(), "") : runtime::Checkpoint::open(directory.path());
  state->max_tokens = chosen_max_tokens(options, checkpoint.description());
  runtime::require_listed_files(directory.path());
  if (std::filesystem::exists(directory.path() / "tokenizer.json")) {
    state->tokenizer = runtime::Tokenizer::open(directory.path());
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
  state->transformer = runtime::Transformer::load(checkpoint, *state->backend);
  state->transformer->use_attention_bits({.kv = options.kv_bits, .products = runtime::kKvFloatBits});
  return Model(std::move(state));
}

int64_t Model::vocabulary_size() const {
  return state_->transformer->description().vocabulary_size;
}

int64_t Model::max_tokens() const {
  return state_->max_tokens;
}

std::vector<int32_t> Model::tokenize(std::string_view text, bool add_special_tokens) const {
  return state_->need_tokenizer().encode(text, add_special_tokens);
}

std::string Model::text_of(std::span<const int32_t> ids) const {
  return state_->need_tokenizer().decode(ids, /*skip_special_tokens=*/true);
}

std::vector<float> Model::score(std::span<const int32_t> ids_T) {
  const auto num_tokens = static_cast<int64_t>(ids_T.size());
  if (num_tokens < 2 || num_tokens > state_->max_tokens) {
    throw std::invalid_argument("a sequence of " + std::to_string(num_tokens) + " tokens: expected from 2 to " +
                                std::to_string(state_->max_tokens) + " (max_tokens of the loaded model)");
  }
  runtime::Transformer& transformer = *state_->transformer;
  const runtime::ModelDescription& model = transformer.description();
  const runtime::Buffer<float> hidden_TD = state_->backend->allocate(num_tokens * model.hidden_size);
  transformer.prefill_windows(ids_T, 1, hidden_TD.get());
  std::vector<float> scores(ids_T.size() - 1);
  std::vector<uint8_t> unused_top1(kScoredRows);
  for (int64_t first = 0; first < num_tokens - 1; first += kScoredRows) {
    const auto num = static_cast<size_t>(std::min(kScoredRows, num_tokens - 1 - first));
    state_->backend->cross_entropy(transformer.head(), hidden_TD.get() + first * model.hidden_size,
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

GeneratedText Model::generate(std::string_view prompt, const DrawOptions& options,
                              const std::function<void(std::string_view)>& on_text) {
  const runtime::Tokenizer& tokenizer = state_->need_tokenizer();
  const std::vector<int32_t> ids = tokenizer.encode(prompt, /*add_special_tokens=*/true);
  runtime::AddedText added(tokenizer, ids);
  GeneratedText result;
  const auto append = [&](const std::string& piece) {
    if (piece.empty()) return;
    result.text += piece;
    if (on_text) on_text(piece);
  };
  runtime::Generation generation = state_->run(ids, options, [&](int32_t id) { append(added.add(id)); });
  append(added.finish());
  result.ids = std::move(generation.ids);
  result.reached_end = generation.reached_end;
  return result;
}

std::vector<int32_t> Model::generate_ids(std::span<const int32_t> prompt, const DrawOptions& options,
                                         const std::function<void(int32_t)>& on_id) {
  return state_->run(prompt, options, on_id).ids;
}

}  // namespace pare
