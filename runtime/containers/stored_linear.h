// One linear in the container that its scheme names: the functions of ContainerFormat, called by the scheme's name.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/format/container_format.h"

namespace pare::runtime {

// These call store, check and load of container_format(scheme.container), and throw what those throw.
std::vector<OwnedTensor> pack_linear(const StoredLinear& linear, const PackScheme& scheme, const std::string& module);
void check_linear(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                  const std::string& module);
StoredLinear unpack_linear(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                           const std::string& module);

// Returns the dense weight that dense_OI holds, in memory of its own.
DenseWeight dense_weight(StoredLinear linear);

// Returns the values of a weight in blocks of GGUF, in float32.
DenseWeight decoded_weight(const QuantizedWeight& blocks);

// Returns W as the runtime multiplies it, float32 [O, I]: dequantized, or dense_OI, with the outlier columns in place
// of W's own.
std::vector<float> effective_weight(const StoredLinear& linear);

// Calls ContainerFormat::config_json of the container that the first module's scheme names. Throws
// std::invalid_argument without modules.
std::string container_config_json(std::span<const StoredModule> modules, std::span<const std::string> ignore);

}  // namespace pare::runtime
