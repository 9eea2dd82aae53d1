#include "tests/emulation/race_check.h"

namespace pare::emulation::race_check {

bool is_on() {
  return false;
}
void begin_launch() {}
std::string end_launch() {
  return {};
}
void begin_block(const std::string&, unsigned) {}
void block_barrier() {}
void warp_barrier(unsigned, uint32_t) {}
void atomic(const void*, size_t, const void*) {}
void forget(const void*, size_t) {}

}  // namespace pare::emulation::race_check
