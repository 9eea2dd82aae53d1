// What `pare doctor` finds: illnesses of a checkpoint, each with its evidence and, where there is one, its repair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/format/dtype.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {

enum class Illness {
  unreadable_file,
  refused_config,
  refused_quantization,
  unnamed_quantization,
  nothing_quantized,
  list_names_codes,
  list_lacks_dense,
  two_forms,
  zeros_version,
  zeros_not_symmetric,
  zeros_missing,
  group_index_missing,
  group_index_unlabelled,
  group_index_out_of_range,
  group_index_uneven,
  group_index_trivial,
  packing_layout,
  packing_order,
  bits_or_groups,
  scale_not_finite,
  scale_negative,
  scale_zero,
  scale_saturated,
  scale_subnormal,
  scale_apart,
  weight_not_finite,
  weight_zero,
  layers_exchanged,
  head_differs,
  head_doubled,
  head_missing,
  head_equal,
  shape_contradicts_config,
  missing_tensors,
  layers_beyond_config,
  unread_tensors,
  layer_refused,
  tokenizer_refused,
  vocabulary_too_large,
  token_out_of_range,
  end_token_not_listed,
  index_missing_file,
  index_missing_tensor,
  index_unlisted_tensor,
  index_total_size,
  index_beside_file
};

struct IllnessRow {
  Illness illness;
  std::string_view name;     // in results, unique and stable: "zeros-version"
  std::string_view meaning;  // one line
};
std::span<const IllnessRow> illnesses();
std::string_view illness_name(Illness illness);

// certain: the files contradict themselves, or numbers leave no doubt. likely: numbers speak for it, or another program
// will go wrong. information: nothing is wrong with the model, but somebody may want to know.
enum class Certainty { certain, likely, information };
std::string_view certainty_name(Certainty certainty);

// A number of the evidence.
struct Evidence {
  std::string name;
  double value = 0.0;
};

// A tensor that a repaired copy has in place of one of that name, or as a new one.
struct TensorEdit {
  std::string name;
  DType dtype = DType::F32;
  std::vector<int64_t> shape = {};
  std::function<std::vector<std::byte>()> make = {};  // the bytes, made while the copy is written
  std::string beside = {};                            // a new one lies in the file of this tensor
};
// A change of a file of JSON, which gets {} where there is none.
struct SettingsEdit {
  std::string file;
  std::function<void(nlohmann::ordered_json&)> change;
};
// Says what a repaired copy does about a finding.
struct Repair {
  std::string does;  // "" : it cannot be repaired
  std::vector<TensorEdit> tensors = {};
  std::vector<std::string> dropped = {};
  std::vector<SettingsEdit> settings = {};
  bool is_possible() const { return !does.empty(); }
};

struct Finding {
  Illness illness = Illness::unreadable_file;
  Certainty certainty = Certainty::certain;
  std::vector<std::string> concerned = {};  // tensors, modules or files, by the names in the files
  std::string what = {};                    // what was expected and what was found
  std::vector<Evidence> figures = {};
  std::string advice = {};
  Repair repair = {};
};

// Returns "'a', 'b' and 35 more".
std::string names_text(std::span<const std::string> names, size_t most = 3);
// Returns "1 layer", "35 layers".
std::string count_text(size_t number, const std::string& thing);

}  // namespace pare::runtime
