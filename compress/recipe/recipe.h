// A recipe: one YAML file that describes a run completely. The command line only selects one (and may override model,
// output and the resource limits, which never change the bytes written).
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compress/recipe/pass.h"
#include "compress/recipe/student_options.h"
#include "runtime/commands/bench.h"
#include "runtime/evaluate/evaluation.h"
#include "runtime/export/folder_formats.h"
#include "runtime/export/gguf_formats.h"

namespace pare::compress {

// `layers: {override: {PATTERN: ...}}` of a pass: the options that layers of that name get instead. Patterns are globs
// over module names ("*.down_proj"); the last that matches wins.
struct LayerOverride {
  std::string pattern;
  std::vector<runtime::NamedField> values;
};

// An item of `passes:`, in the order in which they are applied to each layer.
struct PassRecipe {
  const PassRow* row = nullptr;
  std::shared_ptr<const PassOptions> options;
  std::vector<std::string> exclude;  // globs; never touched
  std::vector<LayerOverride> overrides;
};

// Which tokens an expert's statistics are taken on; the forward pass goes as the router says in either case.
enum class ExpertTokens { routed, all };
inline std::span<const runtime::EnumName<ExpertTokens>> enum_names(ExpertTokens) {
  static constexpr std::array<runtime::EnumName<ExpertTokens>, 2> kNames = {
      {{ExpertTokens::routed, "routed"}, {ExpertTokens::all, "all"}}};
  return kNames;
}

inline constexpr int64_t kCalibrationSamples = 128, kCalibrationTokens = 512;

struct CalibrationRecipe {
  std::filesystem::path text;        // .txt, .jsonl or .npy
  std::filesystem::path statistics;  // instead of a text: what pare calibrate made of the uncompressed model
  // Empty: kCalibrationSamples and kCalibrationTokens, or what the text has where that is less; a .npy has its own
  // tokens.
  std::optional<int64_t> num_samples, num_tokens;
  // Which windows of a text are drawn when it has more than num_samples; of a .npy the first are taken, in order.
  uint64_t seed = 0;
  ExpertTokens experts = ExpertTokens::routed;  // of a mixture

  void fields(runtime::FieldVisitor& visit);
};

struct HeadRecipe {
  int bits = 8;
  int64_t group_size = runtime::kPerChannel;

  void fields(runtime::FieldVisitor& visit);
};

// An item of `evaluate:`.
struct EvaluationRecipe {
  const runtime::EvaluationRow* row = nullptr;
  std::shared_ptr<const runtime::EvaluationOptions> options;
};

// `benchmark:` how fast the result runs here, and how near that is to the limits of the machine.
struct BenchmarkRecipe {
  runtime::BenchOptions options;
  bool reference = true;  // the uncompressed model is measured as well

  void fields(runtime::FieldVisitor& visit);
};

// `sweep:` one recipe for each choice of values (compress/sweep). What stands in its grid is read there.
struct SweepRecipe {
  bool statistics = true;  // all points start from one file of statistics, if the recipe has a text to calibrate on

  void fields(runtime::FieldVisitor& visit);
};

// `sensitivity:` what rounding each group of layers alone adds to the loss.
struct SensitivityRecipe {
  std::filesystem::path text;      // empty: the first windows of the calibration
  std::optional<int64_t> context;  // tokens of a window; 512, or a .npy's own
  int64_t num_windows = 4;
  // Globs; all layers that match one make a group, with those that engines fuse them with. Empty: each stage of each
  // block is a group (q, k, v; o; gate, up; down).
  std::vector<std::string> groups;
  // Not plain: what rounding each kind of activation site alone to this format adds is measured as well.
  runtime::InputFormat sites;

  void fields(runtime::FieldVisitor& visit);
};

// `budget:` bits and group size of each stage of each block are chosen, in place of the pass's own. One of the two:
struct BudgetRecipe {
  std::optional<double> bits;         // per weight of the blocks' linears: codes and scales, without the head
  std::optional<int64_t> size_bytes;  // of all weight files
  std::vector<int> allowed = {2, 3, 4, 8, 16};

