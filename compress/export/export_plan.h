// What becomes of each layer of a checkpoint that is exported to another format: its codes pass as they are where the
// format holds them; else the weight is rounded anew, or decoded.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/export/folder_formats.h"
#include "runtime/format/stored_scheme.h"
#include "runtime/model/checkpoint.h"

namespace pare::compress {

// What an export does with a layer's values.
enum class Passage {
  unchanged,  // a dense weight stays as it is
  codes,      // codes and scales pass; every value stays the same
  rounded,    // other codes: the nearest ones in the format
  decoded     // a dense weight in the model's type
};

struct LayerExport {
  runtime::LinearDescription linear;
  bool is_linear = true;  // false: an embedding
  Passage passage = Passage::unchanged;
  // nullopt: dense. Where the zeros of all layers are those of symmetric ones, `from` says so. For blocks of GGUF that
  // are integers it is the scheme of passing_codes, with their container.
  std::optional<runtime::PackScheme> from = {}, to = {};
  bool drops_input_rounding = false;  // the source rounds this layer's inputs, the format does not
  float tensor_scale = 0.0f;          // of codes of mxfp4 that become those of nvfp4 (mxfp4_as_nvfp4.h)
  std::string reason = {};            // why the codes do not pass
  // True where the format rounds inputs by another rule than the source: LLM.int8 divides by absmax / 127, where
  // compressed-tensors does so by absmax / 127.5.
  bool changes_input_rule() const {
    return to && !drops_input_rounding && to->input.has_outliers() && !from->input.has_outliers();
  }
};

// Returns the weight whose codes an export passes: the stored one. Blocks of GGUF that are codes of integers
// (runtime/blocks/block_integers.h) are given as such, as the import of a .gguf file gives them. Other blocks stay
// blocks. Throws what Checkpoint::stored_linear throws.
runtime::LinearWeights passing_codes(const runtime::Checkpoint& source, const runtime::LinearDescription& linear);
// Returns the same for a layer of the plan, whose codes of mxfp4 may be those of nvfp4 in the format.
runtime::LinearWeights passing_codes(const runtime::Checkpoint& source, const LayerExport& layer);

// Decides for every linear, the embedding and the head. A layer whose scales the format's type would lose is decoded.
// Of values only zeros, codes and scales are read, and blocks of GGUF in folders. Whether a format holds the zeros is
// left to whoever has the weights (value_limits.h).
// An import that has no weights yet (ImportOptions::has_weights) gives the same plan as with them.
// Throws std::invalid_argument for a checkpoint without compressed layers (unless the format is dense), for a format
// that holds none of them, and for layers that one file of it cannot hold together. With `lossless` it throws for the
// first layer whose codes do not pass: layer, reason, what to do.
std::vector<LayerExport> plan_export(const runtime::Checkpoint& source, const runtime::FolderFormat& format,
                                     bool lossless);

}  // namespace pare::compress
