#include "runtime/containers/container_table.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/containers/awq_gemm.h"
#include "runtime/containers/bitsandbytes_int8.h"
#include "runtime/containers/bitsandbytes_nf4.h"
#include "runtime/containers/compressed_tensors.h"
#include "runtime/containers/fp8.h"
#include "runtime/containers/gptq.h"
#include "runtime/containers/mlx.h"
#include "runtime/containers/pare_gguf.h"
#include "runtime/containers/pare_int8.h"
#include "runtime/containers/pare_sparse24.h"

namespace pare::runtime {
namespace {

std::vector<const ContainerFormat*>& table() {
  // The first one that recognizes a configuration reads it: bitsandbytes reads what bitsandbytes-nf4 does not.
  static std::vector<const ContainerFormat*> rows = {&compressed_tensors_container(),
                                                     &awq_gemm_container(),
                                                     &gptq_container(),
                                                     &gptq_v2_container(),
                                                     &fp8_container(),
                                                     &bitsandbytes_nf4_container(),
                                                     &bitsandbytes_int8_container(),
                                                     &pare_int8_container(),
                                                     &pare_sparse24_container(),
                                                     &pare_gguf_container(),
                                                     &mlx_container()};
  return rows;
}

}  // namespace

std::span<const ContainerFormat* const> container_formats() {
  return table();
}

const ContainerFormat& container_format(std::string_view name) {
  std::string known;
  for (const ContainerFormat* format : table()) {
    if (format->name() == name) return *format;
    known += (known.empty() ? "'" : ", '") + std::string(format->name()) + "'";
  }
  throw std::invalid_argument("no container '" + std::string(name.substr(0, 100)) + "': expected one of " + known);
}

const ContainerFormat* find_container(std::string_view quant_method, const std::string& json) {
  const auto found = std::find_if(table().begin(), table().end(), [&](const ContainerFormat* format) {
    return format->recognizes(quant_method, json);
  });
  return found == table().end() ? nullptr : *found;
}

void register_container(const ContainerFormat& format) {
  for (const ContainerFormat* known : table()) {
    if (known == &format) return;
    if (known->name() != format.name()) continue;
    throw std::invalid_argument("register_container: there is a container '" + std::string(format.name()) +
                                "' already: expected another name");
  }
  table().push_back(&format);
}

}  // namespace pare::runtime
