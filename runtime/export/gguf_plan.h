// Which tensors a GGUF file of a checkpoint has, and of what they are made.
#pragma once

#include <string>
#include <vector>

#include "runtime/export/gguf_copies.h"
#include "runtime/export/gguf_formats.h"
#include "runtime/import/gguf_places.h"
#include "runtime/model/checkpoint.h"

namespace pare::runtime {

// How a tensor is made.
enum class GgufMaking {
  vector,         // norms, biases, scores and positions, in F32
  matrix,         // rows of linears, one after the other
  latent_keys,    // of what makes keys and values of a latent: [H, C, N], each head's rows turned
  latent_values,  // [H, V, C]
};

struct PlannedGgufTensor {
  std::string name;
  std::vector<int64_t> shape = {};
  ChosenType chosen = {};
  GgufMaking making = GgufMaking::matrix;
  std::vector<GgufPlace> parts = {};  // one, or one for each expert
  bool is_copied = false;             // the blocks are those of the file that was imported
};

// Returns the tensors in the file's order. Matrices whose blocks `copies` has in the wanted type are copied, and where
// `format` has no type, those of any type. Of the others:
//   - Without a type, those that have codes get the smallest type that holds them all exactly, else the smallest that
//     holds the codes (with rounded scales), else F16. Those in floating point keep their type.
//   - With a type, they get what type_for() says. The logits' matrix gets the usual type where that holds its codes.
//   - Those with codes become BF16 where float16 loses their scales (holds_scales).
//   - Weights that a checkpoint stores as blocks of one type stay as they are, unless floats are asked for.
// Reads the weights of quantized linears for that. Throws std::invalid_argument for a family without GGUF files.
std::vector<PlannedGgufTensor> plan_gguf_tensors(const Checkpoint& checkpoint, const DecoderFamily& family,
                                                 const GgufFormat& format, const GgufCopies& copies = {});

}  // namespace pare::runtime
