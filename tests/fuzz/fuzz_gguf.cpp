#include "runtime/files/gguf.h"
#include "tests/fuzz/fuzz_input.h"

// Decodes every accepted tensor.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return pare::fuzz(data, size, [](std::span<const std::byte> bytes) {
    const pare::runtime::GgufFile file = pare::runtime::GgufFile::parse(bytes, "input");
    for (const auto& [name, tensor] : file.tensors()) {
      std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
      pare::runtime::decode_gguf_blocks(tensor.type, tensor.data, values);
    }
  });
}
