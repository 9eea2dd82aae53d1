#include "compress/recipe/distill_pass.h"

#include <algorithm>

#include "runtime/evaluate/token_source.h"

namespace pare::compress {
namespace {

// Options of a loss that others do not read.
struct LossOption {
  const char* key;
  std::vector<distill::DistillLoss> readers;
};

const std::vector<LossOption>& loss_options() {
  using enum distill::DistillLoss;
  static const std::vector<LossOption> kOptions = {
      {"temperature",
       {soft_label, forward_kl, reverse_kl, jensen_shannon, skew_kl, skew_reverse_kl, total_variation, slim}},
      {"label_weight", {soft_label}},
      {"soft_form", {soft_label}},
      {"tail_label_weight", {soft_label, forward_kl}},
      {"beta", {jensen_shannon}},
      {"skew", {skew_kl, skew_reverse_kl}},
      {"slim_share", {slim}},
      {"slim_weight", {slim}}};
  return kOptions;
}

void check_loss_options(distill::DistillLoss loss, const PassCheck& check) {
  for (const LossOption& option : loss_options()) {
    const std::vector<distill::DistillLoss>& readers = option.readers;
    if (!check.was_given(option.key) || std::find(readers.begin(), readers.end(), loss) != readers.end()) continue;
    std::string names;
    for (const distill::DistillLoss reader : readers)
      names += (names.empty() ? "" : ", ") + std::string(runtime::name_of(reader));
    check.fail(option.key, "'loss: " + std::string(runtime::name_of(loss)) + "' does not read it; these do: " + names);
  }
}

void check_select(DistillOptions& distill, const PassCheck& check) {
  const std::string unmeasured = why_unmeasured(distill);
  if (!check.was_given("select")) {
    if (!unmeasured.empty()) distill.select = SelectBy::last;
  } else if (!unmeasured.empty() && (distill.select == SelectBy::loss || distill.select == SelectBy::kl)) {
    check.fail("select", "'" + std::string(runtime::name_of(distill.select)) + "' cannot be measured: " + unmeasured +
                             "; expected 'perplexity' or 'last'");
  }
  if (distill.select == SelectBy::kl && !reads_teacher(distill)) {
    check.fail("select",
               "'kl' is a divergence from a teacher, and 'loss: hard_label' has none: expected 'loss', "
               "'perplexity' or 'last'");
  }
  if (distill.select == SelectBy::last && distill.patience > 0) {
    check.fail("patience",
               "'select: last' compares no validations, so none is better than another: leave this out, or give " +
                   std::string(unmeasured.empty() ? "another 'select'" : "'select: perplexity'"));
  }
}

}  // namespace

bool reads_teacher(const DistillOptions& options) {
  return options.loss.loss != distill::DistillLoss::hard_label;
}

std::string why_unmeasured(const DistillOptions& options) {
  if (options.loss.loss == distill::DistillLoss::minillm) {
    return "minillm's loss is measured on sequences that the student makes up, which differ at every step";
  }
  if (reads_teacher(options) && !options.logits.empty() && !options.validation_text.empty()) {
    return "'logits' holds nothing that the teacher says about 'validation_text'";
  }
  return {};
}

std::optional<distill::DistillLossOptions> held_out_loss(const DistillOptions& options) {
  if (options.select == SelectBy::loss) return options.loss;
  if (options.select == SelectBy::kl)
    return distill::DistillLossOptions{.loss = distill::DistillLoss::forward_kl, .temperature = 1.0};
  return std::nullopt;
}

void TrainedParts::fields(runtime::FieldVisitor& visit) {
  visit("weights", weights, "Weights of linears are trained, or the offsets of their codes. Pruned ones stay 0.");
  visit("scales", scales, "Scales of codes are trained.");
  visit("vectors", vectors, "Gains of norms and biases are trained.");
  visit("embedding", embedding, "The embedding and the head are trained.");
}

void DistillOptions::fields(runtime::FieldVisitor& visit) {
  visit("text", text,
        "The student is trained on these files. A `.txt` is one document, a `.jsonl` has one a line, and a `.npy` has "
        "windows of token ids.");
  visit("student", student,
        "This checkpoint is trained. Without it, the model is trained as the recipe has made it so far.");
  visit("teacher", teacher, "This checkpoint is the teacher. Without it, the recipe's `model` is.");
  visit("logits", logits,
        "The teacher is a file that `pare record` made. It takes the place of both `text` and `teacher`.");
  visit("tokens", tokens, {.low = 2, .high = 1 << 20}, "A window has this many tokens. A `.npy` has its own number.");
  visit("windows", windows, {.low = 0, .high = 1 << 24},
        "At most this many windows are drawn from the texts. 0 takes all.");
  visit("total_tokens", total_tokens, {.low = 1, .high = 1e15},
        "Training ends after this many tokens. Windows are seen as often as that takes.");
  visit("batch", batch, {.low = 1, .high = 1 << 16}, "Each step takes this many windows.");
  visit("micro_batch", micro_batch, {.low = 1, .high = 1 << 16},
        "This many windows go through the model at once. The number divides `batch`.");
  loss.fields(visit);
  visit("minillm", minillm, "These options say how `loss: minillm` trains.");
  visit("prompt_tokens", prompt_tokens, {.low = 1, .high = 1 << 20},
        "With `loss: minillm`, the student continues this many tokens of a window.");
  visit("sampled_tokens", sampled_tokens, {.low = 1, .high = 1 << 20},
        "With `loss: minillm`, the student writes this many tokens.");
  optimizer.fields(visit);
  visit("learning_rate", learning_rate, {.low = runtime::kAboveZero, .high = 10.0},
        "This is the step size of weights, gains and biases.");
  visit("scale_learning_rate", scale_learning_rate, {.low = runtime::kAboveZero, .high = 10.0},
        "This is the step size of scales, relative to their size.");
  visit("offset_learning_rate", offset_learning_rate, {.low = runtime::kAboveZero, .high = 10.0},
        "This is the step size of codes' offsets, in steps of their grid.");
  visit("warmup", warmup, {.low = 0.0, .high = 1.0}, "Rates rise from 0 over this share of the steps.");
  visit("final_rate", final_rate, {.low = 0.0, .high = 1.0},
        "Rates fall to this share of themselves at the last step.");
  visit("clip", clip, {.low = 0.0, .high = 1e6},
        "Gradients are scaled down where their norm exceeds this. 0 never scales them.");
  visit("train", train, "These options say which parts of the model are trained.");
  visit_precision(visit, precision);
  visit("recompute", recompute,
        "Activations are computed again in the backward pass. This saves memory and changes no result.");
  visit("end_of_document", end_of_document,
        "This token ends each document of a text. Without it, the tokenizer's end of text does.");
  visit("validation_text", validation_text,
        "Validations read this file. Without it, windows of the text are held out for them.");
  visit("validation_windows", validation_windows, {.low = 1, .high = 1 << 20}, "Validations read this many windows.");
  visit("validations", validations, {.low = 1, .high = 100000},
        "Training is validated this many times, at even distances.");
  visit("select", select,
        "The values of the validation where this is least are kept. `last` keeps those of the last step, which is the "
        "default where the loss cannot be measured.");
  visit("patience", patience, {.low = 0, .high = 100000},
        "Training stops after this many validations without a better one. 0 never stops it.");
  visit("seed", seed, {.low = 0, .high = 9007199254740992.0}, "Windows are drawn and ordered with this seed.");
}

void DistillPass::check(const PassCheck& check) {
  distill.asks_for_tokens = check.was_given("tokens");
  for (const char* key : {"scale_learning_rate", "offset_learning_rate"}) {
    if (check.was_given(key)) distill.asked_code_rates.emplace_back(key);
  }
  if (distill.text.empty() && distill.logits.empty()) {
    check.fail("",
               "expected 'text:' (what the student is trained on) or 'logits:' (what pare record made of a teacher)");
  }
  for (const char* key : {"text", "teacher", "tokens"}) {
    if (distill.logits.empty() || !check.was_given(key)) continue;
    if (key == std::string_view("tokens") && !distill.validation_text.empty()) continue;  // of its windows
    check.fail(key, "'logits' holds the teacher's tokens and what it says about them: leave this out");
  }
  const auto is_text = [](const std::string& file) { return !file.empty() && !runtime::holds_token_windows(file); };
  if (check.was_given("end_of_document") && !is_text(distill.validation_text) &&
      std::none_of(distill.text.begin(), distill.text.end(), is_text)) {
    check.fail("end_of_document", "no text is read whose documents would end with it: leave this out");
  }
  check_loss_options(distill.loss.loss, check);
  const bool samples = distill.loss.loss == distill::DistillLoss::minillm;
  for (const char* key : {"minillm", "prompt_tokens", "sampled_tokens"}) {
    if (!samples && check.was_given(key)) check.fail(key, "only 'loss: minillm' samples sequences: leave this out");
  }
  if (samples && distill.minillm.clip != distill::RatioClip::none &&
      distill.minillm.weights != distill::ImportanceWeights::single_step) {
    check.fail("minillm", "'ratio_clip: " + std::string(runtime::name_of(distill.minillm.clip)) +
                              "' clips the ratio of 'importance_weights: " +
                              std::string(runtime::name_of(distill::ImportanceWeights::single_step)) + "', found '" +
                              std::string(runtime::name_of(distill.minillm.weights)) +
                              "': add 'ratio_clip: " + std::string(runtime::name_of(distill::RatioClip::none)) + "'");
  }
  if (distill.loss.hidden_weight > 0.0 &&
      (samples || distill.loss.loss == distill::DistillLoss::hard_label || !distill.logits.empty())) {
    check.fail("hidden_weight", std::string("expected a teacher that reads what the student is trained on: ") +
                                    (!distill.logits.empty() ? "'logits' holds none of its hidden states"
                                     : samples               ? "minillm samples its own sequences"
                                                             : "hard_label has no teacher"));
  }
  if (distill.loss.tail_label_weight > 0.0 && distill.logits.empty()) {
    check.fail(
        "tail_label_weight",
        "a teacher that runs gives all its logits and merges none: leave this out, or give what pare record made "
        "of one as 'logits'");
  }
  if (samples && !distill.logits.empty()) {
    check.fail("logits",
               "minillm asks the teacher about sequences that the student makes up: give 'text' in place of "
               "recorded logits");
  }
  if (samples && distill.prompt_tokens >= distill.tokens && distill.asks_for_tokens) {
    check.fail("prompt_tokens",
               "'loss: minillm' continues the first 'prompt_tokens' of a window: expected fewer than "
               "its " +
                   std::to_string(distill.tokens) + " tokens, found " + std::to_string(distill.prompt_tokens));
  }
  if (distill.batch % distill.micro_batch != 0) {
    check.fail(check.was_given("micro_batch") ? "micro_batch" : "batch",
               "expected 'micro_batch' to divide 'batch', found " + std::to_string(distill.micro_batch) + " and " +
                   std::to_string(distill.batch));
  }
  const double most = 1.0 - distill::kLeastShareOfMixture;
  const double beta = distill.loss.beta;
  const bool is_mixed = distill.loss.loss == distill::DistillLoss::jensen_shannon && beta > 0.0 && beta < 1.0;
  if (is_mixed && (beta < distill::kLeastShareOfMixture || beta > most)) {
    check.fail("beta",
               "expected 0, 1, or 0.0001 to 0.9999: closer to the ends, the gradient is lost in the rounding of "
               "float32; the limit is 'beta: " +
                   std::string(beta < 0.5 ? "0', forward_kl" : "1', reverse_kl"));
  }
  if (distill.loss.tail_label_weight > 0.0 && distill.loss.temperature != 1.0) {
    check.fail("tail_label_weight",
               "expected 'temperature: 1': the text's own tokens are drawn at temperature 1, and at "
               "another one they disagree with the teacher about the tokens that were merged");
  }
  check_select(distill, check);
  const TrainedParts& parts = distill.train;
  if (!parts.weights && !parts.scales && !parts.vectors && !parts.embedding) {
    check.fail("train", "nothing is left to train");
  }
}

void DistillPass::files(const VisitFile& visit) {
  for (std::string& text : distill.text) visit("text", text);
  visit("student", distill.student);
  visit("teacher", distill.teacher);
  visit("logits", distill.logits);
  visit("validation_text", distill.validation_text);
}

std::string why_not_trained(const runtime::PackScheme& scheme) {
  if (scheme.input.has_outliers()) {
    return "columns that are kept in floating point beside 8-bit ones (llm_int8) cannot be trained: distil before "
           "that pass";
  }
  if (!scheme.is_dense() && !scheme.is_integer()) {
    return std::string(scheme.code->name) + " codes cannot be trained: distil before that pass";
  }
  return "";
}

const DistillOptions* training_of(const Recipe& phase) {
  return phase.passes.size() == 1 ? phase.passes.front().options->training() : nullptr;
}

std::vector<Recipe> phases_of(const Recipe& recipe) {
  const auto trains = [](const PassRecipe& pass) { return scope_of(pass.options->kind()) == PassScope::model; };
  if (!recipe.student && std::none_of(recipe.passes.begin(), recipe.passes.end(), trains)) return {recipe};
  std::vector<Recipe> phases;
  if (recipe.student) {
    phases.push_back(recipe);
    phases.back().passes.clear();
  }
  for (const PassRecipe& pass : recipe.passes) {
    const bool joins =
        !phases.empty() && !phases.back().student && !trains(pass) && !trains(phases.back().passes.back());
    if (!joins) {
      phases.push_back(recipe);
      phases.back().passes.clear();
      phases.back().student.reset();
    }
    phases.back().passes.push_back(pass);
  }
  const auto last_layerwise = std::find_if(phases.rbegin(), phases.rend(), [](const Recipe& phase) {
    return !phase.student && training_of(phase) == nullptr;
  });
  for (Recipe& phase : phases) {
    // What this run's own phases have pruned is no zero of the source.
    if (&phase != &phases.front() && phase.kept_zeros == KeptZeros::none) phase.kept_zeros = KeptZeros::claimed;
    if (&phase != &phases.back()) {
      phase.evaluate.clear();
      phase.benchmark.reset();
      phase.fail_if = {};
    }
    if (last_layerwise != phases.rend() && &phase == &*last_layerwise) continue;
    phase.head.reset();
    phase.budget.reset();
    phase.sensitivity.reset();
  }
  return phases;
}

}  // namespace pare::compress
