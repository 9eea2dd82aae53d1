// Converts other formats to a Hugging Face directory that every other command reads: config.json, safetensors,
// tokenizer.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/format/dtype.h"

namespace pare::runtime {

// The form that codes of a .gguf get. Of its floating point tensors each keeps its type.
enum class GgufCodes {
  rounded,  // decoded, and rounded to BF16
  decoded,  // in F32, which holds their values
  // Linears of blocks whose codes and scales codes of integers hold exactly keep them, as compressed-tensors'
  // int-quantized. Others are decoded.
  kept
};

struct ImportOptions {
  // llama2.c keeps its vocabulary in a file of its own. Empty: the one file beside the checkpoint that is named
  // tok*.bin.
  std::filesystem::path tokenizer;
  // The type of the weights written: BF16, F16 or F32. Unset: floats of a .gguf keep their type, so that they are what
  // they were; its codes become what `codes` says, and llama2.c's weights BF16.
  std::optional<DType> dtype = {};
  // False: model.safetensors describes the weights, and has a hole in their place, which reads as zeros. So data can be
  // read for a model before hours of decoding, with all that the source's header says.
  bool has_weights = true;
  GgufCodes codes = GgufCodes::rounded;  // `dtype` is not given beside another value
  // Called with (tensors done, tensors). May be empty.
  std::function<void(int64_t, int64_t)> progress;
};

// Parses "bfloat16", "float16" or "float32", as config.json spells them. Throws std::invalid_argument for another name.
DType parse_dtype_name(std::string_view name);

// Returns the files that an import of `source` reads. Throws std::runtime_error or std::invalid_argument if the source
// cannot be opened or its vocabulary is not found.
std::vector<std::filesystem::path> import_inputs(const std::filesystem::path& source, const ImportOptions& options);

// `source` is a .gguf (tensors of the types that runtime/files/gguf.h lists; the architectures that
// the rows of runtime/families name; the first of several parts stands for all) or a llama2.c checkpoint (.bin, version
// 0). Weights are decoded to float32 and rounded as options.dtype says. `output` must not exist; it appears whole or
// not at all (made in OUTPUT.partial: runtime/system/partial_output.h). Throws std::invalid_argument and
// std::runtime_error with the thing, what was expected and what was found; also if `source` changes meanwhile. Throws
// Interrupted, which is checked at every row.
void import_model(const std::filesystem::path& source, const std::filesystem::path& output,
                  const ImportOptions& options);

}  // namespace pare::runtime
