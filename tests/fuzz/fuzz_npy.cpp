#include "runtime/files/npy.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return pare::fuzz(data, size, [](std::span<const std::byte> bytes) {
    const pare::runtime::TokenWindows windows = pare::runtime::parse_npy(bytes, "input");
    for (int64_t n = 0; n < windows.num_windows; ++n) windows.window(n);
  });
}
