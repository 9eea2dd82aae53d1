#include "runtime/system/isa.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace pare::runtime {
namespace {

Isa parse_isa(const char* what, std::string_view name) {
  std::string known;
  for (const Isa isa : kIsas) {
    if (name == isa_name(isa)) return isa;
    known += (known.empty() ? "" : ", ") + std::string(isa_name(isa));
  }
  throw std::invalid_argument(std::string(what) + ": expected one of " + known + ", found '" + std::string(name) + "'");
}

// Returns "avx512 is the widest", with the narrower sets that the CPU lacks.
std::string what_is_there(Isa widest) {
  std::string missing;
  for (const Isa isa : kIsas) {
    if (isa < widest && !machine_includes(isa)) missing += ", without " + std::string(isa_name(isa));
  }
  return std::string(isa_name(widest)) + " is the widest" + missing;
}

Isa find_widest() {
  const Isa widest = find_widest_of_machine();
  const char* const name = std::getenv(kIsaVariable);
  if (name == nullptr) return widest;
  const Isa allowed = parse_isa(kIsaVariable, name);
  if (allowed > widest || !machine_includes(allowed)) {
    throw std::invalid_argument(std::string(kIsaVariable) + "=" + name +
                                ": expected a set that this CPU and system support (" + what_is_there(widest) +
                                "): name one of those, or unset the variable");
  }
  return allowed;
}

}  // namespace

std::string_view isa_name(Isa isa) {
  constexpr std::string_view kNames[] = {"avx2", "avxvnni", "avx512",  "vnni", "avx512bf16",
                                         "amx",  "neon",    "dotprod", "i8mm"};
  return kNames[static_cast<int>(isa)];
}

Isa parse_isa(std::string_view name) {
  return parse_isa("instruction set", name);
}

Isa detect_isa() {
  static const Isa widest = find_widest();
  return widest;
}

bool supports_isa(Isa isa) {
  return isa <= detect_isa() && std::find(kIsas.begin(), kIsas.end(), isa) != kIsas.end() && machine_includes(isa);
}

void require_isa(Isa isa) {
  if (supports_isa(isa)) return;
  throw std::invalid_argument("instruction set " + std::string(isa_name(isa)) +
                              ": expected one that this CPU and system support and " + kIsaVariable + " allows (" +
                              what_is_there(detect_isa()) + "): choose one of those, or none");
}

}  // namespace pare::runtime
