#include "runtime/harness/loglikelihood.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "runtime/system/interrupt.h"
#include "runtime/text/python_text.h"

namespace pare::runtime {
namespace {

// The scored predictions whose logits are computed at once.
constexpr size_t kPredictions = 512;

std::optional<std::string> named_token(const Tokenizer& tokenizer, std::string_view name) {
  for (const auto& [known, content] : tokenizer.special_tokens()) {
    if (known == name && tokenizer.token_id(content)) return content;
  }
  return std::nullopt;
}

std::string prefix_text(const Tokenizer& tokenizer) {
  for (const std::string_view name : {"bos_token", "eos_token"}) {
    if (const std::optional<std::string> token = named_token(tokenizer, name)) return *token;
  }
  return "";
}

std::span<const int32_t> inputs_of(const ScoredTokens& text) {
  return std::span(text.ids).first(text.ids.size() - 1);
}

// Texts that go through the model together: [first, first + count). Equal neighbours share a sequence.
struct TextBatch {
  size_t first = 0, count = 0;
  std::vector<int32_t> ids_R = {};
  std::vector<int64_t> lengths = {};
  std::vector<int32_t> rows_S = {};     // of each scored prediction
  std::vector<int32_t> targets_S = {};  // which it predicts
};

TextBatch batch_from(std::span<const ScoredTokens> texts, size_t first) {
  TextBatch batch{.first = first};
  for (size_t n = first; n < texts.size(); ++n) {
    const std::span inputs = inputs_of(texts[n]);
    const bool is_repeated = n > first && std::ranges::equal(inputs, inputs_of(texts[n - 1]));
    const bool is_full = static_cast<int64_t>(batch.ids_R.size() + inputs.size()) > Transformer::kBatchRows;
    if (!is_repeated) {
      if (is_full && n > first) break;
      batch.ids_R.insert(batch.ids_R.end(), inputs.begin(), inputs.end());
      batch.lengths.push_back(static_cast<int64_t>(inputs.size()));
    }
    const auto num_scored = static_cast<size_t>(texts[n].num_scored);
    for (size_t k = 0; k < num_scored; ++k) {
      batch.rows_S.push_back(static_cast<int32_t>(batch.ids_R.size() - num_scored + k));
      batch.targets_S.push_back(texts[n].ids[texts[n].ids.size() - num_scored + k]);
    }
    ++batch.count;
  }
  return batch;
}

}  // namespace

int32_t prefix_token(const Tokenizer& tokenizer) {
  const std::string text = prefix_text(tokenizer);
  if (text.empty()) {
    throw std::invalid_argument(tokenizer.source().string() +
                                ": the tokenizer names neither a bos_token nor an eos_token, one of which stands "
                                "before a text without a context");
  }
  return *tokenizer.token_id(text);
}

std::vector<int32_t> encode_as_harness(const Tokenizer& tokenizer, std::string_view text) {
  const std::string prefix = prefix_text(tokenizer);
  return tokenizer.encode(text, prefix.empty() || !text.starts_with(prefix));
}

ScoredTokens encode_pair(const Tokenizer& tokenizer, std::string_view context, std::string_view continuation,
                         int64_t max_inputs) {
  ScoredTokens result;
  size_t num_context = 0;
  if (context.empty()) {
    const int32_t prefix = prefix_token(tokenizer);
    result.ids = tokenizer.encode(continuation, false);
    num_context = 1;
    if (result.ids.empty() || result.ids.front() != prefix) result.ids.insert(result.ids.begin(), prefix);
  } else {
    result.ids = encode_as_harness(tokenizer, std::string(context) + std::string(continuation));
    num_context = encode_as_harness(tokenizer, strip_end(context)).size();
  }
  result.num_scored = static_cast<int64_t>(result.ids.size()) - static_cast<int64_t>(num_context);
  if (num_context == 0 || result.num_scored < 1) {
    throw std::invalid_argument("the tokenizer leaves no tokens to " +
                                std::string(num_context == 0 ? "the context" : "what follows the context"));
  }
  if (result.num_scored > max_inputs) {
    throw std::invalid_argument("what follows the context has " + std::to_string(result.num_scored) +
                                " tokens; the model's context is " + std::to_string(max_inputs));
  }
  result.num_cut = std::max<int64_t>(result.num_inputs() - max_inputs, 0);
  result.ids.erase(result.ids.begin(), result.ids.begin() + result.num_cut);
  return result;
}

std::vector<ScoredTokens> rolling_windows(const Tokenizer& tokenizer, std::string_view text, int64_t max_inputs) {
  std::vector<int32_t> ids = encode_as_harness(tokenizer, text);
  ids.insert(ids.begin(), prefix_token(tokenizer));
  const auto num_ids = static_cast<int64_t>(ids.size());
  std::vector<ScoredTokens> windows;
  for (int64_t end = 1; end < num_ids;) {  // ids[1, end) are scored
    const int64_t num_scored = std::min(max_inputs, num_ids - end);
    const int64_t first = std::max<int64_t>(end + num_scored - max_inputs - 1, 0);
    end += num_scored;
    windows.push_back({.ids = {ids.begin() + first, ids.begin() + end}, .num_scored = num_scored, .num_cut = 0});
  }
  return windows;
}

std::vector<Loglikelihood> loglikelihoods(Transformer& model, std::span<const ScoredTokens> texts,
                                          const std::function<void(double, int64_t)>& progress) {
  const int64_t width = model.description().hidden_size;
  const auto num_texts = static_cast<int64_t>(texts.size());
  Backend& backend = model.backend();
  std::vector<Loglikelihood> results;
  Buffer<float> hidden_RD, scored_SD = backend.allocate(static_cast<int64_t>(kPredictions) * width);
  Buffer<int32_t> rows_S = backend.allocate<int32_t>(static_cast<int64_t>(kPredictions));
  std::vector<float> nll_S;
  std::vector<uint8_t> top1_S;
  if (progress) progress(0.0, num_texts);
  while (results.size() < texts.size()) {
    throw_if_interrupted();
    const TextBatch batch = batch_from(texts, results.size());
    const auto num_values = static_cast<int64_t>(batch.ids_R.size()) * width;
    if (hidden_RD.size() < num_values) hidden_RD = backend.allocate(num_values);
    model.prefill_sequences(batch.ids_R, batch.lengths, hidden_RD.get(), [&](double share) {
      const double done = static_cast<double>(batch.first) + share * static_cast<double>(batch.count);
      if (progress) progress(done, num_texts);
    });
    nll_S.resize(batch.rows_S.size());
    top1_S.resize(batch.rows_S.size());
    for (size_t begin = 0; begin < batch.rows_S.size(); begin += kPredictions) {
      const size_t count = std::min(kPredictions, batch.rows_S.size() - begin);
      backend.upload<int32_t>(std::span(batch.rows_S).subspan(begin, count), rows_S.get());
      LinearInput scored(scored_SD.get());
      backend.gather(hidden_RD.get(), rows_S.span().first(count), width, scored);
      backend.cross_entropy(model.head(), scored_SD.get(), std::span(batch.targets_S).subspan(begin, count),
                            model.description().logit_softcap, nll_S.data() + begin, top1_S.data() + begin);
    }
    for (size_t n = 0, at = 0; n < batch.count; ++n) {
      Loglikelihood result{.sum = 0.0, .is_greedy = true};
      for (int64_t k = 0; k < texts[batch.first + n].num_scored; ++k, ++at) {
        result.sum -= static_cast<double>(nll_S[at]);
        result.is_greedy = result.is_greedy && top1_S[at] != 0;
      }
      if (!std::isfinite(result.sum)) {
        throw std::runtime_error("text " + std::to_string(batch.first + n + 1) +
                                 ": its likelihood is not finite: the weights are damaged or the model overflows "
                                 "float32");
      }
      results.push_back(result);
    }
    if (progress) progress(static_cast<double>(results.size()), num_texts);
  }
  return results;
}

}  // namespace pare::runtime
