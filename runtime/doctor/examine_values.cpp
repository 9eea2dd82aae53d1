#include "runtime/doctor/examine_values.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "runtime/containers/compressed_tensors.h"
#include "runtime/containers/gptq.h"
#include "runtime/containers/scale_tensors.h"
#include "runtime/system/interrupt.h"

namespace pare::runtime {
namespace {

constexpr float kLargestF16 = 65504.0f, kSmallestNormalF16 = 6.103515625e-05f;
constexpr size_t kPiece = size_t{1} << 20;  // values at a time

// The tensors that hold scales, of all containers.
constexpr std::array<std::string_view, 11> kScaleSuffixes = {".scales",
                                                             ".weight_scale",
                                                             ".weight_scale_inv",
                                                             ".weight_global_scale",
                                                             ".weight_tensor_scale",
                                                             ".input_scale",
                                                             ".input_global_scale",
                                                             ".activation_scale",
                                                             ".SCB",
                                                             ".weight.absmax",
                                                             ".weight.nested_absmax"};

// Returns the module whose scales these are; "": they are none.
std::string module_of_scales(const std::string& name) {
  for (const std::string_view suffix : kScaleSuffixes) {
    if (name.ends_with(suffix)) return name.substr(0, name.size() - suffix.size());
  }
  return "";
}

bool is_float_of_any_kind(DType dtype) {
  return is_float_dtype(dtype) || dtype == DType::F64 || dtype == DType::F8_E4M3 || dtype == DType::F8_E8M0;
}

// One illness, gathered over all tensors.
struct Gathered {
  std::vector<std::string> tensors;
  double num_values = 0.0;
  float smallest = 0.0f;
};

class ValuesExam {
 public:
  ValuesExam(const Patient& patient, std::set<std::string>& explained) : patient_(patient), explained_(explained) {}

  void add(const std::string& name, const TensorView& view) {
    const std::string module = module_of_scales(name);
    // Scales of MXFP4 are written as their bits, in a type of integers.
    const bool is_exponent = view.dtype == DType::U8 && name.ends_with(kScaleSuffix) &&
                             patient_.stored(module + std::string(kPackedSuffix)) != nullptr;
    if (!is_exponent && !is_float_of_any_kind(view.dtype)) return;
    const ValueCounts counts = count_values(is_exponent ? DType::F8_E8M0 : view.dtype, view.data);
    if (module.empty()) {
      if (counts.num_values > 0 && counts.num_zero == counts.num_values && is_multiplied(name)) {
        gather(Illness::weight_zero, name, counts.num_values);
      }
      if (counts.are_finite()) return;
      gather(Illness::weight_not_finite, name, counts.num_nan + counts.num_infinite);
      explained_.insert(name.substr(0, name.rfind('.')));
      return;
    }
    if (!counts.are_finite()) {
      gather(Illness::scale_not_finite, name, counts.num_nan + counts.num_infinite);
      explained_.insert(module);
    }
    if (counts.num_negative > 0 && !may_be_negative(name, module)) {
      gather(Illness::scale_negative, name, counts.num_negative);
      explained_.insert(module);
    }
    if (counts.num_zero > 0) zero_scales_.emplace(name, counts);
    const bool is_typical = counts.are_finite() && counts.num_largest == 0 && counts.num_values > 0;
    if (is_of_whole_layer(name, view) && is_typical) {
      mean_scales_.emplace_back(counts.magnitude / static_cast<double>(counts.num_values), name);
    }
    if (counts.num_largest > 0) gather(Illness::scale_saturated, name, counts.num_largest);
    if (counts.num_subnormal > 0) {
      gather(Illness::scale_subnormal, name, counts.num_subnormal);
      Gathered& gathered = gathered_[Illness::scale_subnormal];
      if (gathered.smallest == 0.0f || counts.smallest < gathered.smallest) gathered.smallest = counts.smallest;
    }
  }

  void conclude(std::vector<Finding>& findings) {
    const auto add = [&](Illness illness, Certainty certainty, const std::string& what, const std::string& advice) {
      const auto found = gathered_.find(illness);
      if (found == gathered_.end()) return;
      const Gathered& gathered = found->second;
      Finding finding{
          .illness = illness,
          .certainty = certainty,
          .concerned = gathered.tensors,
          .what = std::to_string(static_cast<int64_t>(gathered.num_values)) + " " + what + " in " +
                  count_text(gathered.tensors.size(), "tensor"),
          .figures = {{"values", gathered.num_values}, {"tensors", static_cast<double>(gathered.tensors.size())}},
          .advice = advice};
      if (gathered.smallest > 0.0f) finding.figures.push_back({"smallest", static_cast<double>(gathered.smallest)});
      findings.push_back(std::move(finding));
    };
    const std::string again = "what stood there is lost: quantize the original again";
    add(Illness::weight_not_finite, Certainty::certain, "values are NaN or infinite",
        "the weights are lost: fetch the file again, or train from an earlier state");
    add(Illness::scale_not_finite, Certainty::certain, "scales are NaN or infinite", again);
    add(Illness::scale_negative, Certainty::certain, "scales are negative, where the codes have signs of their own",
        again);
    add(Illness::scale_saturated, Certainty::likely, "scales are 65504, the largest float16: larger ones did not fit",
        "quantize again with scales in bfloat16 or float32, in a container that holds them");
    add(Illness::scale_subnormal, Certainty::information,
        "scales are subnormal in float16, with fewer than 11 digits of two",
        "scales in bfloat16 or float32 would keep their digits");
    add(Illness::weight_zero, Certainty::likely, "values are 0, all that there are,",
        "fetch the file again: a layer of zeros gives nothing");
    conclude_far_scales(findings);
    conclude_zeros(findings);
  }

