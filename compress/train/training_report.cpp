#include "compress/train/training_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "runtime/system/json_text.h"
#include "runtime/system/progress.h"

namespace pare::compress {
namespace {

using Json = nlohmann::ordered_json;

// "the trained loss": by what a validation is chosen.
std::string measure_words(SelectBy select) {
  return select == SelectBy::loss ? "the trained loss"
         : select == SelectBy::kl ? "KL from the teacher"
                                  : "the perplexity";
}

std::string kept_words(const TrainingState& state) {
  return "kept step " + std::to_string(state.kept_step) + " of " + std::to_string(state.step);
}

Json curve_json(const std::vector<TrainingPoint>& curve) {
  Json points = Json::array();
  const auto add = [](const char* key, const std::optional<double>& value, Json& point) {
    if (value) point[key] = *value;
  };
  for (const TrainingPoint& point : curve) {
    Json json = {{"step", point.step}, {"tokens", point.num_tokens}};
    add("loss", point.loss, json);
    add("validation_loss", point.validation_loss, json);
    add("validation_kl", point.validation_kl, json);
    json["validation_perplexity"] = point.validation_perplexity;
    points.push_back(std::move(json));
  }
  return points;
}

}  // namespace

std::string how_chosen(const DistillOptions& options) {
  if (options.select != SelectBy::last) {
    return "plan: the values of the validation are kept where " + measure_words(options.select) +
           " of the held-out windows is least ('select: " + std::string(runtime::name_of(options.select)) + "')";
  }
  const std::string unmeasured = why_unmeasured(options);
  return "plan: the last step's values are kept ('select: last'" + (unmeasured.empty() ? "" : ": " + unmeasured) + ")";
}

std::string how_kept(const TrainingState& state, const DistillOptions& options) {
  const SelectBy select = options.select;
  const TrainingPoint& kept = kept_point(state.curve, select);
  std::string line = "distill: " + kept_words(state) + (state.is_stopped ? ", where it stopped early: " : ": ");
  if (select == SelectBy::last) {
    line += "the last one";
  } else {
    line += measure_words(select) + " of the held-out windows is least there, " +
            runtime::format_number(*kept.measure(select), 4);
  }
  if (select != SelectBy::perplexity)
    line += "; the held-out windows' perplexity is " + runtime::format_number(kept.validation_perplexity, 3);
  return line;
}

std::string kept_line(const std::string& training) {
  const Json json = runtime::parse_ordered_json(training, "the training");
  return "distill: kept step " + std::to_string(json.at("kept_step").get<int64_t>()) + " of " +
         std::to_string(json.at("steps").get<int64_t>()) + " ('select: " + json.at("select").get<std::string>() +
         "'), perplexity of the held-out windows " +
         runtime::format_number(json.at("kept_validation_perplexity").get<double>(), 3);
}

void note_nothing_kept(const TrainingState& state, const DistillOptions& options, std::vector<std::string>& events) {
  if (state.kept_step > 0) return;
  events.push_back("distill: " + kept_words(state) + ": the result is the model that came in, because after no step " +
                   measure_words(options.select) + " of the held-out windows was less than before the first: lower " +
                   "'learning_rate', train for longer, or choose another 'select'");
}

bool note_guessed_zeros(const StudentModel& student, std::vector<std::string>& events) {
  const std::vector<std::string>& layers = student.guessed_as_pruned();
  if (layers.empty()) return false;
  constexpr size_t kNamed = 3;
  std::string names;
  for (size_t i = 0; i < std::min(kNamed, layers.size()); ++i) names += (i > 0 ? ", " : "") + layers[i];
  if (layers.size() > kNamed) names += ", ...";
  events.push_back(
      "distill: " + std::to_string(layers.size()) + (layers.size() == 1 ? " layer has" : " layers have") +
      " more zeros than " + std::to_string(100 / runtime::kPrunedShare) +
      " %, and nothing says that they were pruned: they are taken for pruned, and their zeros stay 0 ('release_zeros: "
      "true' trains them like other weights, and 'release_zeros: false' says that they are to stay): " +
      names);
  return true;
}

std::string training_json(const TrainingState& state, const DistillOptions& options, const TrainingWindows& windows,
                          const TrainingSpeed* speed) {
  Json json = {{"steps", state.step},
               {"training_windows", windows.training.windows.num_windows},
               {"validation_windows", windows.validation.windows.num_windows},
               {"tokens", windows.training.windows.num_tokens},
               {"stopped_early", state.is_stopped},
               {"select", runtime::name_of(options.select)},
               {"kept_step", state.kept_step},
               {"kept_validation_perplexity", kept_point(state.curve, options.select).validation_perplexity},
               {"curve", curve_json(state.curve)}};
  if (speed != nullptr) {
    json["seconds"] = speed->seconds;
    json["tokens_per_second"] = speed->seconds > 0.0 ? static_cast<double>(speed->num_tokens) / speed->seconds : 0.0;
  }
  return runtime::json_text(json);
}

}  // namespace pare::compress
