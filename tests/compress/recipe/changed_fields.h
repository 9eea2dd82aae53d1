// Every way to change one field of a value (runtime/format/fields.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/format/fields.h"

namespace pare::test {
using namespace runtime;

// Returns another value of the same kind. For an enumeration it is the next value.
inline NamedField changed(NamedField field) {
  std::visit(
      [&](auto& value) {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, bool>) {
          value = !value;
        } else if constexpr (std::is_same_v<T, int64_t>) {
          ++value;
        } else if constexpr (std::is_same_v<T, double>) {
          value += 0.125;
        } else if constexpr (std::is_same_v<T, std::optional<double>>) {
          value = value.value_or(0.25) + 0.125;
        } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          value.push_back("more");
        } else if (field.choices.empty()) {
          value += "x";
        } else {
          size_t index = 0;
          while (field.choices[index] != value) ++index;
          value = field.choices[(index + 1) % field.choices.size()];
        }
      },
      field.value);
  return field;
}

}  // namespace pare::test
