// One linear in whichever container its scheme names: the only place that tells the containers apart.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/format/compressed_tensors.h"
#include "runtime/format/container_format.h"
#include "runtime/format/stored_scheme.h"
#include "runtime/format/tensor_view.h"

namespace pare {

// The tensors of `module`. Throws what the container's own function throws (compressed_tensors.h, awq_gemm.h,
// bitsandbytes_int8.h, pare_int8.h).
std::vector<OwnedTensor> pack_linear(const StoredLinear& linear, const PackScheme& scheme, const std::string& module);

// Checks that the module's tensors are there with the dtypes and shapes of a weight [num_out, num_in]; reads nothing of
// the size of the weight. Throws std::runtime_error (tensor, expected, found).
void check_linear(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                  const std::string& module);

// The inverse of packing, with every value checked. Throws std::runtime_error.
StoredLinear unpack_linear(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                           const std::string& module);

// The suffixes of all tensors that hold parts of a linear in some container.
std::span<const std::string_view> linear_suffixes();

// W as the runtime multiplies it, float32 [O, I]: dequantized, with the outlier columns in place of W's own.
std::vector<float> effective_weight(const StoredLinear& linear);

// The JSON object for the key "quantization_config" of a checkpoint with these modules. Throws std::invalid_argument
// for modules that no one container holds together.
std::string container_config_json(std::span<const StoredModule> modules, std::span<const std::string> ignore);

}  // namespace pare
