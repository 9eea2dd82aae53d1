// The names of what a model can be exported to as a GGUF file.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/files/gguf.h"
#include "runtime/format/container_format.h"

namespace pare::runtime {

struct GgufFormat {
  std::string_view name;         // of `pare export --format`
  std::optional<GgufType> type;  // of matrices; unset: for each the smallest that holds its codes
  int file_type = 0;             // general.file_type, llama.cpp's number (gguf-py: LlamaFileType)
};

// f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl, q2_k, q3_k, q4_k, q5_k, q6_k, gguf.
std::span<const GgufFormat> gguf_formats();
// Null for another name.
const GgufFormat* find_gguf_format(std::string_view name);

// Tells whether a file of that format holds the codes of a linear that a checkpoint stores so, whichever they are.
// num_in is the width of its rows; 0: it is not known. Formats of floats hold what codes stand for, and round no input.
// Without a type, that is a type of code_types(). Blocks that a checkpoint has already pass to every format.
Acceptance holds_codes(const GgufFormat& format, const PackScheme& scheme, int64_t num_in = 0);

// The type of a matrix, and why it is not the one that was asked for.
struct ChosenType {
  GgufType type = GgufType::F32;
  std::string why = {};
};

// Returns what llama-quantize would take for rows of `width` elements. Superblocks of 256 do not fill rows of other
// widths: Q2_K and Q3_K become Q4_0, Q4_K becomes Q5_0, Q5_K becomes Q5_1, and Q6_K becomes Q8_0. Rows that are no
// multiple of 32 become F16. The logits' matrix (is_head) is more sensitive: it gets Q6_K, or Q8_0 in other widths and
// where the others are Q8_0. Floats are as asked. Source: llama-quant.cpp of llama.cpp, with --pure for all but the
// head.
ChosenType type_for(GgufType asked, int64_t width, bool is_head);

}  // namespace pare::runtime
