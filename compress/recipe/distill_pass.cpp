#include "compress/recipe/distill_pass.h"

#include <algorithm>

#include "runtime/evaluate/token_source.h"

namespace pare {
namespace {

// Options of a loss that others do not read.
struct LossOption {
  const char* key;
  std::vector<DistillLoss> readers;
};

const std::vector<LossOption>& loss_options() {
  using enum DistillLoss;
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

void check_loss_options(DistillLoss loss, const PassCheck& check) {
  for (const LossOption& option : loss_options()) {
    const std::vector<DistillLoss>& readers = option.readers;
    if (!check.was_given(option.key) || std::find(readers.begin(), readers.end(), loss) != readers.end()) continue;
    std::string names;
    for (const DistillLoss reader : readers) names += (names.empty() ? "" : ", ") + std::string(name_of(reader));
    check.fail(option.key, "'loss: " + std::string(name_of(loss)) + "' does not read it; these do: " + names);
  }
}

void check_select(DistillOptions& distill, const PassCheck& check) {
  const std::string unmeasured = why_unmeasured(distill);
  if (!check.was_given("select")) {
    if (!unmeasured.empty()) distill.select = SelectBy::last;
  } else if (!unmeasured.empty() && (distill.select == SelectBy::loss || distill.select == SelectBy::kl)) {
    check.fail("select", "'" + std::string(name_of(distill.select)) + "' cannot be measured: " + unmeasured +
                             "; expected 'perplexity' or 'last'");
  }
  if (distill.select == SelectBy::kl && !reads_teacher(distill)) {
    check.fail("select",
               "'kl' is a divergence from a teacher, and 'loss: hard_label' has none: expected 'loss', "
               "'perplexity' or 'last'");
  }
  if (distill.select == SelectBy::last && distill.patience > 0) {
    check.fail("patience",
               "'select: last' compares no validations, so that none is better than another: leave this out, or give " +
                   std::string(unmeasured.empty() ? "another 'select'" : "'select: perplexity'"));
  }
}

}  // namespace

bool reads_teacher(const DistillOptions& options) {
  return options.loss.loss != DistillLoss::hard_label;
}

std::string why_unmeasured(const DistillOptions& options) {
  if (options.loss.loss == DistillLoss::minillm) {
    return "minillm's loss is of sequences that the student makes up, others at every step";
  }
  if (reads_teacher(options) && !options.logits.empty() && !options.validation_text.empty()) {
    return "'logits' holds nothing that the teacher says of 'validation_text'";
  }
  return {};
}

std::optional<DistillLossOptions> held_out_loss(const DistillOptions& options) {
  if (options.select == SelectBy::loss) return options.loss;
  if (options.select == SelectBy::kl) return DistillLossOptions{.loss = DistillLoss::forward_kl, .temperature = 1.0};
  return std::nullopt;
}

void DistillPass::check(const PassCheck& check) {
  distill.asks_for_tokens = check.was_given("tokens");
  for (const char* key : {"scale_learning_rate", "offset_learning_rate"}) {
    if (check.was_given(key)) distill.asked_code_rates.emplace_back(key);
  }
  if (distill.text.empty() && distill.logits.empty()) {
    check.fail("",
               "expected 'text:', what the student is trained on, or 'logits:', what pare record made of a teacher");
  }
  for (const char* key : {"text", "teacher", "tokens"}) {
    if (distill.logits.empty() || !check.was_given(key)) continue;
    if (key == std::string_view("tokens") && !distill.validation_text.empty()) continue;  // of its windows
    check.fail(key, "'logits' holds the teacher's tokens and what it says of them: leave this out");
  }
  const auto is_text = [](const std::string& file) { return !file.empty() && !holds_token_windows(file); };
  if (check.was_given("end_of_document") && !is_text(distill.validation_text) &&
      std::none_of(distill.text.begin(), distill.text.end(), is_text)) {
    check.fail("end_of_document", "no text is read, of which documents would end with it: leave this out");
  }
  check_loss_options(distill.loss.loss, check);
  const bool samples = distill.loss.loss == DistillLoss::minillm;
  for (const char* key : {"minillm", "prompt_tokens", "sampled_tokens"}) {
    if (!samples && check.was_given(key)) check.fail(key, "only 'loss: minillm' samples sequences: leave this out");
  }
  if (samples && distill.minillm.clip != RatioClip::none && distill.minillm.weights != ImportanceWeights::single_step) {
    check.fail("minillm",
               "'ratio_clip: " + std::string(name_of(distill.minillm.clip)) +
                   "' clips the ratio of 'importance_weights: " + std::string(name_of(ImportanceWeights::single_step)) +
                   "', found '" + std::string(name_of(distill.minillm.weights)) +
                   "': add 'ratio_clip: " + std::string(name_of(RatioClip::none)) + "'");
  }
  if (distill.loss.hidden_weight > 0.0 &&
      (samples || distill.loss.loss == DistillLoss::hard_label || !distill.logits.empty())) {
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
  const bool is_skewed = distill.loss.loss == DistillLoss::skew_kl || distill.loss.loss == DistillLoss::skew_reverse_kl;
  if (is_skewed && distill.loss.skew >= 1.0) {
    check.fail("skew", "expected below 1: a distribution is then compared with itself, and nothing is learned");
  }
  const double most = 1.0 - kLeastShareOfMixture;
  if (is_skewed && distill.loss.skew > most) {
    check.fail("skew",
               "expected at most 0.9999: a distribution is then compared with nearly itself, and the difference is "
               "lost in the rounding of float32");
  }
  const double beta = distill.loss.beta;
  const bool is_mixed = distill.loss.loss == DistillLoss::jensen_shannon && beta > 0.0 && beta < 1.0;
  if (is_mixed && (beta < kLeastShareOfMixture || beta > most)) {
    check.fail("beta",
               "expected 0, 1, or 0.0001 to 0.9999: so near to the ends the gradient is lost in the rounding of "
               "float32; what it tends to is 'beta: " +
                   std::string(beta < 0.5 ? "0', forward_kl" : "1', reverse_kl"));
  }
  if (distill.loss.tail_label_weight > 0.0 && distill.loss.temperature != 1.0) {
    check.fail("tail_label_weight",
               "expected 'temperature: 1': the text's own tokens are drawn at temperature 1, and at "
               "another one they say something else than the teacher of the tokens that were merged");
  }
  check_select(distill, check);
  const TrainedParts& parts = distill.train;
  if (!parts.weights && !parts.scales && !parts.vectors && !parts.embedding) {
    check.fail("train", "nothing is left to train");
  }
}

const PassRow& distill_row() {
  static const PassRow kRow = {"distill", [] { return std::make_unique<DistillPass>(); }, nullptr};
  return kRow;
}

const DistillOptions* training_of(const Recipe& phase) {
  if (phase.passes.size() != 1) return nullptr;
  const auto* const pass = dynamic_cast<const DistillPass*>(phase.passes.front().options.get());
  return pass == nullptr ? nullptr : &pass->distill;
}

std::vector<Recipe> phases_of(const Recipe& recipe) {
  const auto trains = [](const PassRecipe& pass) { return pass.options->kind() == PassKind::trains; };
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
      phase.instructions.clear();
      phase.embeddings.clear();
      phase.fail_if = {};
    }
    if (last_layerwise != phases.rend() && &phase == &*last_layerwise) continue;
    phase.head.reset();
    phase.budget.reset();
    phase.sensitivity.reset();
  }
  return phases;
}

}  // namespace pare
