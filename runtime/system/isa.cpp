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

Isa find_widest() {
  const Isa widest = find_widest_of_machine();
  const char* const name = std::getenv(kIsaVariable);
  if (name == nullptr) return widest;
  const Isa allowed = parse_isa(kIsaVariable, name);
  if (allowed > widest) {
    throw std::invalid_argument(std::string(kIsaVariable) + "=" + name +
                                ": expected a set that this CPU and system support (" + std::string(isa_name(widest)) +
                                " is the widest): name one of those, or unset the variable");
  }
  return allowed;
}

}  // namespace

std::string_view isa_name(Isa isa) {
  constexpr std::string_view kNames[] = {"avx2", "avx512", "vnni", "avx512bf16", "amx", "neon", "dotprod", "i8mm"};
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
  return isa <= detect_isa() && std::find(kIsas.begin(), kIsas.end(), isa) != kIsas.end();
}

void require_isa(Isa isa) {
  if (supports_isa(isa)) return;
  throw std::invalid_argument("instruction set " + std::string(isa_name(isa)) +
                              ": expected one that this CPU and system support and " + kIsaVariable + " allows (" +
                              std::string(isa_name(detect_isa())) + " is the widest): choose one of those, or none");
}

}  // namespace pare::runtime
