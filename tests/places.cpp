#include "tests/places.h"

namespace pare {

const char* const kSourceFolder = PARE_SOURCE_DIR;
const char* const kBuildFolder = PARE_BUILD_DIR;

}  // namespace pare
