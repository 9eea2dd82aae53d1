#include "runtime/evaluate/perplexity.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

#include "runtime/engine/block_errors.h"
#include "runtime/evaluate/token_source.h"
#include "runtime/evaluate/windows_tokenizer.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/memory_usage.h"
#include "runtime/system/progress.h"

namespace pare::runtime {
namespace {

int64_t chosen_context(const ModelDescription& model, const WindowCut& cut) {
  if (cut.context == 0) return std::min(default_context(cut.protocol), model.context_length);
  if (cut.context > model.context_length) {
    throw std::invalid_argument("a context of " + std::to_string(cut.context) +
                                " tokens was asked for; the model's context is " +
                                std::to_string(model.context_length));
  }
  return cut.context;
}

int64_t windows_at_once(const ScoredWindows& data) {
  return std::clamp<int64_t>(Transformer::kBatchRows / data.windows.num_tokens, 1, data.windows.num_windows);
}

// The predictions of a window whose logits are computed at once: many for the backend, yet soon done. Rows do not
// depend on one another.
constexpr size_t kScoredRows = 512;

// The results of one scored window: means over its predictions.
struct WindowMeans {
  double nll = 0.0;
  double reference_nll = 0.0;
  double kl = 0.0;
  double change = 0.0;     // of the targets' probabilities
  double agreement = 0.0;  // share of arg maxes equal to the reference's, or to the targets
};

Estimate estimate(std::span<const WindowMeans> windows, const std::function<double(const WindowMeans&)>& value) {
  std::vector<double> values;
  for (const WindowMeans& window : windows) values.push_back(value(window));
  return estimate_over_windows(values);
}

// Returns exp of an estimate, with the error to first order: d exp(x) = exp(x) dx.
Estimate exponential(const Estimate& x) {
  Estimate result{std::exp(x.value), std::nullopt};
  if (x.standard_error) result.standard_error = result.value * *x.standard_error;
  return result;
}

double mean(std::span<const float> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Windows are compared with a model that runs, or with what one gave earlier. Without a head they are not compared.
class ReferenceStates {
 public:
  ReferenceStates(Transformer& model, const PerplexityComparison& with) : stored_(with.stored), live_(with.model) {
    if (live_ != nullptr) {
      head_ = &live_->head();
    } else if (stored_ != nullptr) {
      packed_head_ = stored_->pack_head(model.backend());
      head_ = packed_head_.get();
    }
  }
  bool exist() const { return head_ != nullptr; }
  const PackedLinear& head() const { return *head_; }
  int64_t width() const { return head_->num_in(); }
  float softcap() const { return live_ != nullptr ? live_->description().logit_softcap : stored_->softcap(); }

  // Gives the scored rows of windows [first, first + num) their hidden states; hidden_RE has rows for all positions.
  void make(const ScoredWindows& data, int64_t first, int64_t num, std::span<const int32_t> ids, Backend& backend,
            float* hidden_RE, const std::function<void(double)>& done, const BlockObserver* observer) const {
    if (live_ != nullptr) return live_->prefill_windows(ids, num, hidden_RE, done, observer);
    for (int64_t n = 0; n < num; ++n) {
      stored_->upload(backend, first + n, hidden_RE + (n * data.windows.num_tokens + data.first_scored) * width());
    }
  }

 private:
  const StoredReference* stored_;
  Transformer* live_;
  const PackedLinear* head_ = nullptr;
  std::unique_ptr<PackedLinear> packed_head_;
};

// Scores windows and keeps what the figures are made of.
class Scorer {
 public:
  Scorer(Transformer& model, const PerplexityComparison& with, const ScoredWindows& data)
      : model_(model),
        reference_(model, with),
        keep_(with.keep),
        data_(data),
        batch_windows_(windows_at_once(data)),
        hidden_RD_(
            model.backend().allocate(batch_windows_ * data.windows.num_tokens * model.description().hidden_size)),
        nll_(static_cast<size_t>(data.predictions_per_window())),
        reference_nll_(nll_.size()),
        same_top1_(nll_.size()) {
    if (with.observes_blocks && with.model != nullptr &&
        BlockErrors::can_compare(model.description(), with.model->description()))
      block_errors_.emplace(model.description(), observed_rows(data.windows.num_tokens));
    means_.reserve(static_cast<size_t>(data.windows.num_windows));
    if (!reference_.exist()) return;
    reference_hidden_RE_ = model.backend().allocate(batch_windows_ * data.windows.num_tokens * reference_.width());
    kl_.reserve(static_cast<size_t>(data.windows.num_windows * data.predictions_per_window()));
    change_.reserve(kl_.capacity());
  }

  // Scores the next batch and returns how many windows are done. `progress` is told how many windows' work is done.
  int64_t score_batch(const std::function<void(double)>& progress) {
    const int64_t first = static_cast<int64_t>(means_.size());
    const int64_t num = std::min(batch_windows_, data_.windows.num_windows - first);
    const int64_t num_tokens = data_.windows.num_tokens;
    const std::span ids = std::span(data_.windows.ids_NT)
                              .subspan(static_cast<size_t>(first * num_tokens), static_cast<size_t>(num * num_tokens));
    // A pass through a model and a pass of a head over the vocabulary count alike, which is good enough for a bar.
    const double num_parts = reference_.exist() ? 3.0 : 2.0;
    double part = 0.0;
    const auto done = [&](double share) {
      progress(static_cast<double>(first) + static_cast<double>(num) * (part + share) / num_parts);
    };
    model_.prefill_windows(ids, num, hidden_RD_.get(), done, block_errors_ ? &block_errors_->keeps() : nullptr);
    if (reference_.exist()) {
      part = 1.0;
      reference_.make(data_, first, num, ids, model_.backend(), reference_hidden_RE_.get(), done,
                      block_errors_ ? &block_errors_->compares() : nullptr);
    }
    if (keep_) keep_states(num);
    part = num_parts - 1.0;
    for (int64_t n = 0; n < num; ++n) {
      score_window(first + n, n * num_tokens + data_.first_scored);
      if (n + 1 < num) done(static_cast<double>(n + 1) / static_cast<double>(num));
    }
    return first + num;
  }

  std::span<const WindowMeans> means() const { return means_; }
  // Both may be taken away.
  std::vector<float>& kl() { return kl_; }
  std::vector<float>& change() { return change_; }
  const PairSums& losses() const { return losses_; }
  std::vector<double> block_errors() const { return block_errors_ ? block_errors_->values() : std::vector<double>(); }
  double sum_of_squared_nll() const { return sum_of_squared_nll_; }

 private:
  void score_window(int64_t window, int64_t row) {
    const std::span targets = data_.windows.window(window).subspan(static_cast<size_t>(data_.first_scored + 1));
    const float* x_RD = hidden_RD_.get() + row * model_.description().hidden_size;
    const float softcap = model_.description().logit_softcap;
    WindowMeans means;
    const size_t old_size = kl_.size();
    if (reference_.exist()) kl_.resize(old_size + nll_.size());
    for (size_t begin = 0; begin < targets.size(); begin += kScoredRows) {
      throw_if_interrupted();
      const std::span some = targets.subspan(begin, std::min(kScoredRows, targets.size() - begin));
      const float* const x = x_RD + static_cast<int64_t>(begin) * model_.description().hidden_size;
      if (!reference_.exist()) {
        model_.backend().cross_entropy(model_.head(), x, some, softcap, nll_.data() + begin, same_top1_.data() + begin);
        continue;
      }
      const float* const reference_x =
          reference_hidden_RE_.get() + (row + static_cast<int64_t>(begin)) * reference_.width();
      model_.backend().compare(reference_.head(), reference_x, reference_.softcap(), model_.head(), x, softcap, some,
                               kl_.data() + old_size + begin, same_top1_.data() + begin, reference_nll_.data() + begin,
                               nll_.data() + begin);
    }
    if (reference_.exist()) {
      const std::span kl = std::span<const float>(kl_).subspan(old_size);
      check_finite(reference_nll_, window, "the reference's negative log likelihood");
      check_finite(kl, window, "the Kullback-Leibler divergence");
      means.reference_nll = mean(reference_nll_);
      means.kl = mean(kl);
      for (size_t i = 0; i < nll_.size(); ++i) {
        change_.push_back(std::exp(-nll_[i]) - std::exp(-reference_nll_[i]));
        losses_.add(static_cast<double>(nll_[i]), static_cast<double>(reference_nll_[i]));
      }
      means.change = mean(std::span<const float>(change_).subspan(old_size));
    }
    check_finite(nll_, window, "the negative log likelihood");
    means.nll = mean(nll_);
    means.agreement =
        std::accumulate(same_top1_.begin(), same_top1_.end(), 0.0) / static_cast<double>(same_top1_.size());
    for (float value : nll_) sum_of_squared_nll_ += static_cast<double>(value) * static_cast<double>(value);
    means_.push_back(means);
  }

  // Hands on the model's states at the scored positions.
  void keep_states(int64_t num_windows) {
    const int64_t width = model_.description().hidden_size;
    std::vector<float> states_SD(static_cast<size_t>(data_.predictions_per_window() * width));
    for (int64_t n = 0; n < num_windows; ++n) {
      const float* const first = hidden_RD_.get() + (n * data_.windows.num_tokens + data_.first_scored) * width;
      model_.backend().download(first, std::span(states_SD));
      keep_(states_SD);
    }
  }

  void check_finite(std::span<const float> values, int64_t window, const char* what) const {
    const auto bad = std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
    if (bad == values.end()) return;
    throw std::runtime_error(data_.source + ", window " + std::to_string(window) + ", position " +
                             std::to_string(data_.first_scored + (bad - values.begin())) + ": " + what +
                             " is not finite: the weights are damaged or the model overflows float32");
  }

  Transformer& model_;
  ReferenceStates reference_;
  std::optional<BlockErrors> block_errors_;
  const std::function<void(std::span<const float>)>& keep_;
  const ScoredWindows& data_;
  int64_t batch_windows_;
  Buffer<float> hidden_RD_, reference_hidden_RE_;
  std::vector<float> nll_, reference_nll_;  // for one window
  std::vector<uint8_t> same_top1_;
  std::vector<float> kl_, change_;  // for all predictions: percentiles need them
  PairSums losses_;
  std::vector<WindowMeans> means_;
  double sum_of_squared_nll_ = 0.0;
};

Comparison compare_means(std::span<const WindowMeans> means, std::vector<float> kl, std::vector<float> change,
                         const PairSums& losses) {
  Comparison result;
  const Estimate nll = estimate(means, [](const WindowMeans& w) { return w.nll; });
  const Estimate reference_nll = estimate(means, [](const WindowMeans& w) { return w.reference_nll; });
  result.reference_nll = reference_nll.value;
  result.reference_perplexity = exponential(reference_nll);
  result.perplexity_ratio = exponential(estimate(means, [](const WindowMeans& w) { return w.nll - w.reference_nll; }));
  // To first order, exp(q) - exp(p) moves by exp(q) dq - exp(p) dp. This is the error of that sum, pair by pair.
  const double perplexity = std::exp(nll.value);
  const double reference_perplexity = result.reference_perplexity.value;
  result.perplexity_difference = estimate(
      means, [&](const WindowMeans& w) { return perplexity * w.nll - reference_perplexity * w.reference_nll; });
  result.perplexity_difference.value = perplexity - reference_perplexity;
  result.kl_mean = estimate(means, [](const WindowMeans& w) { return w.kl; });
  result.top1_agreement = estimate(means, [](const WindowMeans& w) { return w.agreement; });
  std::sort(kl.begin(), kl.end());
  auto begin = kl.begin();
  for (const double edge : kl_edges()) {
    const auto end = std::lower_bound(begin, kl.end(), static_cast<float>(edge));
    result.kl_counts.push_back(end - begin);
    begin = end;
  }
  result.kl_counts.push_back(kl.end() - begin);
  result.kl = token_statistics(std::move(kl));
  result.probability_change_mean = estimate(means, [](const WindowMeans& w) { return w.change; });
  result.probability_change = token_statistics(std::move(change));
  result.nll_correlation = losses.correlation();
  return result;
}

// Throws std::invalid_argument for a reference whose distributions are over other tokens.
void check_same_vocabulary(const ModelDescription& model, const ModelDescription& reference) {
  const int64_t expected = model.vocabulary_size, found = reference.vocabulary_size;
  if (expected != found) {
    throw std::invalid_argument("the reference has a vocabulary of " + std::to_string(found) +
                                " entries, the model of " + std::to_string(expected) +
                                ": their distributions cannot be compared");
  }
}

void check_reference(const Transformer& model, const Transformer& reference) {
  if (&model.backend() != &reference.backend()) {
    throw std::invalid_argument("the model and its reference must be loaded on the same backend");
  }
  check_same_vocabulary(model.description(), reference.description());
}

// Both models must cut the text into the same tokens, or their figures measure different things, and take windows of
// that length.
void check_same_tokens(const ScoredWindows& data, const std::filesystem::path& text, const Checkpoint& other,
                       WindowCut cut) {
  std::vector<std::string> of_other;  // what was said of the model's windows is not repeated
  check_windows_tokenizers({text}, other.directory(), of_other);
  if (data.windows.num_tokens > other.description().context_length) {
    throw std::invalid_argument(other.directory().string() + ": its context is " +
                                std::to_string(other.description().context_length) + " tokens, and the windows have " +
                                std::to_string(data.windows.num_tokens) +
                                ": use a shorter context, or a .npy of shorter windows");
  }
  if (holds_token_windows(text)) return;
  const Tokenizer tokenizer = Tokenizer::open(other.directory());
  cut.context = data.windows.num_tokens;
  if (make_scored_windows(text, &tokenizer, other.description(), cut).windows.ids_NT != data.windows.ids_NT) {
    throw std::invalid_argument(other.directory().string() +
                                ": its tokenizer gives different tokens than the model's: they cannot be compared");
  }
}

class PerplexityMeasurement : public Measurement {
 public:
  PerplexityMeasurement(ScoredWindows data, const PerplexityOptions& options, std::optional<StoredReference> stored,
                        const ModelDescription& model)
      : data_(std::move(data)),
        options_(options),
        stored_(std::move(stored)),
        observed_bytes_(
            BlockErrors::size_bytes(model, windows_at_once(data_) * observed_rows(data_.windows.num_tokens))) {}

  EvaluationExtent extent() const override {
    EvaluationExtent extent = perplexity_extent(data_, options_.bits, runs_reference());
    if (stored_) extent.held_bytes += stored_->head_bytes();
    if (runs_reference()) extent.held_bytes += observed_bytes_;
    return extent;
  }

  std::unique_ptr<EvaluationResult> run(EvaluatedModels& models, Progress& progress) const override {
    PerplexityComparison with{.model = runs_reference() ? &models.reference_decoder() : nullptr,
                              .stored = stored_ ? &*stored_ : nullptr,
                              .keep = {},
                              .observes_blocks = true};
    models.decoder().use_attention_bits(options_.bits);
    const auto evaluated = [&] {
      return std::make_unique<Perplexity>(
          evaluate_perplexity(models.decoder(), data_, with, stage_of(progress, "evaluate", "windows")));
    };
    if (options_.store.empty()) return evaluated();
    std::unique_ptr<Perplexity> result;
    store_reference(options_.store, models.checkpoint(), data_.windows, data_.first_scored, [&](const auto& keep) {
      with.keep = keep;
      result = evaluated();
    });
    return result;
  }

 private:
  bool runs_reference() const { return options_.reference && !stored_; }

  ScoredWindows data_;
  PerplexityOptions options_;
  std::optional<StoredReference> stored_;
  int64_t observed_bytes_;  // of a batch of windows, behind all blocks
};

}  // namespace

int64_t observed_rows(int64_t window_tokens) {
  constexpr int64_t kShare = 64;
  return std::max<int64_t>(1, window_tokens / kShare);
}

std::vector<double> kl_edges() {
  constexpr int kPerDecade = 4, kLowest = -5, kHighest = 2;
  std::vector<double> edges;
  for (int i = kPerDecade * kLowest; i <= kPerDecade * kHighest; ++i) edges.push_back(std::pow(10.0, i / 4.0));
  return edges;
}

Estimate estimate_over_windows(std::span<const double> values) {
  const auto num = static_cast<double>(values.size());
  Estimate result;
  for (const double value : values) result.value += value / num;
  if (values.size() < 2) return result;
  double sum_of_squares = 0.0;
  for (const double value : values) sum_of_squares += (value - result.value) * (value - result.value);
  result.standard_error = std::sqrt(sum_of_squares / (num - 1.0) / num);
  return result;
}

std::string with_error(const Estimate& estimate, int num_decimals) {
  const std::string value = format_number(estimate.value, num_decimals);
  return estimate.standard_error ? value + " +- " + format_number(*estimate.standard_error, num_decimals) : value;
}

int64_t default_context(Protocol protocol) {
  return protocol == Protocol::gptq ? 2048 : 512;
}

std::string ScoredWindows::label() const {
  return std::string(name_of(protocol)) + ", context " + std::to_string(windows.num_tokens) + ", " +
         std::to_string(windows.num_windows) + " windows, " +
         std::to_string(windows.num_windows * predictions_per_window()) + " predictions of " + source;
}

ScoredWindows make_scored_windows(const std::filesystem::path& text, const Tokenizer* tokenizer,
                                  const ModelDescription& model, const WindowCut& cut) {
  const bool is_npy = holds_token_windows(text);
  const int64_t context = chosen_context(model, cut);
  ScoredWindows data;
  data.protocol = cut.protocol;
  data.source = is_standard_input(text) ? "standard input" : text.filename().string();
  data.windows = read_token_windows(text, tokenizer, context, cut.num_windows, true, model.vocabulary_size);
  const TokenWindows& windows = data.windows;
  if (cut.context != 0 && windows.num_tokens != cut.context) {
    throw std::invalid_argument(text.string() + ": its windows are " + std::to_string(windows.num_tokens) +
                                " tokens wide and are used as they are; a context of " + std::to_string(cut.context) +
                                " was asked for: leave the context out");
  }
  if (windows.num_tokens > model.context_length) {  // of a .npy
    throw std::invalid_argument(text.string() + ": its windows are " + std::to_string(windows.num_tokens) +
                                " tokens wide; the model's context is " + std::to_string(model.context_length) +
                                ": write shorter ones (pare tokenize --tokens N)");
  }
  if (windows.num_windows < std::max<int64_t>(cut.num_windows, 1)) {
    throw std::invalid_argument(text.string() + ": " + std::to_string(cut.num_windows) +
                                " windows were asked for; it has " + std::to_string(windows.num_windows) + " of " +
                                std::to_string(windows.num_tokens) + " tokens");
  }
  if (cut.protocol == Protocol::llama_cpp) {
    data.first_scored = windows.num_tokens / 2;
    const std::optional<int32_t> bos = is_npy ? std::nullopt : tokenizer->bos_token();
    for (int64_t n = 0; bos && n < windows.num_windows; ++n) {
      data.windows.ids_NT[static_cast<size_t>(n * windows.num_tokens)] = *bos;
    }
  }
  if (data.predictions_per_window() < 1) {
    throw std::invalid_argument(text.string() + ": windows of " + std::to_string(windows.num_tokens) +
                                " tokens leave nothing to predict under protocol " +
                                std::string(name_of(cut.protocol)) + ": use a longer context");
  }
  return data;
}

Perplexity evaluate_perplexity(Transformer& model, const ScoredWindows& data, Transformer* reference,
                               const std::function<void(double, int64_t)>& progress) {
  return evaluate_perplexity(
      model, data, PerplexityComparison{.model = reference, .stored = nullptr, .keep = {}, .observes_blocks = false},
      progress);
}

Perplexity evaluate_perplexity(Transformer& model, const ScoredWindows& data, const PerplexityComparison& with,
                               const std::function<void(double, int64_t)>& progress) {
  if (data.windows.num_windows < 1 || data.predictions_per_window() < 1) {
    throw std::invalid_argument(data.source + ": no predictions to score");
  }
  const bool compares = with.model != nullptr || with.stored != nullptr;
  if (with.model != nullptr) check_reference(model, *with.model);
  if (with.stored != nullptr) {
    with.stored->check(data.windows, data.first_scored, model.description().vocabulary_size);
  }
  MemorySampler memory;
  const auto start = std::chrono::steady_clock::now();
  Scorer scorer(model, with, data);
  if (progress) progress(0, data.windows.num_windows);
  for (int64_t done = 0; done < data.windows.num_windows;) {
    throw_if_interrupted();
    done = scorer.score_batch([&](double windows) {
      if (progress) progress(windows, data.windows.num_windows);
    });
    if (progress) progress(static_cast<double>(done), data.windows.num_windows);
  }

  Perplexity result;
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.kv_bits = model.attention_bits().kv;
  result.attention_bits = model.attention_bits().products;
  result.kv_bytes_per_token = model.kv_bytes_per_token();
  if (const InputZeros zeros = model.input_zeros(); zeros.is_counted()) result.zero_inputs = zeros.zero_share();
  result.protocol = name_of(data.protocol);
  result.label = data.label();
  result.context = data.windows.num_tokens;
  result.windows = data.windows.num_windows;
  result.tokens = data.windows.num_windows * data.predictions_per_window();
  // All windows hold equally many predictions, so the mean of their means is the mean over predictions.
  const Estimate nll = estimate(scorer.means(), [](const WindowMeans& w) { return w.nll; });
  result.nll = nll.value;
  for (const WindowMeans& window : scorer.means()) result.window_nll.push_back(window.nll);
  result.perplexity = exponential(nll);
  const auto num_predictions = static_cast<double>(result.tokens);
  const double variance = scorer.sum_of_squared_nll() / num_predictions - nll.value * nll.value;
  result.token_standard_error =
      result.perplexity.value * std::sqrt(std::max(variance, 0.0) / std::max(num_predictions - 1.0, 1.0));
  if (compares) {
    result.comparison =
        compare_means(scorer.means(), std::move(scorer.kl()), std::move(scorer.change()), scorer.losses());
    result.comparison->block_errors = scorer.block_errors();
  } else {
    result.top1_accuracy = estimate(scorer.means(), [](const WindowMeans& w) { return w.agreement; }).value;
  }
  const int64_t num_tokens = result.windows * result.context * (with.model != nullptr ? 2 : 1);
  result.tokens_per_second = static_cast<double>(num_tokens) / result.seconds;
  result.peak_memory_bytes = memory.peak_bytes();
  return result;
}

// The ids, and a divergence and a change for each prediction, are held beside the models.
EvaluationExtent perplexity_extent(const ScoredWindows& data, AttentionBits bits, bool reference) {
  const auto [num_windows, num_tokens] = std::pair(data.windows.num_windows, data.windows.num_tokens);
  return {.reference = reference,
          .num_texts = num_windows,
          .num_tokens = num_windows * num_tokens,
          .workload = {.num_rows = windows_at_once(data) * num_tokens,
                       .num_tokens = num_tokens,
                       .kv_bits = std::min(bits.kv, bits.products)},
          .held_bytes = num_windows * num_tokens * 3 * 4};
}

void PerplexityOptions::fields(FieldVisitor& visit) {
  visit("text", data, "Perplexity is measured on this file: a `.txt`, a `.jsonl`, or a `.npy` of token ids.");
  visit("context", cut.context, {.low = 2, .high = 1 << 20},
        "A window has this many tokens. Without it, the protocol, the `.npy` or the model says how many.");
  visit("windows", cut.num_windows, {.low = 0, .high = 1 << 30},
        "At most this many windows are measured. 0 takes all.");
  visit("protocol", cut.protocol, "Windows are cut and counted as GPTQ's evaluation does, or as llama.cpp's does.");
  visit_bits(visit, bits);
  visit(written_key(), store, "What comparisons need of the result is written to this file, a stored reference.");
  visit("stored_reference", stored_reference,
        "The result is compared with what this file holds of another model. The uncompressed model does not run.");
  visit("reference", reference, "The uncompressed model is measured as well, and compared with.");
}

std::string PerplexityOptions::help(std::string_view key) const {
  if (key == "text") {
    return "measure the perplexity of a decoder on this text: UTF-8 (- for standard input), .jsonl (field text or "
           "messages) or "
           ".npy (token ids [N, T], used as they are)";
  }
  if (key == "context") {
    std::string contexts;
    for (const auto& [protocol, name] : enum_names(Protocol())) {
      contexts += std::to_string(default_context(protocol)) + " with " + std::string(name) + ", ";
    }
    return "tokens per window (default: " + contexts + "at most the model's context; a .npy has its own)";
  }
  if (key == "windows") return "score the first N windows, or all with 0";
  if (key == "store") return "write what comparisons with this model need to FILE, so that it need not run again";
  if (key == "stored_reference")
    return "compare with the model of a file that --store has written, on the same windows";
  return key == "protocol" ? "how the text is cut and scored" : "";
}

std::unique_ptr<Measurement> PerplexityOptions::read(EvaluationSource& source) const {
  if (source.other != nullptr) check_same_vocabulary(source.model.description(), source.other->description());
  check_windows_tokenizers({data}, source.model.directory(), source.events);
  ScoredWindows windows = make_scored_windows(data, source.tokenizer_for(data), source.model.description(), cut);
  if (source.other != nullptr) check_same_tokens(windows, data, *source.other, cut);
  std::optional<StoredReference> stored;
  if (!stored_reference.empty()) {
    if (source.other != nullptr) {
      throw std::invalid_argument("a reference model and a stored reference are given: leave one out");
    }
    stored = StoredReference::open(stored_reference);
    stored->check(windows.windows, windows.first_scored, source.model.description().vocabulary_size);
  }
  if (!store.empty()) check_can_store(store);
  return std::make_unique<PerplexityMeasurement>(std::move(windows), *this, std::move(stored),
                                                 source.model.description());
}

EvaluationRow perplexity_row() {
  return {.key = "perplexity",
          .data_key = "text",
          .option = "text",
          .kind = EvaluatedKind::decoder,
          .subject = "perplexity on a text",
          .meaning = "This measures the perplexity of a decoder on a text.",
          .make_options = [] { return std::make_unique<PerplexityOptions>(); },
          .gates = {{.name = "kl",
                     .limits = {.low = 0.0, .high = 1e6},
                     .meaning = "The KL divergence from the uncompressed model may be at most this."},
                    {.name = "perplexity_ratio",
                     .limits = {.low = 0.0, .high = 1e6},
                     .meaning = "The perplexity may be at most this many times that of the uncompressed model."}},
          .is_always_listed = true};
}

}  // namespace pare::runtime
