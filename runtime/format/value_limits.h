// Containers that hold some linears of an accepted scheme and not others, by their values: GPTQ's first version has no
// zero of 0. Scales that a container's types do not hold are left out of this.
#pragma once

#include "runtime/format/container_format.h"

namespace pare::runtime {

// A container of that kind is one of these too.
class ValueLimits {
 public:
  virtual ~ValueLimits() = default;
  // Tells if the container holds every linear of an accepted scheme.
  virtual Acceptance holds_all(const PackScheme& scheme) const = 0;
  // Tells if it holds this one. The reason says where the value lies that it does not hold. Its store() throws
  // std::invalid_argument for such a linear.
  virtual Acceptance holds(const StoredLinear& linear, const PackScheme& scheme) const = 0;
};

// Return what these say for any container: one without such limits holds all. Whoever chooses a scheme before the
// linears are there asks holds_all.
Acceptance holds_all(const ContainerFormat& container, const PackScheme& scheme);
Acceptance holds(const ContainerFormat& container, const StoredLinear& linear, const PackScheme& scheme);

}  // namespace pare::runtime
