// Perplexity by named protocols, and the distance of a model from a reference model on the same tokens.
//
// Every window is scored alone: position 0 is its first token and nothing is cached across windows.
//   gptq       the whole text is tokenized once, special tokens as the tokenizer's post-processor adds them (a BOS
//              stands at the start of the stream only); non-overlapping windows of 2048, the tail dropped; positions
//              0 .. T-2 predict their next token. (IST-DASLab/gptq, opt.py: opt_eval; its x T / (T - 1) cancels.)
//   llama.cpp  windows of 512; where the tokenizer has a BOS it takes the place of each window's first token;
//              positions T/2 .. T-2 are scored. (llama.cpp, tools/perplexity/perplexity.cpp.)
// The windows of a .npy file are used as they are, under either protocol.
//   perplexity = exp(sum of nll / number of scored predictions), nll in nats, sums in float64.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/engine/transformer.h"
#include "runtime/evaluate/evaluation.h"
#include "runtime/evaluate/stored_reference.h"
#include "runtime/evaluate/token_statistics.h"
#include "runtime/files/npy.h"
#include "runtime/format/fields.h"
#include "runtime/tokenizer/tokenizer.h"

namespace pare::runtime {

enum class Protocol { gptq, llama_cpp };
inline std::span<const EnumName<Protocol>> enum_names(Protocol) {
  static constexpr EnumName<Protocol> kNames[] = {{Protocol::gptq, "gptq"}, {Protocol::llama_cpp, "llama.cpp"}};
  return kNames;
}
int64_t default_context(Protocol protocol);  // tokens per window

struct WindowCut {
  Protocol protocol = Protocol::gptq;
  int64_t context = 0;  // tokens per window; 0: the protocol's (2048 or 512), or the model's context if that is shorter
  int64_t num_windows = 0;  // the first ones; 0: all
};

// Windows, and the positions in them that count.
struct ScoredWindows {
  Protocol protocol = Protocol::gptq;
  TokenWindows windows;
  int64_t first_scored = 0;  // positions first_scored .. T-2 predict their next token
  std::string source;        // name of the file they came from

  int64_t predictions_per_window() const { return windows.num_tokens - 1 - first_scored; }
  // Returns "gptq, context 2048, 40 windows, 81880 predictions of wikitext2.txt", which stands beside every figure.
  std::string label() const;
};

// Cuts `text` (a text, .jsonl, .npy) as the protocol says. tokenizer may be null for .npy. Throws std::invalid_argument
// for a context or windows beyond the model's context, a context other than a .npy's, fewer windows than asked for, a
// text shorter than one window, and a missing tokenizer.
ScoredWindows make_scored_windows(const std::filesystem::path& text, const Tokenizer* tokenizer,
                                  const ModelDescription& model, const WindowCut& cut);

// A mean over windows. Windows are the independent draws (tokens inside one are not), so standard_error = s / sqrt(N),
// where s is the sample standard deviation of the N windows' values. For a perplexity it is carried through exp() to
// first order. A single window gives no estimate of the error.
struct Estimate {
  double value = 0.0;
  std::optional<double> standard_error;
};
// `values` has one value for each window, and at least one.
Estimate estimate_over_windows(std::span<const double> values);
// Returns "12.3456 +- 0.0012", or the value alone.
std::string with_error(const Estimate& estimate, int num_decimals);

// Compares model Q with reference P on the same windows. Differences are taken window by window before the error is
// estimated. So the part that is hard for both cancels.
struct Comparison {
  Estimate reference_perplexity;
  double reference_nll = 0.0;
  Estimate perplexity_ratio;       // Q / P
  Estimate perplexity_difference;  // Q - P
  Estimate kl_mean;                // KL(P || Q) per token, in nats
  TokenStatistics kl;              // the same, over all tokens
  std::vector<int64_t> kl_counts;  // of tokens: below, between and above the edges of kl_edges
  // How much Q's probability of the text's own token exceeds P's.
  Estimate probability_change_mean;
  TokenStatistics probability_change;
  double nll_correlation = 0.0;  // between the windows' losses under P and Q
  Estimate top1_agreement;       // share of positions with the same most probable token
  // Behind each block: |h - h0|^2 / |h0|^2, where h is Q's residual stream and h0 is P's, over the observed_rows of all
  // windows. So it is what all layers up to there have changed together. Empty: not measured.
  std::vector<double> block_errors;
};

// Returns the tokens of a window, its last ones, whose residual stream is compared: one in 64, at least one.
int64_t observed_rows(int64_t window_tokens);

// Returns the inner edges of a histogram of tokens' KL: four in each power of ten from 1e-5 to 100 nats. Its first
// count is of what lies below the first edge, and its last of what does not lie below the last one.
std::vector<double> kl_edges();

struct Perplexity : EvaluationResult {
  std::string protocol;  // its name
  std::string label;     // ScoredWindows::label
  int64_t context = 0;   // tokens per window
  int64_t windows = 0;
  int64_t tokens = 0;              // scored predictions
  double nll = 0.0;                // mean, nats
  std::vector<double> window_nll;  // for each window, so that two models' figures on the same windows compare in pairs
  Estimate perplexity;
  double token_standard_error = 0.0;  // the perplexity's, if all tokens were independent (what llama.cpp prints)
  std::optional<double>
      top1_accuracy;  // share of targets that are the most probable token; not measured with a reference
  std::optional<Comparison> comparison;
  int kv_bits = 0;                    // the model's keys and values; the reference has its own
  int attention_bits = 0;             // attention's products, likewise
  int64_t kv_bytes_per_token = 0;     // what a token adds to a cache of the model
  std::optional<double> zero_inputs;  // the share of zeros among the inputs of linears that expect them
  double seconds = 0.0;               // only scoring, without loading
  double tokens_per_second = 0.0;     // all tokens of the windows, of each model, per second

