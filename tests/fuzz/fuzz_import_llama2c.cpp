#include <algorithm>

#include "runtime/import/import.h"
#include "tests/fuzz/fuzz_folder.h"
#include "tests/fuzz/fuzz_input.h"

// The first two bytes say how many of the rest are the vocabulary. The model comes after it.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const size_t split = std::min<size_t>(size - 2, data[0] | data[1] << 8);
  return pare::fuzz(data + 2, size - 2, [&](std::span<const std::byte> bytes) {
    const auto vocabulary = pare::write_fuzz_file("tok.bin", pare::as_text(bytes.first(split)));
    const auto source = pare::write_fuzz_file("model.bin", pare::as_text(bytes.subspan(split)));
    const auto output = pare::fuzz_folder() / "model";
    std::filesystem::remove_all(output);
    pare::runtime::import_model(source, output,
                                {.tokenizer = vocabulary, .dtype = pare::runtime::DType::F32, .progress = {}});
  });
}
