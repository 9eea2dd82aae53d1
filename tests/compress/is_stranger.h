// Tells the passes that tests add to the table of passes from the program's own.
#pragma once

#include "compress/recipe/pass.h"

namespace pare::test {
using namespace compress;

inline bool is_stranger(const PassRow& row) {
  return row.key.starts_with("test_");
}

}  // namespace pare::test
