#include "runtime/engine/generate.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>

#include "runtime/system/interrupt.h"
#include "runtime/system/progress.h"

namespace pare::runtime {
namespace {

using Clock = std::chrono::steady_clock;
using Candidate = Sampler::Candidate;

// The order of candidates in a draw: the most probable first, the lowest id first among equals.
bool comes_before(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// Defines the token that a draw gives: weights are summed in double, from the first candidate on.
int32_t draw_sorted(std::span<const Candidate> candidates, double top_p, double min_p, double uniform) {
  double total = 0.0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  size_t num_kept = candidates.size();
  if (top_p < 1.0 || min_p > 0.0) {
    const double enough = top_p < 1.0 ? top_p * total : std::numeric_limits<double>::infinity();
    double kept = 0.0;
    for (num_kept = 0; num_kept < candidates.size() && kept < enough; ++num_kept) {
      if (candidates[num_kept].weight < min_p) break;
      kept += candidates[num_kept].weight;
    }
    total = kept;
  }
  double left = uniform * total;
  for (size_t i = 0; i < num_kept; ++i) {
    left -= candidates[i].weight;
    if (left < 0.0) return candidates[i].id;
  }
  return candidates[num_kept - 1].id;  // reached only through the rounding of the sums
}

// Finds the outcome of draw_sorted without sorting all candidates. The candidates are divided into ordered ranges of
// logits. The sums of the ranges' weights tell in which range a running sum passes a value, and only that range is
// sorted.
//
// The sums are taken in another order than draw_sorted's. n additions of positive numbers err by less than n 2^-53 of
// their sum in any order (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., section 4.2; to first
// order). The same holds for draw_sorted's total, its sum of what top_p keeps and its repeated subtraction. With a
// margin of eight such errors around each comparison the outcome is draw_sorted's. If a value lies within the margin of
// a running sum, there is no outcome. That happens about once in 10^4 draws from 262,144 equally probable tokens, and
// far more seldom from others.
class UnsortedDraw {
 public:
  // `candidates` may have any order. There are at least kLeast of them, and their logits lie in [smallest, largest].
  UnsortedDraw(std::span<const Candidate> candidates, float smallest, float largest, double temperature)
      : candidates_(candidates), largest_(largest) {
    const double width = std::min(static_cast<double>(largest) - smallest, kDepth * temperature);
    if (width > 0.0) ranges_per_logit_ = static_cast<double>(kNumRanges) / width;
    for (const Candidate& candidate : candidates) {
      weight_of_range_[range_of(candidate)] += candidate.weight;
      total_ += candidate.weight;
    }
    margin_ = 8.0 * 0x1p-53 * static_cast<double>(candidates.size()) * total_;
  }

  std::optional<int32_t> draw(double top_p, double min_p, double uniform) const {
    double kept = total_;
    if (top_p < 1.0) {
      const std::optional<Passing> last = find_passing(top_p * total_);
      if (!last) return std::nullopt;
      kept = last->sum;
    }
    // Both cuts keep the first candidates, so the stronger one decides.
    if (min_p > 0.0) kept = std::min(kept, sum_from(min_p));
    // A candidate that passes a value below `kept` by more than the margin is among those that the cuts keep.
    const std::optional<Passing> drawn = find_passing(uniform * kept);
    return drawn ? std::optional(drawn->id) : std::nullopt;
  }

  // Fewer candidates are sorted at once. The bound also keeps the number of ranges small beside the number of
  // additions.
  static constexpr size_t kLeast = 4096;

 private:
  static constexpr size_t kNumRanges = 1024;
  // Weights below e^-64 of the largest share the last range: together they are less than the margin.
  static constexpr double kDepth = 64.0;

  struct Passing {
    int32_t id;
    double sum;  // the weights up to this one, itself included
  };

  size_t range_of(const Candidate& candidate) const {
    const double range = (static_cast<double>(largest_) - candidate.logit) * ranges_per_logit_;
    return static_cast<size_t>(std::min(range, static_cast<double>(kNumRanges - 1)));
  }

  // Returns the sum of the weights that are at least `least`.
  double sum_from(double least) const {
    double sum = 0.0;
    for (const Candidate& candidate : candidates_) sum += candidate.weight >= least ? candidate.weight : 0.0;
    return sum;
  }

  // Returns the first candidate with which the running sum passes `value`, or none if that is too close to tell.
  std::optional<Passing> find_passing(double value) const {
    double sum = 0.0;
    size_t range = 0;
    while (range < kNumRanges && !(sum + weight_of_range_[range] > value + margin_)) sum += weight_of_range_[range++];
    std::vector<Candidate> in_range;
    for (const Candidate& candidate : candidates_) {
      if (range_of(candidate) == range) in_range.push_back(candidate);
    }
    std::sort(in_range.begin(), in_range.end(), comes_before);
    for (const Candidate& candidate : in_range) {
      const double before = sum;
      sum += candidate.weight;
      if (!(sum > value + margin_)) continue;
      const bool is_first = before == 0.0;
      return is_first || before + margin_ < value ? std::optional(Passing{candidate.id, sum}) : std::nullopt;
    }
    return std::nullopt;
  }

  std::span<const Candidate> candidates_;
  float largest_;
  double ranges_per_logit_ = 0.0;
  std::array<double, kNumRanges> weight_of_range_{};
  double total_ = 0.0;
  double margin_ = 0.0;
};

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

uint64_t text_seed(uint64_t seed, int64_t text) {
  return RandomNumbers(RandomNumbers(seed).next() + static_cast<uint64_t>(text)).next();
}

Sampler::Sampler(const SamplingOptions& options) : options_(options), random_(options.seed) {
  if (!std::isfinite(options.temperature) || options.temperature < 0.0) {
    throw std::invalid_argument("temperature " + std::to_string(options.temperature) + ": expected a number >= 0");
  }
  if (options.top_k < 0) throw std::invalid_argument("top-k " + std::to_string(options.top_k) + ": expected 0 or more");
  if (!(options.top_p > 0.0 && options.top_p <= 1.0)) {
    throw std::invalid_argument("top-p " + std::to_string(options.top_p) + ": expected a number in (0, 1]");
  }
  if (!(options.min_p >= 0.0 && options.min_p <= 1.0)) {
    throw std::invalid_argument("min-p " + std::to_string(options.min_p) + ": expected a number in [0, 1]");
  }
  constexpr double kMostPenalty = 1e30;  // and the least is its inverse, so that a float32 holds both
  if (!(options.repetition_penalty >= 1.0 / kMostPenalty && options.repetition_penalty <= kMostPenalty)) {
    throw std::invalid_argument("repetition penalty " + std::to_string(options.repetition_penalty) +
                                ": expected a number from 1e-30 to 1e30");
  }
}

int32_t Sampler::sample(std::span<const float> logits_V) {
  const auto largest = std::max_element(logits_V.begin(), logits_V.end());
  if (options_.temperature == 0.0) return static_cast<int32_t>(largest - logits_V.begin());
  candidates_.resize(logits_V.size());
  for (size_t id = 0; id < logits_V.size(); ++id) {
    candidates_[id] = {.logit = logits_V[id], .id = static_cast<int32_t>(id), .weight = 0.0};
  }
  if (options_.top_k > 0 && options_.top_k < static_cast<int64_t>(candidates_.size())) {
    std::nth_element(candidates_.begin(), candidates_.begin() + options_.top_k, candidates_.end(), comes_before);
    candidates_.resize(static_cast<size_t>(options_.top_k));
  }
  for (Candidate& candidate : candidates_) {
    candidate.weight =
        std::exp((static_cast<double>(candidate.logit) - static_cast<double>(*largest)) / options_.temperature);
  }
  const double uniform = random_.uniform();
  if (candidates_.size() >= UnsortedDraw::kLeast) {
    const float smallest = *std::min_element(logits_V.begin(), logits_V.end());
    const UnsortedDraw draw(candidates_, smallest, *largest, options_.temperature);
    if (const std::optional<int32_t> id = draw.draw(options_.top_p, options_.min_p, uniform)) return *id;
  }
  std::sort(candidates_.begin(), candidates_.end(), comes_before);
  return draw_sorted(candidates_, options_.top_p, options_.min_p, uniform);
}

void check_length(const ModelDescription& model, int64_t prompt_tokens, int64_t max_tokens) {
  if (prompt_tokens < 1) throw std::invalid_argument("the prompt has no tokens: give at least one word");
  if (max_tokens < 1) throw std::invalid_argument(std::to_string(max_tokens) + " new tokens: expected 1 or more");
  // The last token that is drawn is never fed to the model, so it needs no position.
  const int64_t most = std::max<int64_t>(model.context_length - prompt_tokens + 1, 0);
  if (max_tokens <= most) return;
  throw std::invalid_argument(
      "the prompt's " + std::to_string(prompt_tokens) + " tokens and " + std::to_string(max_tokens) +
      " new ones do not fit the model's context of " + std::to_string(model.context_length) + ": shorten the prompt" +
      (most > 0 ? " or ask for at most " + std::to_string(most) + " new tokens" : std::string()));
}

Continuation::Continuation(const ModelDescription& model, std::span<const int32_t> prompt,
                           const GenerationOptions& options)
    : sampler_(options.sampling),
      max_tokens_(options.max_tokens),
      num_drawn_from_(static_cast<size_t>(options.vocabulary_size > 0
                                              ? std::min(options.vocabulary_size, model.vocabulary_size)
                                              : model.vocabulary_size)),
      repetition_penalty_(static_cast<float>(options.sampling.repetition_penalty)),
      ends_(model.stop_tokens),
      ends_after_(options.ends_after) {
  generation.prompt_tokens = static_cast<int64_t>(prompt.size());
  ends_.insert(ends_.end(), options.end_tokens.begin(), options.end_tokens.end());
  if (repetition_penalty_ == 1.0f) return;
  is_seen_V_.resize(num_drawn_from_);
  for (const int32_t id : prompt) note_seen(id);
}

void Continuation::note_seen(int32_t id) {
  const auto place = static_cast<size_t>(id);
  if (place >= is_seen_V_.size() || is_seen_V_[place] != 0) return;
  is_seen_V_[place] = 1;
  seen_.push_back(id);
}

std::span<const float> Continuation::penalize(std::span<const float> logits_V) {
  penalized_V_.assign(logits_V.begin(), logits_V.end());
  for (const int32_t id : seen_) {
    float& logit = penalized_V_[static_cast<size_t>(id)];
    logit = logit < 0.0f ? logit * repetition_penalty_ : logit / repetition_penalty_;
    // The sampler wants finite logits, which a large penalty may leave.
    logit = std::clamp(logit, std::numeric_limits<float>::lowest(), std::numeric_limits<float>::max());
  }
  return penalized_V_;
}

bool Continuation::draw(std::span<const float> logits_V) {
  const std::span<const float> drawn_from = logits_V.first(num_drawn_from_);
  const bool is_penalized = repetition_penalty_ != 1.0f;
  const int32_t id = sampler_.sample(is_penalized ? penalize(drawn_from) : drawn_from);
  if (is_penalized) note_seen(id);
  generation.reached_end = std::find(ends_.begin(), ends_.end(), id) != ends_.end();
  if (generation.reached_end) {
    generation.end_token = id;
    return false;
  }
  generation.ids.push_back(id);
  generation.was_ended = ends_after_ && ends_after_(id);
  return !generation.was_ended && static_cast<int64_t>(generation.ids.size()) < max_tokens_;
}

Generation generate(Transformer& model, std::span<const int32_t> prompt, const GenerationOptions& options,
                    const std::function<void(int32_t)>& on_token) {
  const auto num_prompt = static_cast<int64_t>(prompt.size());
  check_length(model.description(), num_prompt, options.max_tokens);
  Continuation text(model.description(), prompt, options);
  Generation& result = text.generation;
  const std::unique_ptr<Transformer::Session> session = model.start(num_prompt + options.max_tokens - 1);
  const Clock::time_point start = Clock::now();
  std::span<const float> logits = session->feed(prompt);
  result.prefill_seconds = seconds_since(start);
  const Clock::time_point decode_start = Clock::now();
  while (true) {
    throw_if_interrupted();
    const bool goes_on = text.draw(logits);
    if (on_token && !result.reached_end) on_token(result.ids.back());
    if (!goes_on) break;
    logits = session->feed({&result.ids.back(), 1});
    ++result.decoded_tokens;
  }
  result.decode_seconds = seconds_since(decode_start);
  return std::move(result);
}

}  // namespace pare::runtime
