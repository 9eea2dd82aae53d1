#include "compress/recipe/distill_pass.h"

#include <algorithm>

namespace pare {

void DistillPass::check(const PassCheck& check) {
  distill.asks_for_tokens = check.was_given("tokens");
  if (distill.text.empty() && distill.logits.empty()) {
    check.fail("",
               "expected 'text:', what the student is trained on, or 'logits:', what pare record made of a teacher");
  }
  for (const char* key : {"text", "teacher", "tokens"}) {
    if (distill.logits.empty() || !check.was_given(key)) continue;
    if (key == std::string_view("tokens") && !distill.validation_text.empty()) continue;  // of its windows
    check.fail(key, "'logits' holds the teacher's tokens and what it says of them: leave this out");
  }
  const bool samples = distill.loss.loss == DistillLoss::minillm;
  for (const char* key : {"minillm", "prompt_tokens", "sampled_tokens"}) {
    if (!samples && check.was_given(key)) check.fail(key, "only 'loss: minillm' samples sequences: leave this out");
  }
  if (distill.loss.hidden_weight > 0.0 &&
      (samples || distill.loss.loss == DistillLoss::hard_label || !distill.logits.empty())) {
    check.fail("hidden_weight", std::string("expected a teacher that reads what the student is trained on: ") +
                                    (!distill.logits.empty() ? "'logits' holds none of its hidden states"
                                     : samples               ? "minillm samples its own sequences"
                                                             : "hard_label has no teacher"));
  }
  if (samples && !distill.logits.empty()) {
    check.fail("logits",
               "minillm asks the teacher about sequences that the student makes up: give 'text' in place of "
               "recorded logits");
  }
  if (samples && distill.prompt_tokens >= distill.tokens && distill.asks_for_tokens) {
    check.fail("prompt_tokens", "expected fewer than the " + std::to_string(distill.tokens) +
                                    " tokens of a window, "
                                    "found " +
                                    std::to_string(distill.prompt_tokens));
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
