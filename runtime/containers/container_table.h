// The table of containers: where a name, or a quantization_config, finds what reads and writes it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "runtime/format/container_format.h"

namespace pare::runtime {

// The table: the containers of this folder, then the registered ones.
std::span<const ContainerFormat* const> container_formats();
// Returns the container of that name. Throws std::invalid_argument with the known names.
const ContainerFormat& container_format(std::string_view name);
// Returns the container to which this quantization_config belongs, or null.
const ContainerFormat* find_container(std::string_view quant_method, const std::string& json);
// Adds a row for this process; `format` must live as long as it is used. Adding the same object twice adds it once.
// Call it before other threads look at the table. Throws std::invalid_argument for a name that another container has.
void register_container(const ContainerFormat& format);

}  // namespace pare::runtime
