#include "compress/recipe/gguf_pass.h"

#include <stdexcept>
#include <vector>

#include "compress/recipe/measured_costs.h"
#include "compress/recipe/pattern_advice.h"
#include "runtime/containers/pare_gguf.h"
#include "runtime/export/gguf_formats.h"
#include "runtime/files/gguf_parts.h"

namespace pare::compress {
namespace {

const runtime::WeightCode* find_block_code(runtime::GgufType type) {
  for (const runtime::WeightCode& code : runtime::block_codes()) {
    if (code.gguf_type == static_cast<uint32_t>(type)) return &code;
  }
  return nullptr;
}

}  // namespace

void GgufPass::fields(runtime::FieldVisitor& visit) {
  std::vector<std::string_view> names;
  for (const runtime::WeightCode& code : runtime::block_codes()) names.push_back(code.name);
  std::string name(type->name);
  visit("type", name, std::span<const std::string_view>(names),
        "The type of blocks. Superblocks (`q2_k` to `q6_k`) hold rows of 256 inputs or a multiple. Other rows get the "
        "type of 32 inputs that llama-quantize takes for them: `q4_0` for `q2_k` and `q3_k`, then `q5_0`, `q5_1` and "
        "`q8_0`.");
  type = runtime::find_weight_code(name);
  gptq.loop_fields(visit);
  refine.fields(visit);
  fitting.fields(visit);
}

void GgufPass::check(const PassCheck& check) {
  check.require_calibration({}, "gguf needs calibration data",
                            "export the model itself with 'pare export --format', which rounds to nearest");
  check.check_fit(fitting);
}

void GgufPass::settle_shape(int64_t, int64_t num_in) {
  const runtime::ChosenType chosen =
      runtime::type_for(static_cast<runtime::GgufType>(type->gguf_type), num_in, /*is_head=*/false);
  if (const runtime::WeightCode* const code = find_block_code(chosen.type)) type = code;
}

void GgufPass::check_layer(const std::string& layer, int64_t num_out, int64_t num_in) const {
  if (num_in % runtime::gguf_block(type->gguf_type).num_elements == 0) return;
  throw std::invalid_argument("layer " + layer + " [" + std::to_string(num_out) + ", " + std::to_string(num_in) +
                              "]: blocks of GGUF hold 32 or 256 inputs, and neither divides its " +
                              std::to_string(num_in) + ": leave it out with 'layers: {exclude: [\"" +
                              pattern_of_all_blocks(layer) + "\"]}'");
}

void GgufPass::store(runtime::PackScheme& scheme) const {
  scheme.code = type;
  scheme.layout = runtime::CodeLayout::packed;
  scheme.bits = type->width();
  scheme.group_size = type->block;
  scheme.symmetric = true;
  scheme.container = runtime::kPareGguf;
}

bool GgufPass::holds_zeros() const {
  return runtime::find_gguf_grid(static_cast<runtime::GgufType>(type->gguf_type))->has_zero();
}

std::string GgufPass::words(std::string_view key) const {
  return std::string(key) + " " + std::string(type->name);
}

double GgufPass::operations(const StageExtent& stage) const {
  return stage.num_weights() * (kSearchOpsPerWeight + static_cast<double>(stage.width) *
                                                          (kRoundOpsPerWeight + kRefineOpsPerWeight * refine.sweeps));
}

}  // namespace pare::compress
