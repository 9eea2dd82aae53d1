// A reader with a planted fault: it trusts the file's own count and reads past its end. tests/fuzz/run expects the
// fuzzer to find it. If the fuzzer does not, the set-up (sanitizers, exact input blocks, exit status) checks nothing.
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return pare::fuzz(data, size, [](std::span<const std::byte> bytes) {
    if (bytes.size() < 2 || bytes[0] != std::byte{'P'}) throw std::runtime_error("no magic");
    const auto count = static_cast<size_t>(bytes[1]);
    unsigned sum = 0;
    for (size_t i = 0; i < count; ++i) sum += static_cast<unsigned>(bytes.data()[2 + i]);
    [[maybe_unused]] volatile unsigned keep = sum;
  });
}
