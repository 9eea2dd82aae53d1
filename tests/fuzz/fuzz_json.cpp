#include <nlohmann/json.hpp>

#include "runtime/system/json_text.h"
#include "tests/fuzz/fuzz_input.h"

// Accepted text can be written, copied and compared, and reads back as itself.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return pare::fuzz(data, size, [](std::span<const std::byte> bytes) {
    const nlohmann::json json = pare::runtime::parse_json(pare::as_text(bytes), "input");
    const nlohmann::ordered_json ordered = pare::runtime::parse_ordered_json(pare::as_text(bytes), "input");
    if (pare::runtime::parse_json(json.dump(), "again") != json) throw std::logic_error("json changed");
    if (pare::runtime::parse_ordered_json(ordered.dump(), "again") != ordered)
      throw std::logic_error("ordered json changed");
  });
}
