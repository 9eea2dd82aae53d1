#include "compress/survey/survey_record.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/system/json_text.h"
#include "runtime/system/progress.h"

namespace pare {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMost = int64_t{1} << 50;  // of weights and bytes, whose sums must fit
constexpr std::array kStoredBits = {2, 3, 4, 8, 16};

Json estimate_json(const Estimate& estimate) {
  return {{"value", estimate.value},
          {"standard_error", estimate.standard_error ? Json(*estimate.standard_error) : Json()}};
}

Estimate parse_estimate(const Json& json) {
  Estimate estimate;
  estimate.value = json.at("value").get<double>();
  if (!json.at("standard_error").is_null()) estimate.standard_error = json.at("standard_error").get<double>();
  return estimate;
}

int64_t whole_number(const Json& item, const char* key, int64_t least) {
  const Json& value = item.at(key);
  const bool fits = value.is_number_integer() && value <= kMost && value >= least;
  if (!fits)
    throw std::invalid_argument(std::string(key) + " is no whole number from " + std::to_string(least) + " on");
  return value.get<int64_t>();
}

double error_of(const Json& item) {
  const auto error = item.at("error").get<double>();
  if (!(error >= 0.0)) throw std::invalid_argument("an error below 0");
  return error;
}

SurveyedCandidate parse_candidate(const Json& item) {
  const int64_t bits = whole_number(item, "bits", 0), group_size = whole_number(item, "group_size", kPerChannel);
  if (std::find(kStoredBits.begin(), kStoredBits.end(), bits) == kStoredBits.end()) {
    throw std::invalid_argument("bits that nothing is stored in");
  }
  if (group_size == 0) throw std::invalid_argument("groups of 0 weights");
  return {static_cast<int>(bits), group_size, whole_number(item, "size_bytes", 1), error_of(item)};
}

}  // namespace

std::string_view part_name(RoundedPart part) {
  switch (part) {
    case RoundedPart::weights:
      return "weights";
    case RoundedPart::activations:
      return "activations";
  }
  throw std::invalid_argument("no such part");
}

std::string to_json(const Survey& survey) {
  Json json = {{"label", survey.label}, {"baseline_nll", survey.baseline_nll}, {"groups", Json::array()}};
  for (const SurveyedGroup& group : survey.groups) {
    Json item = {{"name", group.name},
                 {"layers", group.layers},
                 {"weights", group.num_weights},
                 {"part", part_name(group.part)},
                 {"scheme", group.scheme},
                 {"error", group.error},
                 {"increase", estimate_json(group.increase)},
                 {"kl", estimate_json(group.kl)}};
    for (const SurveyedCandidate& candidate : group.candidates) {
      item["candidates"].push_back({{"bits", candidate.bits},
                                    {"group_size", candidate.group_size},
                                    {"size_bytes", candidate.size_bytes},
                                    {"error", candidate.error}});
    }
    json["groups"].push_back(std::move(item));
  }
  return json_text(json);
}

Survey parse_survey(const std::string& text, const std::string& where) {
  try {
    const Json json = parse_ordered_json(text, where);
    Survey survey{json.at("label").get<std::string>(), json.at("baseline_nll").get<double>(), {}};
    for (const Json& item : json.at("groups")) {
      SurveyedGroup& group = survey.groups.emplace_back();
      group.name = item.at("name").get<std::string>();
      group.layers = item.at("layers").get<std::vector<std::string>>();
      group.num_weights = whole_number(item, "weights", 0);
      group.part = item.at("part") == part_name(RoundedPart::weights) ? RoundedPart::weights : RoundedPart::activations;
      group.scheme = item.at("scheme").get<std::string>();
      group.error = error_of(item);
      group.increase = parse_estimate(item.at("increase"));
      group.kl = parse_estimate(item.at("kl"));
      for (const Json& candidate : item.value("candidates", Json::array())) {
        group.candidates.push_back(parse_candidate(candidate));
      }
    }
    return survey;
  } catch (const BadJson& error) {
    throw std::runtime_error(std::string(error.what()) + ": start anew with --fresh");
  } catch (const std::invalid_argument& error) {
    throw std::runtime_error(where + " is damaged (" + error.what() + "): start anew with --fresh");
  } catch (const Json::exception& error) {
    throw std::runtime_error(where + " is damaged (" + error.what() + "): start anew with --fresh");
  }
}

std::vector<std::string> to_lines(const Survey& survey) {
  std::vector<std::string> lines;
  lines.push_back("sensitivity: what rounding each group alone adds, in nats per token; " + survey.label + "; " +
                  "uncompressed: " + format_number(survey.baseline_nll, 5));
  char line[256];
  std::snprintf(line, sizeof(line), "%-52s %-11s %-22s %22s %22s", "group", "part", "rounded to", "loss (paired)",
                "KL");
  lines.emplace_back(line);
  const auto cell = [](const Estimate& estimate) {
    char text[64];
    if (estimate.standard_error) {
      std::snprintf(text, sizeof(text), "%+.6f +- %.6f", estimate.value, *estimate.standard_error);
    } else {
      std::snprintf(text, sizeof(text), "%+.6f", estimate.value);
    }
    return std::string(text);
  };
  for (const SurveyedGroup& group : survey.groups) {
    std::snprintf(line, sizeof(line), "%-52s %-11s %-22s %22s %22s", group.name.c_str(),
                  std::string(part_name(group.part)).c_str(), group.scheme.c_str(), cell(group.increase).c_str(),
                  cell(group.kl).c_str());
    lines.emplace_back(line);
  }
  return lines;
}

}  // namespace pare
