// Where the tensors of a model lie in a GGUF file: one walk over the model, which reading and writing share.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/families/families.h"
#include "runtime/import/gguf_stream.h"
#include "runtime/model/model_description.h"

namespace pare::runtime {

// The tensor of a block that corrects scores of experts.
inline constexpr std::string_view kGgufCorrection = "exp_probs_b.bias";

// A tensor of Hugging Face's, and what of the file becomes it.
struct GgufPlace {
  GgufSource source;
  std::string name;                              // Hugging Face's
  std::optional<LinearDescription> linear = {};  // whose weight or bias it is; none for norms and vectors
  // Not "": the tensor makes keys and values of a latent. The file then has those of k as source.name, [H, C, N], and
  // those of v here, [H, V, C].
  std::string latent_values = {};
};

// Returns the places in the order of the model. `has` says whether the file has a tensor: a place without it is left
// out, and where a file may hold linears in two ways it decides. A new file has all but kv_b of a latent in one piece
// (has_in_new_gguf).
std::vector<GgufPlace> gguf_places(const DecoderFamily& family, const ModelDescription& model,
                                   const std::function<bool(const std::string&)>& has);

// Says what a file that is to be written has: for each linear the one way that llama.cpp's own converter chooses.
bool has_in_new_gguf(const std::string& name);

}  // namespace pare::runtime
