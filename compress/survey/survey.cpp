#include "compress/survey/survey.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "compress/passes/compress_layer.h"
#include "compress/passes/resolve_input.h"
#include "compress/walk/block_walk.h"
#include "quant/bit_budget.h"
#include "quant/row_chunks.h"
#include "quant/rtn.h"
#include "runtime/format/stored_linear.h"
#include "runtime/system/interrupt.h"

namespace pare {
namespace {

using Json = nlohmann::ordered_json;

struct Key {
  int64_t block;
  Stage stage;
};

std::string scheme_words(const LayerOptions& options) {
  const GridOptions& grid = options.gptq.grid;
  return std::string(method_name(options.method)) + " " + std::to_string(grid.bits) + " bits " +
         (grid.group_size == kPerChannel ? "per channel" : "g" + std::to_string(grid.group_size)) +
         (grid.symmetric ? "" : " asymmetric");
}

// "model.layers.3: q_proj, k_proj, v_proj"
std::string group_name(const std::string& block, const std::vector<std::string>& layers) {
  std::string name = block + ":";
  for (const std::string& layer : layers) {
    name += (name.back() == ':' ? " " : ", ") + layer.substr(layer.rfind('.') + 1);
  }
  return name;
}

bool divides_all(int64_t group_size, const std::vector<PlannedLayer>& layers) {
  return std::all_of(layers.begin(), layers.end(),
                     [&](const PlannedLayer& layer) { return layer.linear.num_in % group_size == 0; });
}

// The compressed layers of a stage, with a budget's probe in place of the pass's bits and groups.
std::vector<PlannedLayer> surveyed_layers(const std::vector<PlannedLayer>& block, Stage stage, bool probes) {
  std::vector<PlannedLayer> layers;
  for (const PlannedLayer& layer : block) {
    if (layer.stage == stage && layer.options) layers.push_back(layer);
  }
  if (!probes) return layers;
  const int64_t group_size = divides_all(kProbeGroupSize, layers) ? kProbeGroupSize : kPerChannel;
  for (PlannedLayer& layer : layers) {
    layer.options->gptq.grid.bits = kProbeBits;
    layer.options->gptq.grid.group_size = group_size;
  }
  return layers;
}

// One stage at work: its statistics and, for GPTQ, their factor.
struct StageAtWork {
  LayerStatistics statistics;
  std::optional<GptqFactor> factor;
  at::Tensor conditional_I() const { return factor ? factor->conditional_I : at::Tensor(); }
};

StageAtWork prepare(const std::vector<PlannedLayer>& layers, LayerStatistics statistics) {
  std::vector<const PlannedLayer*> pointers;
  for (const PlannedLayer& layer : layers) pointers.push_back(&layer);
  StageAtWork work{std::move(statistics), std::nullopt};
  work.factor = factor_of(pointers, work.statistics.hessian_II);
  return work;
}

double predicted(const std::vector<PlannedLayer>& layers, const DecoderBlock& block, const StageAtWork& work,
                 const GridOptions* instead = nullptr) {
  double sum = 0.0;
  for (const PlannedLayer& layer : layers) {
    GridOptions grid = layer.options->gptq.grid;
    if (instead != nullptr) {
      grid.bits = instead->bits;
      grid.group_size = instead->group_size;
    }
    sum +=
        predict_error(block.weight(layer.stage, layer.index), work.statistics.hessian_II, work.conditional_I(), grid);
  }
  return sum;
}

std::vector<SurveyedCandidate> predict_candidates(const Checkpoint& checkpoint, const std::vector<PlannedLayer>& layers,
                                                  const DecoderBlock& block, const StageAtWork& work,
                                                  const std::vector<int>& allowed_bits) {
  std::vector<SurveyedCandidate> candidates;
  for (const int bits : allowed_bits) {
    for (const int64_t group_size : {kPerChannel, int64_t{128}, int64_t{64}, int64_t{32}}) {
      throw_if_interrupted();
      SurveyedCandidate candidate{bits, group_size, 0, 0.0};
      if (bits == kUnquantizedBits) {
        if (group_size != kPerChannel) continue;
        for (const PlannedLayer& layer : layers) {
          candidate.size_bytes += static_cast<int64_t>(checkpoint.tensor(layer.linear.name + ".weight").data.size());
        }
        candidates.push_back(candidate);
        continue;
      }
      if (group_size != kPerChannel && !divides_all(group_size, layers)) continue;
      for (const PlannedLayer& layer : layers) {
        GridOptions grid = layer.options->gptq.grid;
        grid.bits = bits;
        grid.group_size = group_size;
        candidate.size_bytes += quantized_size_bytes(layer.linear.num_out, layer.linear.num_in, grid);
      }
      const GridOptions instead{.bits = bits, .group_size = group_size};
      candidate.error = predicted(layers, block, work, &instead);
      candidates.push_back(candidate);
    }
  }
  return candidates;
}

StageChange round_stage(const std::vector<PlannedLayer>& layers, Stage stage, const DecoderBlock& block,
                        const StageAtWork& work) {
  StageChange change{stage, {}};
  change.weights_OI.resize(stage_layers(block.description(), stage).size());
  for (const PlannedLayer& layer : layers) {
    throw_if_interrupted();
    const at::Tensor weight_OI = block.weight(stage, layer.index);
    change.weights_OI[layer.index] = effective_weight(
        compress_layer(layer, weight_OI, work.statistics, work.factor, /*input=*/{}).stored);  // weights alone
  }
  return change;
}

void set_losses(const WindowLosses& losses, SurveyedGroup& group) {
  group.increase = estimate_over_windows(losses.increase);
  group.kl = estimate_over_windows(losses.kl);
}

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

std::string scheme_words(const PlannedLayer& layer, RoundedPart part) {
  return part == RoundedPart::weights ? scheme_words(*layer.options) : input_format_name(layer.options->input);
}

// The layers join the group.
void describe(const std::vector<PlannedLayer>& layers, SurveyedGroup& group) {
  for (const PlannedLayer& layer : layers) {
    group.layers.push_back(layer.linear.name);
    group.num_weights += layer.linear.num_out * layer.linear.num_in;
    const std::string scheme = scheme_words(layer, group.part);
    if (group.scheme.find(scheme) != std::string::npos) continue;
    group.scheme += (group.scheme.empty() ? "" : ", ") + scheme;
  }
}

// The inputs of a stage's layers alone rounded, as its layers state it.
StageChange round_input(const std::vector<PlannedLayer>& layers, Stage stage, const LayerStatistics& statistics) {
  return {stage, {}, resolve_input(*layers.front().options, statistics).format};
}

bool rounds_inputs(const PlannedRun& plan) {
  const auto rounds = [](const PlannedLayer& layer) { return layer.options && !layer.options->input.is_plain(); };
  return std::any_of(plan.blocks.begin(), plan.blocks.end(),
                     [&](const auto& block) { return std::any_of(block.begin(), block.end(), rounds); });
}

std::vector<RoundedPart> measured_parts(const PlannedRun& plan, const SurveyOptions& options) {
  if (options.candidate_bits.empty() && rounds_inputs(plan)) return {RoundedPart::weights, RoundedPart::activations};
  return {RoundedPart::weights};
}

std::vector<SiteChange> measured_sites(const SurveyOptions& options) {
  std::vector<SiteChange> sites;
  if (options.sites.is_plain()) return sites;
  for (const ActivationSite site : kActivationSites) sites.push_back({site, options.sites});
  return sites;
}

// The groups of patterns and one part: which of them a stage belongs to, and their rows of the survey.
class PatternGroups {
 public:
  PatternGroups(const std::vector<std::string>& patterns, const PlannedRun& plan, RoundedPart part)
      : patterns_(patterns) {
    for (const std::string& pattern : patterns) {
      SurveyedGroup& group = groups_.emplace_back();
      group.name = pattern;
      group.part = part;
      bool matches = false;
      for (const auto& block : plan.blocks) matches |= std::any_of(block.begin(), block.end(), matching(pattern));
      if (!matches) {
        throw std::invalid_argument("recipe: sensitivity.groups: the pattern '" + pattern +
                                    "' matches no layer that the pass rounds");
      }
    }
  }

