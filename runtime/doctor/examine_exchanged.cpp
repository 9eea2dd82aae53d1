#include "runtime/doctor/examine_exchanged.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "runtime/containers/stored_linear.h"
#include "runtime/model/tensor_table.h"

namespace pare::runtime {
namespace {

// Correlations of n drawn values of unrelated weights are about 1 / sqrt(n). So ten times as much is no chance. All
// layers together keep so many values at most, since a mixture has thousands of layers.
constexpr int64_t kMostCompared = 16'384, kFewestCompared = 512, kMostOfAll = int64_t{1} << 24;
constexpr double kErrors = 10.0;
// Weights of 2 bits, and pruned ones, have correlations from 0.8 with what they were.
constexpr double kRelated = 0.5;
constexpr size_t kNamesShown = 3;

// Returns at most num_drawn values, at places that depend on the two numbers alone.
std::vector<float> drawn(const std::vector<float>& values, uint64_t num_drawn) {
  const auto num_values = static_cast<uint64_t>(values.size());
  if (num_values <= num_drawn) return values;
  std::vector<float> some(num_drawn);
  for (uint64_t i = 0; i < num_drawn; ++i) {
    some[i] = values[(i * 0x9E3779B97F4A7C15u >> 11) % num_values];  // multiplicative hashing (Knuth, volume 3, 6.4)
  }
  return some;
}

struct Layer {
  std::string name;  // in the files
  std::vector<int64_t> shape;
  std::vector<float> values, original;  // drawn ones
  double with_own = 0.0, with_other = 0.0;
  const Layer* holds = nullptr;  // the layer whose weight it holds; null: its own
};

// Returns W, float32 [O, I]; empty where it cannot be read, which other exams say.
std::vector<float> weight_of(const Patient& patient, const Needs& needs, const LinearDescription& linear) {
  std::vector<float> weight_OI;
  failure_of([&] {
    std::optional<PackScheme> scheme;
    if (patient.quantization) {
      scheme = stored_scheme(*patient.quantization, patient.table, linear.name,
                             needs.is_embedding(linear.name) ? "Embedding" : "Linear");
    }
    const FindTensor find = patient.find_described();
    if (scheme && !scheme->has_own_tensor()) {
      weight_OI = effective_weight(
          patient.quantization->container->load(find, *scheme, linear.num_out, linear.num_in, linear.name));
      for (const std::string_view suffix : patient.quantization->container->suffixes()) {
        patient.table.drop_pages(linear.name + std::string(suffix));
      }
      return;
    }
    const TensorView* const dense = find(linear.name + ".weight");
    if (dense == nullptr || !is_float_dtype(dense->dtype)) return;
    if (dense->shape != std::vector{linear.num_out, linear.num_in}) return;
    weight_OI.resize(static_cast<size_t>(dense->num_elements()));
    convert_to_float(dense->dtype, dense->data, weight_OI);
    patient.table.drop_pages(linear.name + ".weight");
  });
  return weight_OI;
}

void find_what_it_holds(Layer& layer, const std::vector<Layer>& layers) {
  const std::optional<double> own = correlation(layer.values, layer.original);
  if (!own) return;
  layer.with_own = *own;
  if (*own >= kRelated) return;
  for (const Layer& other : layers) {
    if (other.shape != layer.shape || &other == &layer) continue;
    const double with_other = correlation(layer.values, other.original).value_or(0.0);
    if (with_other <= layer.with_other) continue;
    layer.with_other = with_other;
    layer.holds = &other;
  }
  const double least = *own + kErrors / std::sqrt(static_cast<double>(layer.values.size()));
  if (layer.with_other < std::max(kRelated, least)) layer.holds = nullptr;
}

Finding finding_of(const std::vector<const Layer*>& ill) {
  Finding finding{.illness = Illness::layers_exchanged};
  std::set<const Layer*> holders(ill.begin(), ill.end()), held;
  double with_own = 0.0, with_other = 0.0;
  std::string pairs;
  for (const Layer* layer : ill) {
    held.insert(layer->holds);
    if (finding.concerned.size() < kNamesShown) {
      pairs += (pairs.empty() ? "'" : ", '") + layer->name + "' that of '" + layer->holds->name + "'";
    }
    finding.concerned.push_back(layer->name);
    with_own += layer->with_own / static_cast<double>(ill.size());
    with_other += layer->with_other / static_cast<double>(ill.size());
  }
  if (ill.size() > kNamesShown) pairs += " and so on";
  // A weight that is there twice, and one that is nowhere, may be how the model was made.
  finding.certainty = holders == held ? Certainty::certain : Certainty::likely;
  finding.what = "by the original, " + count_text(ill.size(), "layer") +
                 (ill.size() == 1 ? " holds the weight of another one: " : " hold the weights of others: ") + pairs;
  finding.figures = {{"layers", static_cast<double>(ill.size())},
                     {"correlation_with_own_original", with_own},
                     {"correlation_with_other_original", with_other}};
  finding.advice = "give each layer the tensors of its own name, or quantize the original again";
  return finding;
}

}  // namespace

std::optional<double> correlation(std::span<const float> a, std::span<const float> b) {
  double sum_a = 0.0, sum_b = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum_a += a[i];
    sum_b += b[i];
  }
  const auto number = static_cast<double>(a.size());
  double aa = 0.0, bb = 0.0, ab = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = a[i] - sum_a / number, y = b[i] - sum_b / number;
    aa += x * x;
    bb += y * y;
    ab += x * y;
  }
  const double norm = std::sqrt(aa) * std::sqrt(bb);
  if (!(norm > 0.0) || !std::isfinite(norm)) return std::nullopt;
  return ab / norm;
}

void examine_exchanged(const Patient& patient, const Needs& needs, const OriginalWeight& original,
                       std::vector<Finding>& findings, const std::function<void()>& step) {
  const std::vector<LinearDescription>& linears = needs.linears();
  const auto num_linears = std::max<int64_t>(1, static_cast<int64_t>(linears.size()));
  const auto num_drawn = static_cast<uint64_t>(std::clamp(kMostOfAll / num_linears, kFewestCompared, kMostCompared));
  std::vector<Layer> layers;
  for (const LinearDescription& linear : linears) {
    const std::vector<float> original_OI = original(linear.name, linear.num_out, linear.num_in);
    const std::vector<float> weight_OI = original_OI.empty() ? original_OI : weight_of(patient, needs, linear);
    if (!weight_OI.empty()) {
      layers.push_back({.name = patient.stored_name(linear.name),
                        .shape = {linear.num_out, linear.num_in},
                        .values = drawn(weight_OI, num_drawn),
                        .original = drawn(original_OI, num_drawn)});
    }
    step();
  }
  std::vector<const Layer*> ill;
  for (Layer& layer : layers) {
    find_what_it_holds(layer, layers);
    if (layer.holds != nullptr) ill.push_back(&layer);
  }
  if (!ill.empty()) findings.push_back(finding_of(ill));
}

}  // namespace pare::runtime
