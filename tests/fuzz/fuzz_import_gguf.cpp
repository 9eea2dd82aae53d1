#include "runtime/import/import.h"
#include "tests/fuzz/fuzz_folder.h"
#include "tests/fuzz/fuzz_input.h"

// Runs the whole import: parsing, tensors, vocabulary, writing the output and reading it back.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return pare::fuzz(data, size, [](std::span<const std::byte> bytes) {
    const auto source = pare::write_fuzz_file("model.gguf", pare::as_text(bytes));
    const auto output = pare::fuzz_folder() / "model";
    std::filesystem::remove_all(output);
    pare::runtime::import_model(source, output, {});
  });
}
