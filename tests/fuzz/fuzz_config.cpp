#include "runtime/model_description.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return pare::fuzz(data, size,
                    [](std::span<const std::byte> bytes) { pare::describe_model(pare::as_text(bytes), "input"); });
}