  // `changes` by pattern.
  void add(const std::vector<PlannedLayer>& layers, const StageChange& change, double error,
           std::span<std::vector<StageChange>> changes) {
    for (size_t i = 0; i < patterns_.size(); ++i) {
      if (std::none_of(layers.begin(), layers.end(), matching(patterns_[i]))) continue;
      changes[i].push_back(change);
      groups_[i].error += error;
      describe(layers, groups_[i]);
    }
  }

  std::vector<SurveyedGroup>& groups() { return groups_; }

 private:
  static std::function<bool(const PlannedLayer&)> matching(const std::string& pattern) {
    return [&pattern](const PlannedLayer& layer) {
      return layer.options.has_value() && matches_glob(pattern, layer.linear.name);
    };
  }
  const std::vector<std::string>& patterns_;
  std::vector<SurveyedGroup> groups_;
};

}  // namespace

double predict_error(const at::Tensor& weight_OI, const at::Tensor& hessian_II, const at::Tensor& conditional_I,
                     const GridOptions& grid) {
  const bool makes_up = conditional_I.defined();
  GridOptions diagonal_grid = grid;
  at::Tensor diagonal_I = hessian_II.defined() ? hessian_II.diagonal().contiguous() : at::Tensor();
  if (makes_up && grid.scales == ScaleSearch::hessian) {  // as GPTQ weighs them
    diagonal_grid.scales = ScaleSearch::hessian_diagonal;
    diagonal_I = conditional_I;
  }
  const QuantizedWeight rounded = !makes_up && grid.scales == ScaleSearch::hessian
                                      ? rtn_with_hessian(weight_OI, hessian_II, grid)
                                      : rtn(weight_OI, diagonal_I, diagonal_grid);
  std::vector<float> values = dequantize(rounded);
  const at::Tensor rounded_OI = at::from_blob(values.data(), weight_OI.sizes(), at::kFloat);
  if (!makes_up) return trace_error(weight_OI, rounded_OI, hessian_II);
  // By rows of fixed number, summed in their order.
  constexpr int64_t kRows = 64;
  const int64_t num_out = weight_OI.size(0), num_in = weight_OI.size(1);
  const float* weight = weight_OI.const_data_ptr<float>();
  const float* importance = conditional_I.const_data_ptr<float>();
  std::vector<double> sums(static_cast<size_t>((num_out + kRows - 1) / kRows));
  for_row_chunks(num_out, kRows, [&](int64_t first, int64_t count) {
    double sum = 0.0;
    for (int64_t i = first * num_in; i < (first + count) * num_in; ++i) {
      const double error = static_cast<double>(weight[i]) - static_cast<double>(values[static_cast<size_t>(i)]);
      sum += static_cast<double>(importance[i % num_in]) * error * error;
    }
    sums[static_cast<size_t>(first / kRows)] = sum;
  });
  double total = 0.0;
  for (const double sum : sums) total += sum;
  return total;
}

Survey survey_model(const Checkpoint& checkpoint, const PlannedRun& plan, const RunData& data,
                    const CalibrationRecipe& calibration, const ScoredWindows& windows, const SurveyOptions& options,
                    Spill spill, const std::filesystem::path& spill_directory, int num_threads, Progress& progress) {
  const ModelDescription& model = checkpoint.description();
  const bool has_budget = !options.candidate_bits.empty();
  const std::vector<RoundedPart> parts = measured_parts(plan, options);
  const size_t num_patterns = options.patterns.size();
  std::vector<PatternGroups> patterns;
  for (const RoundedPart part : parts) patterns.emplace_back(options.patterns, plan, part);
  const std::vector<SiteChange> sites = measured_sites(options);
  const std::unique_ptr<Backend> backend = make_cpu_backend(detect_isa(), num_threads);
  LeaveOneOut leave_one_out(checkpoint, windows, *backend, num_threads, num_patterns * parts.size(), sites);
  std::optional<BlockWalk> walk;
  if (data.calibration) {
    walk.emplace(model, *data.calibration, checkpoint.linear(checkpoint.embedding()), calibration.seed, spill,
                 spill_directory, num_threads, calibration.experts);
  }
  Survey survey{windows.label(), leave_one_out.baseline_nll(), {}};
  const auto num_blocks = static_cast<int64_t>(model.blocks.size());
  progress.begin("survey", num_blocks, "blocks");
  for (int64_t b = 0; b < num_blocks; ++b) {
    const DecoderBlock block(checkpoint, b, data.calibration ? data.calibration->num_tokens : 1);
    std::vector<StageChange> changes;
    std::vector<std::vector<StageChange>> of_patterns(num_patterns * parts.size());
    const size_t first_group = survey.groups.size();
    for (const Stage stage : block_stages(block.description())) {
      throw_if_interrupted();
      const std::vector<PlannedLayer> layers = surveyed_layers(plan.blocks[static_cast<size_t>(b)], stage, has_budget);
      const bool is_asked = !layers.empty();
      LayerStatistics statistics;
      // The predictions need H, whatever the pass itself needs.
      if (walk) statistics = walk->reach(block, stage, is_asked ? StatisticsNeed::hessian : StatisticsNeed::none);
      if (!is_asked) continue;
      if (data.statistics) statistics = data.statistics->read(block.description(), stage, StatisticsNeed::hessian);
      const StageAtWork work = prepare(layers, std::move(statistics));
      const double error = work.statistics.hessian_II.defined() ? predicted(layers, block, work) : 0.0;
      for (size_t p = 0; p < parts.size(); ++p) {
        const bool is_weights = parts[p] == RoundedPart::weights;
        if (!is_weights && layers.front().options->input.is_plain()) continue;
        StageChange change =
            is_weights ? round_stage(layers, stage, block, work) : round_input(layers, stage, work.statistics);
        if (num_patterns > 0) {
          patterns[p].add(layers, change, is_weights ? error : 0.0,
                          std::span(of_patterns).subspan(p * num_patterns, num_patterns));
          continue;
        }
        SurveyedGroup& group = survey.groups.emplace_back();
        group.part = parts[p];
        describe(layers, group);
        group.name = group_name(block.description().name, group.layers);
        group.error = is_weights ? error : 0.0;
        if (has_budget) group.candidates = predict_candidates(checkpoint, layers, block, work, options.candidate_bits);
        changes.push_back(std::move(change));
      }
    }
    if (walk && b + 1 < num_blocks) walk->leave(block);
    const std::vector<WindowLosses> losses = leave_one_out.measure(changes);
    for (size_t i = 0; i < losses.size(); ++i) set_losses(losses[i], survey.groups[first_group + i]);
    leave_one_out.advance(of_patterns);
    progress.update(b + 1);
  }
  progress.finish();
  const std::vector<WindowLosses> losses = leave_one_out.arrived();
  for (PatternGroups& part : patterns) {
    for (SurveyedGroup& group : part.groups()) survey.groups.push_back(std::move(group));
  }
  for (const SiteChange& change : sites) {
    SurveyedGroup& group = survey.groups.emplace_back();
    group.name = site_name(change.site);
    group.part = RoundedPart::activations;
    group.scheme = input_format_name(change.format);
  }
  const size_t first_traveller = survey.groups.size() - losses.size();
  for (size_t i = 0; i < losses.size(); ++i) set_losses(losses[i], survey.groups[first_traveller + i]);
  return survey;
}

LeaveOneOut::Extent survey_extent(const PlannedRun& plan, const ScoredWindows& windows, const SurveyOptions& options) {
  const auto num_parts = static_cast<int64_t>(measured_parts(plan, options).size());
  const auto num_patterns = static_cast<int64_t>(options.patterns.size());
  return {.num_windows = windows.windows.num_windows,
          .num_tokens = windows.windows.num_tokens,
          .changes_per_block = num_patterns > 0 ? 0 : num_parts * static_cast<int64_t>(kStages.size()),
          .num_travellers = num_patterns * num_parts + static_cast<int64_t>(measured_sites(options).size())};
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
  return json.dump();
}

Survey parse_survey(const std::string& text, const std::string& where) {
  try {
    const Json json = Json::parse(text);
    Survey survey{json.at("label").get<std::string>(), json.at("baseline_nll").get<double>(), {}};
    for (const Json& item : json.at("groups")) {
      SurveyedGroup& group = survey.groups.emplace_back();
      group.name = item.at("name").get<std::string>();
      group.layers = item.at("layers").get<std::vector<std::string>>();
      group.num_weights = item.at("weights").get<int64_t>();
      group.part = item.at("part") == part_name(RoundedPart::weights) ? RoundedPart::weights : RoundedPart::activations;
      group.scheme = item.at("scheme").get<std::string>();
      group.error = item.at("error").get<double>();
      group.increase = parse_estimate(item.at("increase"));
      group.kl = parse_estimate(item.at("kl"));
      for (const Json& candidate : item.value("candidates", Json::array())) {
        group.candidates.push_back({candidate.at("bits").get<int>(), candidate.at("group_size").get<int64_t>(),
                                    candidate.at("size_bytes").get<int64_t>(), candidate.at("error").get<double>()});
      }
    }
    return survey;
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
