#include "compress/survey/survey_record.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/system/json_text.h"
#include "runtime/system/progress.h"
#include "runtime/system/visible_text.h"

namespace pare::compress {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMost = int64_t{1} << 50;  // for weights and bytes, whose sums must fit
constexpr std::array kStoredBits = {2, 3, 4, 8, 16};

Json estimate_json(const runtime::Estimate& estimate) {
  return {{"value", estimate.value},
          {"standard_error", estimate.standard_error ? Json(*estimate.standard_error) : Json()}};
}

runtime::Estimate parse_estimate(const Json& json) {
  runtime::Estimate estimate;
  estimate.value = json.at("value").get<double>();
  if (!json.at("standard_error").is_null()) estimate.standard_error = json.at("standard_error").get<double>();
  return estimate;
}

int64_t whole_number(const Json& item, const char* key, int64_t least) {
  const Json& value = item.at(key);
  const bool fits = value.is_number_integer() && value <= kMost && value >= least;
  if (!fits)
    throw std::invalid_argument(std::string(key) + " is not a whole number of at least " + std::to_string(least));
  return value.get<int64_t>();
}

double error_of(const Json& item) {
  const auto error = item.at("error").get<double>();
  if (!(error >= 0.0)) throw std::invalid_argument("an error below 0");
  return error;
}

SurveyedCandidate parse_candidate(const Json& item) {
  const int64_t bits = whole_number(item, "bits", 0),
                group_size = whole_number(item, "group_size", runtime::kPerChannel);
  if (std::find(kStoredBits.begin(), kStoredBits.end(), bits) == kStoredBits.end()) {
    throw std::invalid_argument("a number of bits that nothing is stored in");
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
  return runtime::json_text(json);
}

Survey parse_survey(const std::string& text, const std::string& where) {
  try {
    const Json json = runtime::parse_ordered_json(text, where);
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
  } catch (const runtime::BadJson& error) {
    throw std::runtime_error(std::string(error.what()) + ": start over with --fresh");
  } catch (const std::invalid_argument& error) {
    throw std::runtime_error(where + " is damaged (" + error.what() + "): start over with --fresh");
  } catch (const Json::exception& error) {
    throw std::runtime_error(where + " is damaged (" + error.what() + "): start over with --fresh");
  }
}

std::vector<std::string> to_lines(const Survey& survey, size_t num_columns) {
  enum Column : size_t { kGroup, kPart, kScheme, kLoss, kKl, kNumColumns };
  const auto cell = [](const runtime::Estimate& estimate) {
    const std::string value = (estimate.value < 0.0 ? "" : "+") + runtime::format_number(estimate.value, 6);
    return estimate.standard_error ? value + " +- " + runtime::format_number(*estimate.standard_error, 6) : value;
  };
  std::vector<std::array<std::string, kNumColumns>> rows = {{"group", "part", "rounded to", "loss (paired)", "KL"}};
  for (const SurveyedGroup& group : survey.groups) {
    rows.push_back(
        {group.name, std::string(part_name(group.part)), group.scheme, cell(group.increase), cell(group.kl)});
  }
  constexpr size_t kGap = 2;
  std::array<size_t, kNumColumns> widths = {};
  for (const auto& row : rows) {
    for (size_t c = 0; c < kNumColumns; ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  const auto all = [&] {
    size_t sum = 0;
    for (const size_t width : widths) sum += width > 0 ? width + kGap : 0;
    return sum - kGap;
  };
  constexpr size_t kLeastName = 24;  // the least length of a group's name before a column is left out for it
  for (const size_t left_out : {kScheme, kPart, kKl}) {
    if (all() > num_columns + widths[kGroup] - std::min(widths[kGroup], kLeastName)) widths[left_out] = 0;
  }
  if (all() > num_columns)
    widths[kGroup] -= std::min(all() - num_columns, widths[kGroup] - std::min(widths[kGroup], kLeastName));

  std::vector<std::string> lines = {"sensitivity: what rounding each group alone adds, in nats per token; " +
                                    survey.label + "; uncompressed: " + runtime::format_number(survey.baseline_nll, 5)};
  for (const auto& row : rows) {
    std::string line;
    for (size_t c = 0; c < kNumColumns; ++c) {
      if (widths[c] == 0) continue;
      const std::string text = c == kGroup ? runtime::shortened_name(row[c], widths[c]) : row[c];
      const std::string fill(widths[c] - text.size(), ' ');
      const bool is_number = c == kLoss || c == kKl;
      line += (line.empty() ? "" : std::string(kGap, ' ')) + (is_number ? fill + text : text + fill);
    }
    lines.push_back(line.substr(0, line.find_last_not_of(' ') + 1));
  }
  return lines;
}

}  // namespace pare::compress