 private:
  // True for the embedding and the linears of a decoder. Tables that a family does not use may be zero.
  bool is_multiplied(const std::string& tensor) const {
    if (!patient_.model || !tensor.ends_with(kPlainSuffix)) return false;
    const std::string name = patient_.described_name(tensor.substr(0, tensor.size() - kPlainSuffix.size()));
    const ModelDescription& model = *patient_.model;
    return name == model.embedding_name || name == model.head.name ||
           std::ranges::any_of(block_linears(model), [&](const auto& linear) { return linear.name == name; });
  }

  // True for scales that alone say how large a layer's weights are.
  static bool is_of_whole_layer(const std::string& name, const TensorView& view) {
    constexpr std::array<std::string_view, 5> kSuffixes = {".scales", ".weight_scale", ".weight_scale_inv", ".SCB",
                                                           ".weight.absmax"};
    return is_float_dtype(view.dtype) && std::ranges::any_of(kSuffixes, [&](auto s) { return name.ends_with(s); });
  }

  // Layers of one model differ by some tens, and bits by no more than that. A thousand is an exponent gone wrong.
  void conclude_far_scales(std::vector<Finding>& findings) {
    constexpr double kFar = 1000.0;
    constexpr size_t kFewest = 4;
    if (mean_scales_.size() < kFewest) return;
    std::vector<double> sorted;
    for (const auto& [mean, name] : mean_scales_) sorted.push_back(mean);
    std::ranges::sort(sorted);
    const double median = sorted[sorted.size() / 2];
    Finding finding{.illness = Illness::scale_apart, .certainty = Certainty::likely};
    double largest = 0.0;
    for (const auto& [mean, name] : mean_scales_) {
      if (!(mean > kFar * median) || median == 0.0) continue;
      finding.concerned.push_back(name);
      largest = std::max(largest, mean);
    }
    if (finding.concerned.empty()) return;
    finding.what = "the scales of " + count_text(finding.concerned.size(), "layer") +
                   " are more than a thousand times the median of all layers";
    finding.figures = {{"largest_mean", largest}, {"median_of_means", median}};
    finding.advice = "compare with the original's weights, and quantize it again";
    findings.push_back(std::move(finding));
  }

  void gather(Illness illness, const std::string& name, int64_t num_values) {
    Gathered& gathered = gathered_[illness];
    gathered.tensors.push_back(name);
    gathered.num_values += static_cast<double>(num_values);
  }

  // Integers may have negative scales, as AutoRound and llama.cpp write them.
  bool may_be_negative(const std::string& name, const std::string& module) const {
    if (name.ends_with(kGptqScalesSuffix)) return true;
    if (!name.ends_with(kScaleSuffix)) return false;
    const TensorView *const packed = patient_.stored(module + std::string(kPackedSuffix)),
                            *const plain = patient_.stored(module + std::string(kPlainSuffix));
    return (packed != nullptr && packed->dtype == DType::I32) || (plain != nullptr && plain->dtype == DType::I8);
  }

