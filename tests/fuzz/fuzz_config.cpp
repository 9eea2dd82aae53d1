#include "runtime/containers/awq_gemm.h"
#include "runtime/containers/bitsandbytes_int8.h"
#include "runtime/containers/bitsandbytes_nf4.h"
#include "runtime/containers/compressed_tensors.h"
#include "runtime/containers/gptq.h"
#include "runtime/containers/mlx.h"
#include "runtime/containers/pare_int8.h"
#include "runtime/containers/pare_sparse24.h"
#include "runtime/model/encoder_description.h"
#include "runtime/model/model_description.h"
#include "tests/fuzz/fuzz_input.h"

// Reads the whole text as a config.json, and as the quantization_config of each container.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using Bytes = std::span<const std::byte>;
  pare::fuzz(data, size, [](Bytes bytes) { pare::runtime::describe_model(pare::as_text(bytes), "input"); });
  pare::fuzz(data, size, [](Bytes bytes) { pare::runtime::describe_encoder(pare::as_text(bytes), "input"); });
  pare::fuzz(data, size, [](Bytes bytes) { pare::runtime::AwqConfig::parse(pare::as_text(bytes), "input"); });
  pare::fuzz(data, size, [](Bytes bytes) {
    const auto config = pare::runtime::GptqConfig::parse(std::string(pare::as_text(bytes)), "input");
    const auto find = [](const std::string&) -> const pare::runtime::TensorView* { return nullptr; };
    for (const char* module : {"model.layers.0.self_attn.q_proj", "lm_head"}) config.scheme_of(module, "Linear", find);
  });
  pare::fuzz(data, size, [](Bytes bytes) { pare::runtime::MlxConfig(std::string(pare::as_text(bytes)), "input"); });
  pare::fuzz(data, size, [](Bytes bytes) { pare::runtime::BitsAndBytesConfig::parse(pare::as_text(bytes), "input"); });
  pare::fuzz(data, size, [](Bytes bytes) {
    pare::runtime::bitsandbytes_nf4_container().read_config(std::string(pare::as_text(bytes)), "input");
  });
  pare::fuzz(data, size, [](Bytes bytes) { pare::runtime::PareInt8Config::parse(pare::as_text(bytes), "input"); });
  pare::fuzz(data, size, [](Bytes bytes) { pare::runtime::PareSparse24Config::parse(pare::as_text(bytes), "input"); });
  return pare::fuzz(data, size, [](Bytes bytes) {
    const auto config = pare::runtime::QuantizationConfig::parse(pare::as_text(bytes), "input");
    for (const char* module : {"model.layers.0.self_attn.q_proj", "lm_head", ""}) config.scheme(module);
  });
}
