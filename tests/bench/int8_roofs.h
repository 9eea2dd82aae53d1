// Loops in registers that reach a machine's rate of 8-bit multiply-adds.
#pragma once

#include <cstdint>

namespace pare {

struct Int8Roof {
  void (*run)(int64_t num_rounds);
  int64_t ops_per_round;  // a multiply and an add are two
};
Int8Roof vnni_roof();
Int8Roof amx_roof();  // the process must have been granted the tiles

}  // namespace pare