  // Reads the codes below zero scales: where all stand for 0, nothing is lost.
  void conclude_zeros(std::vector<Finding>& findings) {
    Finding lost{.illness = Illness::scale_zero}, harmless = lost;
    double num_lost = 0.0, num_harmless = 0.0;
    for (const auto& [name, counts] : zero_scales_) {
      const std::optional<bool> loses = loses_values(module_of_scales(name));
      if (!loses) continue;
      (*loses ? lost : harmless).concerned.push_back(name);
      (*loses ? num_lost : num_harmless) += static_cast<double>(counts.num_zero);
      if (*loses || counts.smallest == 0.0f) continue;
      const TensorView& view = *patient_.stored(name);
      harmless.repair.tensors.push_back({name, view.dtype, view.shape,
                                         [&view, smallest = counts.smallest] {
                                           std::vector<std::byte> bytes(view.data.size());
                                           std::vector<float> values(static_cast<size_t>(view.num_elements()));
                                           convert_to_float(view.dtype, view.data, values);
                                           for (float& value : values) value = value == 0.0f ? smallest : value;
                                           convert_from_float(view.dtype, values, bytes);
                                           return bytes;
                                         },
                                         ""});
    }
    if (num_lost > 0.0) {
      lost.what = std::to_string(static_cast<int64_t>(num_lost)) + " scales are 0 in " +
                  count_text(lost.concerned.size(), "tensor") + ", and codes below them stand for other numbers";
      lost.figures = {{"values", num_lost}, {"tensors", static_cast<double>(lost.concerned.size())}};
      lost.advice = "these weights decode to 0: quantize the original again, with a scale type that holds small scales";
      findings.push_back(std::move(lost));
    }
    if (num_harmless == 0.0) return;
    harmless.certainty = Certainty::information;
    harmless.what = std::to_string(static_cast<int64_t>(num_harmless)) + " scales are 0 in " +
                    count_text(harmless.concerned.size(), "tensor") +
                    ", and all codes below them stand for 0: programs that divide by scales make NaN of them";
    harmless.figures = {{"values", num_harmless}, {"tensors", static_cast<double>(harmless.concerned.size())}};
    harmless.advice = "any other scale gives the same weights";
    if (!harmless.repair.tensors.empty()) harmless.repair.does = "put the smallest scale of the tensor in their place";
    findings.push_back(std::move(harmless));
  }

  // Returns whether a weight below a scale of 0 has a code of another number; nullopt: the layer cannot be read, or the
  // scale is not one of a weight's.
  std::optional<bool> loses_values(const std::string& module) const {
    if (!patient_.quantization || !patient_.has_table || !patient_.model) return std::nullopt;
    const std::string described = patient_.described_name(module);
    std::vector<LinearDescription> linears = block_linears(*patient_.model);
    linears.push_back(patient_.model->head);
    const auto linear = std::ranges::find(linears, described, &LinearDescription::name);
    if (linear == linears.end()) return std::nullopt;
    std::optional<bool> loses;
    failure_of([&] {
      const std::optional<PackScheme> scheme =
          stored_scheme(*patient_.quantization, patient_.table, described, "Linear");
      if (!scheme || scheme->is_dense()) return;
      const QuantizedWeight weight =
          patient_.quantization->container
              ->load(patient_.find_described(), *scheme, linear->num_out, linear->num_in, described)
              .weight;
      loses = false;
      for (int64_t row = 0; row < weight.num_out; ++row) {
        for (int64_t column = 0; column < weight.num_in && !weight.scales_OG.empty(); ++column) {
          const int64_t group = weight.group(column);
          if (weight.scales_OG[row * weight.num_groups() + group] != 0.0f) continue;
          const uint8_t code = weight.codes_OI[row * weight.num_in + column];
          const bool is_nothing =
              weight.code->is_integer() ? code == weight.zero(row, group) : weight.code->value(code) == 0.0f;
          if (!is_nothing) loses = true;
        }
      }
    });
    return loses;
  }

  const Patient& patient_;
  std::set<std::string>& explained_;
  std::map<Illness, Gathered> gathered_;
  std::map<std::string, ValueCounts> zero_scales_;
  std::vector<std::pair<double, std::string>> mean_scales_;  // of layers
};

}  // namespace

ValueCounts count_values(DType dtype, std::span<const std::byte> bytes) {
  ValueCounts counts;
  const size_t size = dtype_size_bytes(dtype);
  std::vector<float> values;
  for (size_t first = 0; first < bytes.size(); first += kPiece * size) {
    const std::span<const std::byte> piece = bytes.subspan(first, std::min(kPiece * size, bytes.size() - first));
    values.resize(piece.size() / size);
    convert_to_float(dtype, piece, values);
    for (const float value : values) {
      const float magnitude = std::abs(value);
      counts.num_nan += std::isnan(value);
      counts.num_infinite += std::isinf(value);
      counts.num_negative += value < 0.0f;
      counts.num_zero += value == 0.0f;
      if (std::isfinite(value)) counts.magnitude += static_cast<double>(magnitude);
      counts.num_largest += dtype == DType::F16 && magnitude == kLargestF16;
      counts.num_subnormal += dtype == DType::F16 && magnitude > 0.0f && magnitude < kSmallestNormalF16;
      if (value > 0.0f && (counts.smallest == 0.0f || value < counts.smallest)) counts.smallest = value;
    }
    counts.num_values += static_cast<int64_t>(values.size());
  }
  return counts;
}

void examine_values(const Patient& patient, std::vector<Finding>& findings, std::set<std::string>& explained,
                    const std::function<void()>& step) {
  ValuesExam exam(patient, explained);
  for (const auto& [name, tensor] : patient.tensors) {
    throw_if_interrupted();
    exam.add(name, *tensor.view);
    patient.drop(name);
    step();
  }
  exam.conclude(findings);
}

}  // namespace pare::runtime
