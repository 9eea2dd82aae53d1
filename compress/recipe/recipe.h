// A recipe: one YAML file that describes a run completely. The command line only selects one (and may override model,
// output and the resource limits, which never change the bytes written).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "quant/options.h"
#include "runtime/format/stored_scheme.h"

namespace pare {

// activations: inputs are rounded and weights left alone.
enum class Method { rtn, gptq, fp8, llm_int8, activations };
std::string_view method_name(Method method);
// Whether the method rounds to a grid of GridOptions, with bits and groups to choose: rtn and gptq.
bool rounds_to_grid(Method method);

// What one layer gets. GptqOptions::grid holds the grid of rtn and gptq; rtn reads nothing else of it. fp8 reads its
// per_tensor, llm_int8 and activations nothing.
struct LayerOptions {
  Method method = Method::gptq;
  GptqOptions gptq;
  RefineOptions refine;  // sweeps 0: none
  LlmInt8Options llm_int8;
  // How the layer's input is rounded. What calibration decides (the scale and zero of a fixed range, an outlier
  // threshold or columns) is still open.
  InputFormat input;
};

// A pass that scales the inputs of stages before the rounding pass that follows it in the same walk. A stage takes part
// when no layer of it is excluded here or there.
struct ScalingRecipe {
  std::variant<AwqOptions, SmoothQuantOptions> options;
  std::vector<std::string> exclude;  // globs
  std::string_view name() const { return std::holds_alternative<AwqOptions>(options) ? "awq" : "smoothquant"; }
};

// `layers:` of a pass. Patterns are globs over module names ("*.down_proj"); the last matching override wins.
struct LayerOverride {
  std::string pattern;
  std::optional<int> bits;
  std::optional<int64_t> group_size;
  std::optional<bool> symmetric;
  std::optional<InputFormat> input;  // `activations`
};

struct PassRecipe {
  LayerOptions defaults;
  std::vector<std::string> exclude;  // globs; never touched
  std::vector<LayerOverride> overrides;
};

// Which tokens an expert's statistics are taken on; the forward pass goes as the router says in either case.
enum class ExpertTokens { routed, all };

struct CalibrationRecipe {
  std::filesystem::path text;        // .txt, .jsonl or .npy
  std::filesystem::path statistics;  // instead of a text: what pare calibrate made of the uncompressed model
  int64_t num_samples = 128;
  int64_t num_tokens = 512;
  // Which windows of a text are drawn when it has more than num_samples; of a .npy the first are taken, in order.
  uint64_t seed = 0;
  ExpertTokens experts = ExpertTokens::routed;  // of a mixture
};

struct HeadRecipe {
  int bits = 8;
  int64_t group_size = kPerChannel;
};

struct PerplexityRecipe {
  std::filesystem::path text;
  int64_t context = 2048;
  int64_t num_windows = 0;        // 0: all
  std::string protocol = "gptq";  // or "llama.cpp"
  bool reference = true;          // also measure the uncompressed model: KL, agreement, paired error bars
  int kv_bits = 32;               // of the compressed model's keys and values: 32 (float32) or 8
  int attention_bits = 32;        // of its attention's products, likewise; 8 includes kv_bits 8
};

// `embeddings:` of an encoder, on pairs of texts (evaluate_embeddings.h).
struct EmbeddingsRecipe {
  std::filesystem::path pairs;  // .tsv
  bool reference = true;        // also measure the uncompressed model
};

// Whose files the result looks like. LLM.int8 has layouts of its own (LlmInt8Options::layout).
enum class Container { compressed_tensors, awq_gemm };

// `sensitivity:` what rounding each group of layers alone adds to the loss.
struct SensitivityRecipe {
  std::filesystem::path text;      // empty: the first windows of the calibration
  std::optional<int64_t> context;  // tokens of a window; 512, or a .npy's own
  int64_t num_windows = 4;
  // Globs; all layers that match one make a group, with those that engines fuse them with. Empty: each stage of each
  // block is a group (q, k, v; o; gate, up; down).
  std::vector<std::string> groups;
  // Not plain: what rounding each kind of activation site alone to this format adds is measured as well.
  InputFormat sites;
};

// `budget:` bits and group size of each stage of each block are chosen, in place of the pass's own. One of the two:
struct BudgetRecipe {
  std::optional<double> bits;         // per weight of the blocks' linears: codes and scales, without the head
  std::optional<int64_t> size_bytes;  // of all weight files
  std::vector<int> allowed = {2, 3, 4, 8, 16};
};

struct FailIf {
  std::optional<double> kl;
  std::optional<double> perplexity_ratio;
  std::optional<double> cosine;  // the least mean similarity of embeddings with the uncompressed model's
};

struct Recipe {
  std::filesystem::path model;
  std::filesystem::path output;
  std::optional<CalibrationRecipe> calibration;  // required by gptq and by scales weighted with diag(H)
  std::optional<ScalingRecipe> scaling;          // before the rounding pass
  std::vector<PassRecipe> passes;                // at least one, or head; pare calibrate needs neither
  std::optional<HeadRecipe> head;
  Container container = Container::compressed_tensors;
  std::optional<SensitivityRecipe> sensitivity;
  std::optional<BudgetRecipe> budget;
  std::vector<PerplexityRecipe> evaluate;    // of a decoder
  std::vector<EmbeddingsRecipe> embeddings;  // of an encoder
  FailIf fail_if;
  bool strict = false;  // an event (raised damping, dead column, fallback) is an error
  std::string text;     // the file as it was read
  std::filesystem::path file;
};

// Throws std::invalid_argument: "FILE:LINE: ..." with what is allowed and, for a name, the nearest right one. Checks
// all that can be checked without the model: keys, types, ranges, combinations (hessian_diagonal scales without
// calibration, ...), patterns.
Recipe read_recipe(const std::filesystem::path& path);
Recipe parse_recipe(const std::string& yaml, const std::filesystem::path& file);

// What `layer` (module name, [num_out, num_in]) gets under `pass`, or nothing when it is excluded. Throws
// std::invalid_argument when the group size does not divide num_in: the layer, both numbers and the sizes that would.
std::optional<LayerOptions> layer_options(const PassRecipe& pass, const std::string& layer, int64_t num_out,
                                          int64_t num_in);

bool matches_glob(std::string_view pattern, std::string_view name);  // * any run, ? any one character

}  // namespace pare
