// The places of sources and build. They are known when a test is linked, so its objects are the same in every clone,
// and a compiler cache finds them again.
#pragma once

namespace pare {

extern const char* const kSourceFolder;
extern const char* const kBuildFolder;

}  // namespace pare
