#include "runtime/system/version.h"

namespace pare {

std::string_view version() {
  return PARE_VERSION;
}

}  // namespace pare
