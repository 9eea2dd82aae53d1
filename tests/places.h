// Where sources and build lie. Known when a test is linked: its objects are then the same in every clone, and a compiler
// cache knows them again.
#pragma once

namespace pare {

extern const char* const kSourceFolder;
extern const char* const kBuildFolder;

}  // namespace pare
