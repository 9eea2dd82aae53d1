#include "runtime/commands/version_report.h"

#include <nlohmann/json.hpp>

#include "runtime/device/make_backend.h"
#include "runtime/families/families.h"
#include "runtime/model/whole_models.h"
#include "runtime/system/isa.h"
#include "runtime/system/json_text.h"
#include "runtime/system/version.h"

namespace pare::runtime {

std::string version_report(std::string_view program, const SourceState& sources, std::string_view libtorch) {
  nlohmann::ordered_json report = {{"program", program}, {"version", version()}, {"commit", sources.commit}};
  report["modified"] = nullptr;
  if (sources.is_modified) report["modified"] = *sources.is_modified;
  report["isa"] = isa_name(detect_isa());
  report["libtorch"] = nullptr;
  if (!libtorch.empty()) report["libtorch"] = libtorch;
  report["cuda"] = has_cuda_kernels();
  report["compiler"] = compiler();
  report["model_types"] = {{"decoders", decoder_families().all(&DecoderFamily::model_type)},
                           {"encoders", encoder_families().all(&EncoderFamily::name)},
                           {"with_images", whole_model_types()},
                           {"gguf", decoder_families().all(&DecoderFamily::gguf)}};
  return json_text(report);
}

}  // namespace pare::runtime
