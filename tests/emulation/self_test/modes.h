// Every order and schedule of the emulator, for tests that must not depend on them.
#pragma once

#include <string>
#include <vector>

#include "tests/emulation/emulator.h"

namespace pare {

inline std::vector<emulation::Options> all_modes() {
  using emulation::Order;
  using emulation::Schedule;
  std::vector<emulation::Options> modes;
  for (const Schedule schedule : {Schedule::run_ahead, Schedule::lockstep}) {
    for (const Order order : {Order::forward, Order::reverse, Order::random})
      modes.push_back({order, schedule, 7, true});
  }
  return modes;
}

inline std::string mode_name(const emulation::Options& mode) {
  const char* orders[] = {"forward", "reverse", "random"};
  const char* schedules[] = {"run_ahead", "lockstep"};
  return std::string(orders[static_cast<int>(mode.order)]) + "_" + schedules[static_cast<int>(mode.schedule)];
}

// The mode is set while the scope lives.
class ModeScope {
 public:
  explicit ModeScope(const emulation::Options& mode) : old_(emulation::options()) { emulation::set_options(mode); }
  ~ModeScope() { emulation::set_options(old_); }
  ModeScope(const ModeScope&) = delete;
  ModeScope& operator=(const ModeScope&) = delete;

 private:
  emulation::Options old_;
};

}  // namespace pare
