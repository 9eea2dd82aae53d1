#include "runtime/format/value_limits.h"

namespace pare::runtime {

Acceptance holds_all(const ContainerFormat& container, const PackScheme& scheme) {
  const auto* const limits = dynamic_cast<const ValueLimits*>(&container);
  return limits == nullptr ? Acceptance() : limits->holds_all(scheme);
}

Acceptance holds(const ContainerFormat& container, const StoredLinear& linear, const PackScheme& scheme) {
  const auto* const limits = dynamic_cast<const ValueLimits*>(&container);
  return limits == nullptr ? Acceptance() : limits->holds(linear, scheme);
}

}  // namespace pare::runtime
