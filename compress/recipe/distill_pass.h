// `distill:` an item of a recipe's passes that trains the whole model from a teacher: its options and their defaults,
// and the phases that such items cut a recipe into. Free of LibTorch, so that recipes can be read without it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compress/recipe/pass_options.h"
#include "compress/recipe/recipe.h"
#include "compress/recipe/training_precision.h"
#include "distill/adamw_options.h"
#include "distill/options.h"
#include "runtime/format/fields.h"

namespace pare::compress {

// Which parts of the student are trained.
struct TrainedParts {
  bool weights = true;     // of linears: floating point (pruned ones stay 0), or offsets of codes on their grid
  bool scales = true;      // of quantized linears
  bool vectors = true;     // gains of norms, biases
  bool embedding = false;  // and the head

  void fields(runtime::FieldVisitor& visit);
};

// By what the validation is chosen whose values are kept, of all of a training's, the one before its first step
// included: the trained loss on held-out windows, their perplexity, or KL(teacher || student) at temperature 1 on them,
// the least of each. last: no choice; the last step's values are kept.
enum class SelectBy { loss, perplexity, kl, last };
inline std::span<const runtime::EnumName<SelectBy>> enum_names(SelectBy) {
  static constexpr std::array<runtime::EnumName<SelectBy>, 4> kNames = {
      {{SelectBy::loss, "loss"}, {SelectBy::perplexity, "perplexity"}, {SelectBy::kl, "kl"}, {SelectBy::last, "last"}}};
  return kNames;
}

struct DistillOptions {
  // Trained on: a .txt, which is one document, a .jsonl of documents, or a .npy of windows; or several, each cut into
  // windows of its own.
  std::vector<std::string> text;
  std::string student;            // the checkpoint that is trained; empty: what the recipe's items before this one give
  std::string teacher;            // a checkpoint; empty: the recipe's model
  std::string logits;             // instead of text and teacher: what pare record made of one
  int64_t tokens = 512;           // of a window; a .npy has windows of its own length
  int64_t windows = 0;            // at most, drawn by `seed`; 0: all
  int64_t total_tokens = 200000;  // to train on: windows are seen as often as that takes
  int64_t batch = 4;              // windows of a step
  int64_t micro_batch = 1;        // windows that go through the model at once; divides batch
  distill::DistillLossOptions loss;
  // Of loss minillm: the first prompt_tokens of a window are continued by sampled_tokens.
  distill::MiniLlmOptions minillm;
  int64_t prompt_tokens = 64;
  int64_t sampled_tokens = 64;
  distill::AdamWOptions optimizer;
  double learning_rate = 1e-4;         // of weights, gains, biases
  double scale_learning_rate = 1e-3;   // of scales, relative to their size
  double offset_learning_rate = 1e-2;  // of offsets, in steps of the grid
  double warmup = 0.05;                // of the steps
  double final_rate = 0.05;            // of the learning rate, at the last step
  double clip = 1.0;                   // of the norm of all gradients; 0: none
  TrainedParts train;
  TrainingPrecision precision = TrainingPrecision::automatic;
  bool recompute = false;       // activations of blocks are computed again in the backward pass instead of kept
  std::string end_of_document;  // the token that ends each document of a text; empty: the tokenizer's end of text
  std::string validation_text;  // empty: windows of the text that are not trained on
  int64_t validation_windows = 16;
  int64_t validations = 10;          // how often on the way, evenly
  SelectBy select = SelectBy::loss;  // as a default `last` where no teacher speaks of what is held out
  int64_t patience = 0;              // stop after so many validations without a better one; 0: never
  int64_t seed = 0;
  bool asks_for_tokens = false;               // the recipe gives `tokens`
  std::vector<std::string> asked_code_rates;  // which rates of layers in codes the recipe gives

  void fields(runtime::FieldVisitor& visit);
};

// Whether the loss is one of a teacher's.
bool reads_teacher(const DistillOptions& options);
// Why no held-out windows have the trained loss, nor a divergence from the teacher, in words; empty where they have.
std::string why_unmeasured(const DistillOptions& options);
// The loss that held-out windows are measured by, beside their perplexity; none: by nothing else.
std::optional<distill::DistillLossOptions> held_out_loss(const DistillOptions& options);

class DistillPass : public OptionsOf<DistillPass, PassKind::trains> {
 public:
  DistillOptions distill;
  std::string_view meaning() const override { return "Trains the whole model from a teacher."; }
  void fields(runtime::FieldVisitor& visit) override { distill.fields(visit); }
  void check(const PassCheck& check) override;
  void files(const VisitFile& visit) override;
  const DistillOptions* training() const override { return &distill; }
};

// Why linears that are stored so cannot be trained, in words; empty: they can.
std::string why_not_trained(const runtime::PackScheme& scheme);

// What the pipeline does one after the other: layerwise passes that stand next to each other share a phase, and each
// training pass is one, as is the making of a student, which comes first. The last phase has the recipe's evaluations
// and gates, the last layerwise one its head, budget and sensitivity; container and strictness are everyone's. One
// phase: the recipe itself.
std::vector<Recipe> phases_of(const Recipe& recipe);
// Null for a layerwise phase.
const DistillOptions* training_of(const Recipe& phase);

}  // namespace pare::compress
