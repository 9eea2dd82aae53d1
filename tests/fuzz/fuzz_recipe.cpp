#include "compress/recipe/recipe.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return pare::fuzz(data, size, [](std::span<const std::byte> bytes) {
    const pare::compress::Recipe recipe = pare::compress::parse_recipe(pare::as_text(bytes), "input");
    for (const pare::compress::PassRecipe& pass : recipe.passes)
      pare::compress::layer_options(pass, "model.layers.0.mlp.down_proj", 64, 172);
  });
}
