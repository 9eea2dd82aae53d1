// The emulator's interface where the tests run on a GPU: there is nothing to choose, and every mode is the device as it
// is. Tests of the emulated device itself (emulated_*_test.cpp) have no place in that program.
#include <gtest/gtest.h>

#include <stdexcept>

#include "runtime/cuda/cuda_backend.h"
#include "tests/emulation/emulator.h"

namespace pare::emulation {

const Options& options() {
  static const Options kOptions;
  return kOptions;
}

void set_options(const Options&) {}

void set_device(const Device&) {
  throw std::logic_error("a real device cannot be replaced: tests that do belong in tests/cuda/emulated_*_test.cpp");
}

}  // namespace pare::emulation

namespace pare {
namespace {

// Without a device every test is skipped and says why; none passes.
class RealDevice : public testing::Environment {
 public:
  void SetUp() override {
    try {
      find_cuda_device();
    } catch (const std::runtime_error& error) {
      GTEST_SKIP() << error.what();
    }
  }
};
const testing::Environment* const kRealDevice = testing::AddGlobalTestEnvironment(new RealDevice);

}  // namespace
}  // namespace pare
