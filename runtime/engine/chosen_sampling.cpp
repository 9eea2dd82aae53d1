#include "runtime/engine/chosen_sampling.h"

#include <nlohmann/json.hpp>

#include "runtime/system/json_text.h"

namespace pare::runtime {
namespace {

std::string list(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : ", ") + item;
  return text;
}

}  // namespace

ChosenSampling choose_sampling(const GivenSampling& given, const GenerationConfig& config,
                               const SamplingOptions& otherwise) {
  ChosenSampling chosen = {.sampling = otherwise, .notes = {}};
  std::vector<std::string> values;
  const auto choose = [&](const char* name, auto& value, const auto& of_user, bool file_counts, const auto& of_file) {
    if (of_user) {
      value = *of_user;
    } else if (file_counts) {
      value = of_file;
      values.push_back(std::string(name) + " " + json_text(nlohmann::json(of_file)));
    }
  };
  SamplingOptions& sampling = chosen.sampling;
  choose("temperature", sampling.temperature, given.temperature, config.samples, config.temperature);
  const bool draws = config.samples && sampling.temperature > 0.0;
  if (!draws) values.clear();
  choose("top-k", sampling.top_k, given.top_k, draws, config.top_k);
  choose("top-p", sampling.top_p, given.top_p, draws, config.top_p);
  choose("min-p", sampling.min_p, given.min_p, draws && config.min_p > 0.0, config.min_p);

  const std::string file = kGenerationConfigName;
  if (!values.empty()) {
    chosen.notes.push_back("tokens are drawn as " + file + " says: " + list(values) +
                           " (--temperature 0 takes the most probable ones)");
  }
  values.clear();
  choose("repetition-penalty", sampling.repetition_penalty, given.repetition_penalty, config.repetition_penalty != 1.0,
         config.repetition_penalty);
  if (!values.empty()) {
    chosen.notes.push_back("tokens that came before are less probable, as " + file + " says: " + list(values) +
                           " (--repetition-penalty 1 leaves them as they are)");
  }
  if (!config.not_applied.empty()) {
    chosen.notes.push_back(file + " asks for what pare does not apply: " + list(config.not_applied));
  }
  return chosen;
}

}  // namespace pare::runtime
