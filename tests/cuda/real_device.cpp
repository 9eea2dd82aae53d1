// The emulator's interface where the tests run on a GPU. There is nothing to choose, and every mode is the device as it
// is. Tests of the emulated device itself (emulated_*_test.cpp) are not in that program.
#include <gtest/gtest.h>

#include <cstdio>
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

// Without a device no test passes. The program says so and ends with the status that ctest counts as skipped.
int main(int argc, char** argv) {
  constexpr int kSkipped = 77;  // tests/cuda/CMakeLists.txt
  testing::InitGoogleTest(&argc, argv);
  try {
    if (!GTEST_FLAG_GET(list_tests)) pare::runtime::find_cuda_device();
  } catch (const std::runtime_error& error) {
    std::printf("SKIPPED: tests of the CUDA backend were not run: %s\n", error.what());
    return kSkipped;
  }
  return RUN_ALL_TESTS();
}