  void fields(runtime::FieldVisitor& visit);
};

// Bounds of what the evaluations measure, by the names of their gates.
struct FailIf {
  std::map<std::string, double, std::less<>> bounds;

  void fields(runtime::FieldVisitor& visit);
};

// Which zeros that a run's source has already stay zeros in every pass (runtime/commands/layer_sparsity.h): those that
// pruning has made; of these the ones alone that the source's own files speak of; or none.
enum class KeptZeros { pruned, claimed, none };

struct Recipe {
  std::filesystem::path model;
  std::string base_model;  // the model's name on the Hugging Face Hub; empty: not known
  std::filesystem::path output;
  std::optional<CalibrationRecipe> calibration;  // required by gptq and by scales weighted with diag(H)
  std::optional<StudentOptions> student;         // the model is first made smaller so
  std::vector<PassRecipe> passes;                // at least one, or head; pare calibrate needs neither
  std::optional<HeadRecipe> head;
  // Whose files the result looks like (runtime/format/container_format.h). LLM.int8 has layouts of its own.
  std::string container = std::string(runtime::kCompressedTensors);
  // What the result is written as where `container:` names none: as `pare export --format` writes it, from layers that
  // are in `container` until then. At most one is not null.
  const runtime::FolderFormat* folder_format = nullptr;  // nvfp4, mxfp4, dense
  const runtime::GgufFormat* gguf_format = nullptr;
  bool asks_for_container = false;  // whether the recipe says so itself: it is then one that something is stored in
  std::optional<SensitivityRecipe> sensitivity;
  std::optional<BudgetRecipe> budget;
  std::vector<EvaluationRecipe> evaluate;  // in the order of their table
  std::optional<BenchmarkRecipe> benchmark;
  FailIf fail_if;
  std::optional<SweepRecipe> sweep;  // pare sweep makes recipes without it
  KeptZeros kept_zeros = KeptZeros::pruned;
  bool asks_for_zeros = false;  // whether the recipe says so itself: what is found is then no event
  bool strict = false;          // an event (raised damping, dead column, fallback) is an error
  std::string text;             // the file as it was read
  std::filesystem::path file;

  // What `container:` names.
  std::string_view asked_container() const;
  // Whether the result is another form of the folder that its layers are assembled in: dense weights, or a GGUF file.
  bool has_other_form() const { return gguf_format != nullptr || is_dense_form(); }
  bool is_dense_form() const { return folder_format != nullptr && folder_format->container.empty(); }

  // Its keys (recipe_keys.cpp): `passes` and `evaluate` are lists, which parse_recipe reads item by item.
  void fields(runtime::FieldVisitor& visit);
};

// Throws std::invalid_argument: "FILE:LINE: ..." with what is allowed and, for a name, the nearest right one. Checks
// all that can be checked without the model: keys, types, ranges, combinations (hessian_diagonal scales without
// calibration, ...), patterns.
Recipe read_recipe(const std::filesystem::path& path);
// The file's text. Throws std::runtime_error for what cannot be read, or is larger than any recipe.
std::string read_recipe_text(const std::filesystem::path& path);
Recipe parse_recipe(const std::string& yaml, const std::filesystem::path& file);

// The recipe's pass of that kind; null when there is none.
const PassRecipe* find_pass(const Recipe& recipe, PassKind kind);

// The options of `layer` (module name, [num_out, num_in]) under `pass`, or null when it is excluded. Throws
// std::invalid_argument where they do not fit it, such as a group size that does not divide num_in.
std::shared_ptr<PassOptions> layer_options(const PassRecipe& pass, const std::string& layer, int64_t num_out,
                                           int64_t num_in);

bool matches_glob(std::string_view pattern, std::string_view name);  // * any run, ? any one character

}  // namespace pare::compress
