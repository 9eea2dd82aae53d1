#include "compress/survey/budget.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "quant/sensitivity.h"
#include "runtime/system/json_text.h"
#include "runtime/system/progress.h"
#include "runtime/system/visible_text.h"

namespace pare::compress {
namespace {

using Json = nlohmann::ordered_json;

// The most bytes that a tensor's entry takes in the header of a safetensors file. A compressed layer has up to three
// more tensors than before.
constexpr int64_t kHeaderBytes = 200;
constexpr int64_t kLayerHeaderBytes = 3 * kHeaderBytes;
// The bytes of the container's weight_shape. Layers that are left alone have none, but are charged with one. Otherwise
// the sizes would have no larger common unit than 16 bytes, and the exact table over them would not fit.
constexpr int64_t kShapeBytes = 16;

int64_t weight_bytes(const runtime::Checkpoint& checkpoint, const LayerPlan& layer) {
  return checkpoint.layout(layer.linear.name + ".weight").num_bytes();
}

struct LinearSizes {
  int64_t num_weights = 0;       // weights of all linears in blocks
  int64_t num_layers = 0;        // the number of these linears
  int64_t source_bytes = 0;      // bytes of all of them in the source
  int64_t left_alone_bytes = 0;  // bytes of those that the pass excludes
};

LinearSizes linear_sizes(const RunPlan& plan, const runtime::Checkpoint& checkpoint) {
  LinearSizes sizes;
  for (const auto& layers : plan.blocks) {
    for (const LayerPlan& layer : layers) {
      const int64_t bytes = weight_bytes(checkpoint, layer);
      sizes.num_weights += layer.linear.num_out * layer.linear.num_in;
      ++sizes.num_layers;
      sizes.source_bytes += bytes;
      if (!layer.is_compressed()) sizes.left_alone_bytes += bytes;
    }
  }
  return sizes;
}

// Returns the bytes that the weight files hold beside the blocks' linears.
int64_t rest_bytes(const RunPlan& plan, const runtime::Checkpoint& checkpoint, const LinearSizes& sizes) {
  int64_t rest = sizes.num_layers * kLayerHeaderBytes - sizes.source_bytes;
  for (const std::string& name : checkpoint.tensor_names()) {
    rest += checkpoint.layout(name).num_bytes() + kHeaderBytes;
  }
  for (const TablePlan& table : plan.tables) {
    rest -= checkpoint.layout(table.linear.name + ".weight").num_bytes();
    rest += quant::quantized_size_bytes(table.linear.num_out, table.linear.num_in, table.grid);
  }
  return rest;
}

// Returns the bytes of the blocks' linears with the fewest bits allowed and one scale per channel.
int64_t smallest_bytes(const BudgetRecipe& budget, const RunPlan& plan, const runtime::Checkpoint& checkpoint) {
  const int bits = *std::min_element(budget.allowed.begin(), budget.allowed.end());
  int64_t bytes = 0;
  for (const auto& layers : plan.blocks) {
    for (const LayerPlan& layer : layers) {
      if (!layer.is_compressed() || bits == quant::kUnquantizedBits) {
        bytes += weight_bytes(checkpoint, layer);
        continue;
      }
      quant::GridOptions grid = *layer.step(PassKind::rounds)->grid();
      grid.bits = bits;
      grid.group_size = runtime::kPerChannel;
      bytes += quant::quantized_size_bytes(layer.linear.num_out, layer.linear.num_in, grid);
    }
  }
  return bytes;
}

std::string scheme(int bits, int64_t group_size) {
  if (bits == quant::kUnquantizedBits) return "unquantized";
  return std::to_string(bits) + " bits " +
         (group_size == runtime::kPerChannel ? std::string("per channel") : "g" + std::to_string(group_size));
}

std::vector<quant::Sensitivity> sensitivities(const Survey& survey) {
  std::vector<quant::SensitivityMeasurement> measurements;
  for (const SurveyedGroup& group : survey.groups) {
    measurements.push_back({group.name, group.error, group.kl.value, group.kl.standard_error.value_or(0.0)});
  }
  return quant::loss_sensitivities(measurements);
}

// Adds a mark for one scheme for all groups, where all groups have it as a candidate.
void add_mark(const std::vector<quant::BudgetGroup>& groups, int bits, int64_t group_size, int64_t fixed_bytes,
              std::vector<quant::PictureMark>& marks) {
  quant::PictureMark mark{scheme(bits, group_size), fixed_bytes, 0.0};
  for (const quant::BudgetGroup& group : groups) {
    const auto found =
        std::find_if(group.candidates.begin(), group.candidates.end(),
                     [&](const quant::BitCandidate& c) { return c.bits == bits && c.group_size == group_size; });
    if (found == group.candidates.end()) return;
    mark.size_bytes += found->size_bytes;
    mark.loss += found->loss;
  }
  marks.push_back(std::move(mark));
}

// Returns the last point of the curve within the size, or null if all are larger.
const quant::CurvePoint* best_within(const std::vector<quant::CurvePoint>& curve, double size_bytes) {
  const auto next = std::find_if(curve.begin(), curve.end(), [&](const quant::CurvePoint& point) {
    return static_cast<double>(point.size_bytes) > size_bytes;
  });
  return next == curve.begin() ? nullptr : &*std::prev(next);
}

// Returns rows at every quarter of a bit from the smallest model to a little above 8 bits, then at every half bit. Rows
// that would repeat the one before are left out.
std::vector<std::pair<double, const quant::CurvePoint*>> curve_table(const BitChoice& choice) {
  std::vector<std::pair<double, const quant::CurvePoint*>> rows;
  const auto num_weights = static_cast<double>(choice.num_weights);
  const double last = 8.0 * static_cast<double>(choice.curve.back().size_bytes) / num_weights;
  constexpr int kEveryQuarter = 34;  // quarters of a bit up to which each has a row
  for (int quarters = 8; quarters < 4.0 * (last + 1.0); quarters += quarters < kEveryQuarter ? 1 : 2) {
    const double bits = quarters / 4.0;
    const quant::CurvePoint* point = best_within(choice.curve, bits * num_weights / 8.0);
    if (point != nullptr && (rows.empty() || rows.back().second != point)) rows.emplace_back(bits, point);
  }
  return rows;
}

}  // namespace

int64_t budget_bytes(const BudgetRecipe& budget, const RunPlan& plan, const runtime::Checkpoint& checkpoint) {
  const LinearSizes sizes = linear_sizes(plan, checkpoint);
  int64_t bytes = 0;
  if (budget.bits) {
    bytes = static_cast<int64_t>(std::floor(*budget.bits * static_cast<double>(sizes.num_weights) / 8.0));
  } else {
    bytes = *budget.size_bytes - rest_bytes(plan, checkpoint, sizes);
  }
  const int64_t smallest = smallest_bytes(budget, plan, checkpoint);
  if (bytes >= smallest) return bytes;
  const std::string asked = budget.bits ? runtime::format_number(*budget.bits, 3) + " bits per weight"
                                        : runtime::format_bytes(*budget.size_bytes);
  const std::string least =
      budget.bits
          ? runtime::format_number(8.0 * static_cast<double>(smallest) / static_cast<double>(sizes.num_weights), 3) +
                " bits per weight"
          : runtime::format_bytes(*budget.size_bytes - bytes + smallest);
  throw std::invalid_argument("recipe: budget: " + asked +
                              " is too little; the least that these layers and the allowed "
                              "bits can come to is " +
                              least + ": raise it, or allow fewer bits" +
                              (budget.size_bytes && plan.tables.empty() ? ", or add 'head: {bits: 8}'" : ""));
}

BitChoice choose_bits(const Survey& survey, const RunPlan& plan, const runtime::Checkpoint& checkpoint) {
  const LinearSizes sizes = linear_sizes(plan, checkpoint);
  const std::vector<quant::Sensitivity> measured = sensitivities(survey);
  std::vector<quant::BudgetGroup> groups;
  for (size_t g = 0; g < survey.groups.size(); ++g) {
    quant::BudgetGroup& group = groups.emplace_back();
    group.name = survey.groups[g].name;
    const auto shape_bytes = static_cast<int64_t>(survey.groups[g].layers.size()) * kShapeBytes;
    for (const SurveyedCandidate& candidate : survey.groups[g].candidates) {
      group.candidates.push_back({candidate.bits, candidate.group_size,
                                  candidate.size_bytes + (candidate.bits == quant::kUnquantizedBits ? shape_bytes : 0),
                                  candidate.error * measured[g].loss_per_error});
    }
  }
  const quant::BudgetPlan solved = quant::plan_bits(groups, plan.budget_bytes.value() - sizes.left_alone_bytes);

  BitChoice choice;
  choice.budget_bytes = *plan.budget_bytes;
  choice.size_bytes = sizes.left_alone_bytes;
  choice.num_weights = sizes.num_weights;
  choice.loss = solved.loss;
  choice.lower_bound = solved.lower_bound;
  choice.is_exact = solved.is_exact;
  choice.curve = solved.curve;
  for (quant::CurvePoint& point : choice.curve) point.size_bytes += sizes.left_alone_bytes;
  for (size_t g = 0; g < groups.size(); ++g) {
    const quant::BitCandidate& chosen = groups[g].candidates[static_cast<size_t>(solved.chosen[g])];
    const int64_t size_bytes = survey.groups[g].candidates[static_cast<size_t>(solved.chosen[g])].size_bytes;
    choice.groups.push_back({groups[g].name, survey.groups[g].layers, chosen.bits, chosen.group_size, size_bytes,
                             measured[g].loss_per_error, measured[g].is_floor, chosen.loss});
    choice.size_bytes += size_bytes;
  }
  for (const int bits : {3, 4, 8}) {
    for (const int64_t group_size : {runtime::kPerChannel, int64_t{64}, int64_t{32}}) {
      if (bits != 8 || group_size == runtime::kPerChannel) {
        add_mark(groups, bits, group_size, sizes.left_alone_bytes, choice.marks);
      }
    }
  }
  return choice;
}

void apply_choice(const BitChoice& choice, RunPlan& plan) {
  std::map<std::string, const ChosenBits*> by_layer;
  for (const ChosenBits& group : choice.groups) {
    for (const std::string& layer : group.layers) by_layer[layer] = &group;
  }
  std::vector<std::string> unquantized;
  std::set<std::string> in_blocks;
  for (auto& layers : plan.blocks) {
    for (LayerPlan& layer : layers) {
      in_blocks.insert(layer.linear.name);
      const auto found = by_layer.find(layer.linear.name);
      if (found != by_layer.end() && found->second->bits == quant::kUnquantizedBits) {
        layer.steps.clear();
      } else if (found != by_layer.end()) {
        use_grid(found->second->bits, found->second->group_size, layer);
        plan_storage(std::string(layer.scheme.container), layer);
      }
      if (!layer.is_compressed()) unquantized.push_back(layer.linear.name);
    }
  }
  for (const std::string& name : plan.unquantized) {
    if (!in_blocks.contains(name)) unquantized.push_back(name);  // the head
  }
  plan.unquantized = std::move(unquantized);
}

std::vector<std::string> to_lines(const BitChoice& choice, size_t num_columns) {
  std::vector<std::string> lines;
  char line[256];
  size_t longest_name = 0, longest_rest = 0;
  std::vector<std::string> rests;
  for (const ChosenBits& group : choice.groups) {
    std::snprintf(line, sizeof(line), "  %-12s loss %.3e%s", scheme(group.bits, group.group_size).c_str(), group.loss,
                  group.is_floor ? " (within its error of 0)" : "");
    rests.emplace_back(line);
    longest_name = std::max(longest_name, group.name.size());
    longest_rest = std::max(longest_rest, rests.back().size());
  }
  const std::string head = "budget: ";
  constexpr size_t kLeastName = 16;  // the least length that a name is shortened to for the terminal
  const size_t room = num_columns - std::min(num_columns, head.size() + longest_rest);
  const size_t name_columns = std::min(longest_name, std::max(room, kLeastName));
  for (size_t i = 0; i < rests.size(); ++i) {
    const std::string name = runtime::shortened_name(choice.groups[i].name, name_columns);
    lines.push_back(head + name + std::string(name_columns - std::min(name_columns, name.size()), ' ') + rests[i]);
  }
  const auto bits = [&](int64_t size_bytes) {
    return 8.0 * static_cast<double>(size_bytes) / static_cast<double>(choice.num_weights);
  };
  lines.emplace_back("budget: the curve: bits per weight (blocks' linears: codes and scales), predicted loss in nats");
  for (const auto& [limit, point] : curve_table(choice)) {
    std::snprintf(line, sizeof(line), "budget: %6.2f  %.4e", limit, point->loss);
    lines.emplace_back(line);
  }
  for (const quant::PictureMark& mark : choice.marks) {
    std::snprintf(line, sizeof(line), "budget: %-24s %6.3f bits  %.4e", ("all " + mark.label).c_str(),
                  bits(mark.size_bytes), mark.loss);
    lines.emplace_back(line);
  }
  std::snprintf(line, sizeof(line), "budget: chosen %.4f of %.4f bits per weight (%s), predicted loss %.4e, %s",
                choice.bits_per_weight(), bits(choice.budget_bytes), runtime::format_bytes(choice.size_bytes).c_str(),
                choice.loss, choice.is_exact ? "exactly the least" : "near the least");
  lines.emplace_back(line);
  return lines;
}

std::string to_json(const BitChoice& choice, bool curve) {
  Json json = {{"bits_per_weight", choice.bits_per_weight()},
               {"budget_bytes", choice.budget_bytes},
               {"size_bytes", choice.size_bytes},
               {"weights", choice.num_weights},
               {"predicted_loss", choice.loss},
               {"lower_bound", choice.lower_bound},
               {"exact", choice.is_exact},
               {"groups", Json::array()}};
  for (const ChosenBits& group : choice.groups) {
    json["groups"].push_back({{"name", group.name},
                              {"layers", group.layers},
                              {"bits", group.bits},
                              {"group_size", group.group_size},
                              {"size_bytes", group.size_bytes},
                              {"loss_per_error", group.loss_per_error},
                              {"sensitivity_is_floor", group.is_floor},
                              {"predicted_loss", group.loss}});
  }
  for (const quant::PictureMark& mark : choice.marks) {
    json["uniform"].push_back({{"scheme", mark.label}, {"size_bytes", mark.size_bytes}, {"predicted_loss", mark.loss}});
  }
  if (!curve) return runtime::json_text(json);
  for (const auto& [limit, point] : curve_table(choice)) {
    json["curve"].push_back(
        {{"bits_per_weight", limit}, {"size_bytes", point->size_bytes}, {"predicted_loss", point->loss}});
  }
  return runtime::json_text(json);
}

std::string picture(const BitChoice& choice) {
  quant::BudgetPicture drawn;
  drawn.title = "Bits where they pay";
  drawn.loss_label = "predicted loss (nats per token)";
  drawn.num_weights = choice.num_weights;
  drawn.curve = choice.curve;
  char label[64];
  std::snprintf(label, sizeof(label), "chosen: %.2f bits", choice.bits_per_weight());
  drawn.chosen = {label, choice.size_bytes, choice.loss};
  drawn.marks = choice.marks;
  const quant::Plot plot = quant::budget_plot(drawn);
  return quant::plot_document({&plot, 1});
}

}  // namespace pare::compress
