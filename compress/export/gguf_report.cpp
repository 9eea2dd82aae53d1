#include "compress/export/gguf_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "compress/export/export_model.h"
#include "compress/report/source_card.h"
#include "runtime/system/json_text.h"

namespace pare::compress {
namespace {

std::string type_name(runtime::GgufType type) {
  return std::string(runtime::gguf_block(static_cast<uint32_t>(type)).name);
}

}  // namespace

std::vector<std::string> gguf_lines(const runtime::GgufExport& result) {
  struct Kind {
    std::string name;
    int64_t num_tensors = 0;
    double largest_error = 0.0;
    std::string worst = {};
  };
  std::vector<Kind> kinds;
  for (const runtime::GgufExportedTensor& tensor : result.tensors) {
    std::string name = type_name(tensor.type);
    if (tensor.keeps_codes) name += tensor.is_lossless ? ", codes and scales unchanged" : ", codes unchanged";
    if (!tensor.why.empty()) name += " (" + tensor.why + ")";
    auto kind = std::ranges::find(kinds, name, &Kind::name);
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {.name = name});
    ++kind->num_tensors;
    if (tensor.relative_error <= kind->largest_error) continue;
    kind->largest_error = tensor.relative_error;
    kind->worst = tensor.name;
  }
  std::vector<std::string> lines;
  for (const Kind& kind : kinds) {
    const std::string count = std::to_string(kind.num_tensors) + (kind.num_tensors == 1 ? " tensor: " : " tensors: ");
    lines.push_back(count + kind.name +
                    (kind.largest_error > 0.0 ? ", " + error_text(kind.largest_error, kind.worst)
                                              : ", every value is the source's"));
  }
  return lines;
}

std::string gguf_json(const runtime::GgufExport& result, const runtime::GgufFormat& format) {
  nlohmann::ordered_json json = {{"format", format.name},
                                 {"architecture", result.architecture},
                                 {"relative_error", result.relative_error},
                                 {"tensors", nlohmann::ordered_json::array()}};
  for (const runtime::GgufExportedTensor& tensor : result.tensors) {
    json["tensors"].push_back({{"name", tensor.name},
                               {"shape", tensor.shape},
                               {"type", type_name(tensor.type)},
                               {"why", tensor.why},
                               {"keeps_codes", tensor.keeps_codes},
                               {"same_values", tensor.is_lossless},
                               {"relative_error", tensor.relative_error},
                               {"bytes", tensor.num_bytes}});
  }
  json["events"] = result.notes;
  return runtime::json_text(json);
}

runtime::WeightSizes gguf_sizes(const runtime::GgufExport& result) {
  runtime::WeightSizes sizes;
  for (const runtime::GgufExportedTensor& tensor : result.tensors) {
    const bool is_matrix = tensor.shape.size() > 1 && tensor.name.ends_with(".weight");
    const bool is_router = tensor.name.find("ffn_gate_inp") != std::string::npos;
    if (!is_matrix || is_router) continue;
    int64_t num_weights = 1;
    for (const int64_t extent : tensor.shape) num_weights *= extent;
    sizes.all_parameters += num_weights;
    sizes.all_bytes += tensor.num_bytes;
    if (!tensor.name.starts_with("blk.")) continue;
    sizes.linear_parameters += num_weights;
    sizes.linear_bytes += tensor.num_bytes;
  }
  return sizes;
}

std::string licences_of(const std::filesystem::path& directory, std::vector<std::string>& notes) {
  const std::optional<std::string> name = source_card_name(directory);
  if (!name) return "";
  const CardHead head = card_head_of(directory, *name);
  std::string text;
  for (const std::string& licence : head.values("license")) text += (text.empty() ? "" : ",") + licence;
  if (text.empty() && !head.problems.empty()) {
    notes.push_back("the file names no licence, since the head of '" + *name + "' cannot be read: see 'pare card'");
  }
  return text;
}

}  // namespace pare::compress
