#include "runtime/doctor/finding.h"

#include <algorithm>
#include <array>

namespace pare::runtime {
namespace {

// The order of the enumeration, which is that of the report.
constexpr std::array kRows = {
    IllnessRow{Illness::unreadable_file, "unreadable-file", "a file is damaged, or is not what its name says"},
    IllnessRow{Illness::refused_config, "refused-config", "config.json describes no model that pare knows"},
    IllnessRow{Illness::refused_quantization, "refused-quantization",
               "quantization_config is impossible, or of a format that pare does not read"},
    IllnessRow{Illness::unnamed_quantization, "unnamed-quantization",
               "files hold codes and config.json has no quantization_config"},
    IllnessRow{Illness::nothing_quantized, "nothing-quantized",
               "config.json has a quantization_config and no layer holds codes"},
    IllnessRow{Illness::list_names_codes, "list-names-codes",
               "a layer with codes is listed among those that are not quantized"},
    IllnessRow{Illness::list_lacks_dense, "list-lacks-dense",
               "a layer without codes is not listed among those that are not quantized"},
    IllnessRow{Illness::two_forms, "two-forms", "a layer is stored twice, in two quantizations or with its floats"},
    IllnessRow{Illness::zeros_version, "zeros-version", "GPTQ's zeros are those of its other version"},
    IllnessRow{Illness::zeros_not_symmetric, "zeros-not-symmetric",
               "zeros differ although the configuration says that weights are symmetric"},
    IllnessRow{Illness::zeros_missing, "zeros-missing", "codes of GPTQ or AWQ have no tensor of zeros"},
    IllnessRow{Illness::group_index_missing, "group-index-missing",
               "desc_act is true and nothing says which columns form a group"},
    IllnessRow{Illness::group_index_unlabelled, "group-index-unlabelled",
               "g_idx moves columns although desc_act is false"},
    IllnessRow{Illness::group_index_out_of_range, "group-index-out-of-range", "g_idx names groups that do not exist"},
    IllnessRow{Illness::group_index_uneven, "group-index-uneven", "groups of g_idx have other sizes than group_size"},
    IllnessRow{Illness::group_index_trivial, "group-index-trivial", "desc_act is true and g_idx moves no column"},
    IllnessRow{Illness::packing_layout, "packing-layout", "codes are packed along the axis of another format"},
    IllnessRow{Illness::packing_order, "packing-order", "codes lie in another order within their words"},
    IllnessRow{Illness::bits_or_groups, "bits-or-groups", "bits or group_size contradict the tensors' shapes"},
    IllnessRow{Illness::scale_not_finite, "scale-not-finite", "a scale is NaN or infinite"},
    IllnessRow{Illness::scale_negative, "scale-negative", "a scale is negative where none may be"},
    IllnessRow{Illness::scale_zero, "scale-zero", "a scale is zero"},
    IllnessRow{Illness::scale_saturated, "scale-saturated", "a scale is the largest value of its type"},
    IllnessRow{Illness::scale_subnormal, "scale-subnormal", "a float16 scale is so small that it has few digits"},
    IllnessRow{Illness::scale_apart, "scale-apart", "a layer's scales are a thousand times those of other layers"},
    IllnessRow{Illness::weight_not_finite, "weight-not-finite", "a weight is NaN or infinite"},
    IllnessRow{Illness::weight_zero, "weight-zero", "all values of an embedding or a layer are zero"},
    IllnessRow{Illness::layers_exchanged, "layers-exchanged", "by the original, layers hold the weights of others"},
    IllnessRow{Illness::head_differs, "head-differs", "the head is tied to the embedding and is another matrix"},
    IllnessRow{Illness::head_doubled, "head-doubled", "a tied head is stored a second time"},
    IllnessRow{Illness::head_missing, "head-missing", "the head is not tied and not stored"},
    IllnessRow{Illness::head_equal, "head-equal", "the head is not tied and equals the embedding"},
    IllnessRow{Illness::shape_contradicts_config, "shape-contradicts-config",
               "a tensor has another shape or type than config.json says"},
    IllnessRow{Illness::missing_tensors, "missing-tensors", "tensors that the model needs are not there"},
    IllnessRow{Illness::layers_beyond_config, "layers-beyond-config", "files hold more layers than config.json says"},
    IllnessRow{Illness::unread_tensors, "unread-tensors", "files hold tensors that the model does not need"},
    IllnessRow{Illness::layer_refused, "layer-refused", "a layer cannot be read, for a reason of its own"},
    IllnessRow{Illness::tokenizer_refused, "tokenizer-refused",
               "the tokenizer cannot be read, or its vocabulary is missing"},
    IllnessRow{Illness::vocabulary_too_large, "vocabulary-too-large",
               "the tokenizer gives ids that the embedding does not have"},
    IllnessRow{Illness::token_out_of_range, "token-out-of-range",
               "a configuration names a token that the embedding does not have"},
    IllnessRow{Illness::end_token_not_listed, "end-token-not-listed",
               "the tokenizer's end of text is none of the tokens that end a text"},
    IllnessRow{Illness::index_missing_file, "index-missing-file", "the index names a file that is not there"},
    IllnessRow{Illness::index_missing_tensor, "index-missing-tensor",
               "the index names a tensor that its file does not hold"},
    IllnessRow{Illness::index_unlisted_tensor, "index-unlisted-tensor", "a file holds a tensor that the index lacks"},
    IllnessRow{Illness::index_total_size, "index-total-size", "total_size of the index is not that of the tensors"},
    IllnessRow{Illness::index_beside_file, "index-beside-file",
               "an index lies beside model.safetensors, and programs differ in which they read"}};

}  // namespace

std::span<const IllnessRow> illnesses() {
  return kRows;
}

std::string_view illness_name(Illness illness) {
  return std::ranges::find(kRows, illness, &IllnessRow::illness)->name;
}

std::string_view certainty_name(Certainty certainty) {
  switch (certainty) {
    case Certainty::certain:
      return "certain";
    case Certainty::likely:
      return "likely";
    case Certainty::information:
      return "information";
  }
  return "";
}

std::string names_text(std::span<const std::string> names, size_t most) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), most); ++i)
    text += (i > 0 ? ", '" : "'") + names[i].substr(0, 200) + "'";
  if (names.size() > most) text += " and " + std::to_string(names.size() - most) + " more";
  return text;
}

std::string count_text(size_t number, const std::string& thing) {
  return std::to_string(number) + " " + thing + (number == 1 ? "" : "s");
}

}  // namespace pare::runtime
