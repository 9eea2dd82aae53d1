#include "runtime/engine/generate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>

#include "runtime/system/interrupt.h"
#include "runtime/system/progress.h"

namespace pare {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

uint64_t RandomNumbers::next() {
  state_ += 0x9E3779B97F4A7C15u;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

double RandomNumbers::uniform() {
  return static_cast<double>(next() >> 11) * 0x1p-53;
}

Sampler::Sampler(const SamplingOptions& options) : options_(options), random_(options.seed) {
  if (!std::isfinite(options.temperature) || options.temperature < 0.0) {
    throw std::invalid_argument("temperature " + std::to_string(options.temperature) + ": expected a number >= 0");
  }
  if (options.top_k < 0) throw std::invalid_argument("top-k " + std::to_string(options.top_k) + ": expected 0 or more");
  if (!(options.top_p > 0.0 && options.top_p <= 1.0)) {
    throw std::invalid_argument("top-p " + std::to_string(options.top_p) + ": expected a number in (0, 1]");
  }
}

int32_t Sampler::sample(std::span<const float> logits_V) {
  const auto largest = std::max_element(logits_V.begin(), logits_V.end());
  if (options_.temperature == 0.0) return static_cast<int32_t>(largest - logits_V.begin());

  candidates_.resize(logits_V.size());
  std::iota(candidates_.begin(), candidates_.end(), 0);
  const auto before = [&](int32_t a, int32_t b) {
    return logits_V[a] != logits_V[b] ? logits_V[a] > logits_V[b] : a < b;
  };
  if (options_.top_k > 0 && options_.top_k < static_cast<int64_t>(candidates_.size())) {
    std::nth_element(candidates_.begin(), candidates_.begin() + options_.top_k, candidates_.end(), before);
    candidates_.resize(static_cast<size_t>(options_.top_k));
  }
  std::sort(candidates_.begin(), candidates_.end(), before);

  weights_.resize(candidates_.size());
  double total = 0.0;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    weights_[i] = std::exp((static_cast<double>(logits_V[candidates_[i]]) - static_cast<double>(*largest)) /
                           options_.temperature);
    total += weights_[i];
  }
  size_t num_kept = candidates_.size();
  if (options_.top_p < 1.0) {
    double kept = 0.0;
    for (num_kept = 0; num_kept < weights_.size() && kept < options_.top_p * total; ++num_kept)
      kept += weights_[num_kept];
    total = kept;
  }
  double left = random_.uniform() * total;
  for (size_t i = 0; i < num_kept; ++i) {
    left -= weights_[i];
    if (left < 0.0) return candidates_[i];
  }
  return candidates_[num_kept - 1];  // the sums' last rounding
}

Generation generate(Transformer& model, std::span<const int32_t> prompt, const GenerationOptions& options,
                    const std::function<void(int32_t)>& on_token) {
  if (prompt.empty()) throw std::invalid_argument("the prompt has no tokens: give at least one word");
  if (options.max_tokens < 1) {
    throw std::invalid_argument("max-tokens " + std::to_string(options.max_tokens) + ": expected 1 or more");
  }
  Sampler sampler(options.sampling);
  const int64_t model_vocabulary = model.description().vocabulary_size;
  const int64_t num_drawn =
      options.vocabulary_size > 0 ? std::min(options.vocabulary_size, model_vocabulary) : model_vocabulary;
  const auto num_prompt = static_cast<int64_t>(prompt.size());
  // The last token drawn is never fed.
  const std::unique_ptr<Transformer::Session> session = model.start(num_prompt + options.max_tokens - 1);
  const std::vector<int32_t>& ends = model.description().eos_tokens;

  Generation result;
  result.prompt_tokens = num_prompt;
  result.ids.reserve(static_cast<size_t>(options.max_tokens));
  const Clock::time_point start = Clock::now();
  std::span<const float> logits = session->feed(prompt);
  result.prefill_seconds = seconds_since(start);
  const Clock::time_point decode_start = Clock::now();
  while (true) {
    throw_if_interrupted();
    const int32_t id = sampler.sample(logits.first(static_cast<size_t>(num_drawn)));
    result.reached_end = std::find(ends.begin(), ends.end(), id) != ends.end();
    if (result.reached_end) break;
    result.ids.push_back(id);
    if (on_token) on_token(id);
    if (static_cast<int64_t>(result.ids.size()) == options.max_tokens) break;
    logits = session->feed({&id, 1});
    ++result.decoded_tokens;
  }
  result.decode_seconds = seconds_since(decode_start);
  return result;
}

}  // namespace pare
