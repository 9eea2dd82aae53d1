// Folds divide a stage's input x by s in what produces it. The stage's linears multiply their columns by s, and the
// block computes the same function (AWQ, arXiv 2306.00978, section 3.2; SmoothQuant, arXiv 2211.10438, section 4).
//
//   stage                 producer                  s
//   attention_input       the attention norm's gain any positive value
//   attention_output      the rows of v             powers of two, one for all query heads that share a kv head
//   feed_forward_input    the norm's gain           any positive value
//   feed_forward_output   the rows of up            powers of two
//
// In a mixture each expert's up serves its own down. The input of all experts is also read by their router, so it has
// no fold.
//
// Every fold is exact. Into a norm: the stored gain is g' = round(g / s), and s := g / g' in float32. v and up are
// rounded already: a power of two changes only the exponents of their scales, so that their codes stay. The same serves
// a LayerNorm, whose gain and bias are both divided. The activations already computed are divided exactly.
//
// A network without a gate takes a fold before down only if relu stands between them: relu(x / s) = relu(x) / s.
#pragma once

#include <span>
#include <vector>

#include "compress/passes/compress_stage.h"
#include "compress/walk/decoder_block.h"
#include "quant/scale_bounds.h"

namespace pare::compress {

// Returns whether s must be a power of two: where a linear makes the stage's input, or a norm with a bias.
bool folds_powers_of_two(const runtime::BlockDescription& block, runtime::Stage stage);

// Returns for each channel i of the stage's input the index of what divides it. Channels of equal index must have equal
// s. For a norm it is i itself, for attention_output the row of v, for feed_forward_output the row of up.
std::vector<int64_t> producer_channels(const runtime::ModelDescription& model, const runtime::BlockDescription& block,
                                       runtime::Stage stage);

// Returns bounds, as powers of two, for a stage whose input an up or v makes. Within them, the stored values of each of
// its rows (weights or scales, and the bias) can be divided with a change of their exponents alone. `done` and
// `changed` are as below.
quant::ScaleBounds producer_bounds(const runtime::Checkpoint& checkpoint, runtime::Stage stage,
                                   const runtime::BlockDescription& block, const std::vector<CompressedLayer>& done,
                                   const std::vector<runtime::OwnedTensor>& changed);

// Divides the producer of the stage's input by wanted_I (> 0) and returns the s that was really used. The caller
// multiplies the columns of the stage's weights with it. `done` are the block's layers compressed so far, and the
// producer's scales change in place. Tensors of the source that are not compressed go to `changed` under their names.
// Throws std::invalid_argument when wanted_I disagrees between channels of one producer, or is no power of two where it
// has to be. Throws std::runtime_error when a changed value leaves its type, which s within producer_bounds never
// causes.
std::vector<float> fold(const runtime::Checkpoint& checkpoint, runtime::Stage stage, std::span<const float> wanted_I,
                        DecoderBlock& block, std::vector<CompressedLayer>& done,
                        std::vector<runtime::OwnedTensor>& changed);

// Puts a tensor of `changed` in place of the block's own. A resumed run does this with the tensors that it has
// committed. Throws std::invalid_argument for a name that no fold changes.
void restore_changed(const runtime::OwnedTensor& tensor, DecoderBlock& block);

}  // namespace pare::compress
