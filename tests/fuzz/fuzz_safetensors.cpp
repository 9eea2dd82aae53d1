#include "runtime/files/safetensors.h"
#include "tests/fuzz/fuzz_input.h"

// Reads every byte that an accepted tensor claims.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return pare::fuzz(data, size, [](std::span<const std::byte> bytes) {
    unsigned sum = 0;
    for (const auto& [name, tensor] : pare::runtime::SafetensorsFile::parse(bytes, "input")) {
      for (const std::byte byte : tensor.data) sum += static_cast<unsigned>(byte);
      if (tensor.num_elements() < 0) throw std::logic_error("negative size accepted");
    }
    [[maybe_unused]] volatile unsigned keep = sum;
  });
}
