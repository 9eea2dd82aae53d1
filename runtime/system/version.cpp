#include "runtime/system/version.h"

namespace pare::runtime {

std::string_view version() {
  return PARE_VERSION;
}

std::string_view compiler() {
#ifdef __clang__
  return "clang " __clang_version__;
#else
  return "GCC " __VERSION__;
#endif
}

}  // namespace pare::runtime