  // Returns one JSON object, with the members above as keys on one level: perplexity, standard_error (the
  // perplexity's), nll, window_nll, tokens, windows, context, protocol, protocol_label, seconds, tokens_per_second,
  // peak_memory_bytes, ...; with a reference also kl_mean, kl_p99, kl, probability_change, top1_agreement, ...
  std::string to_json() const override;
  std::string to_text() const override;
  std::vector<Figure> figures() const override;
  std::string data_label() const override { return label; }
  std::optional<double> figure(std::string_view gate) const override;  // "kl", "perplexity_ratio"
};

// Runs windows in batches of a few thousand tokens and never holds all logits. `reference` may be null; it must share
// the model's backend object and vocabulary (else std::invalid_argument). `progress` (may be empty) gets the windows
// done, with a fraction for those under way, and the number of windows. Throws std::runtime_error if a likelihood is
// not finite (window and position), and Interrupted between blocks.
Perplexity evaluate_perplexity(Transformer& model, const ScoredWindows& data, Transformer* reference,
                               const std::function<void(double, int64_t)>& progress = {});

// A model is compared with one of these, and `keep` sees its hidden states.
struct PerplexityComparison {
  Transformer* model = nullptr;                      // a reference that runs
  const StoredReference* stored = nullptr;           // or one that ran earlier, on the same windows
  std::function<void(std::span<const float>)> keep;  // gets each window's states at scored positions, [S, D]
  // Comparison::block_errors are measured, if the reference runs and has as many blocks, of the same width.
  bool observes_blocks = false;
};
Perplexity evaluate_perplexity(Transformer& model, const ScoredWindows& data, const PerplexityComparison& with,
                               const std::function<void(double, int64_t)>& progress);

// Returns what that takes, with these bits of the model and perhaps a reference.
EvaluationExtent perplexity_extent(const ScoredWindows& data, AttentionBits bits, bool reference);

class PerplexityOptions : public EvaluationOptionsOf<PerplexityOptions> {
 public:
  WindowCut cut;
  AttentionBits bits;                   // of the model; the reference keeps 32
  std::string store, stored_reference;  // files (stored_reference.h); empty: none

  void fields(FieldVisitor& visit) override;
  void other_files(const std::function<void(std::string_view, std::string&)>& visit) override {
    visit("stored_reference", stored_reference);
  }
  std::string written_file() const override { return store; }
  std::string_view written_key() const override { return "store"; }
  std::string help(std::string_view key) const override;
  std::unique_ptr<Measurement> read(EvaluationSource& source) const override;
};
EvaluationRow perplexity_row();

}  // namespace pare::runtime
