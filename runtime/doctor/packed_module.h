// A linear whose codes lie in 32-bit words, as GPTQ and AWQ store them, known by its tensors alone: what the
// configuration says of it may be wrong.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/format/container_format.h"

namespace pare::runtime {

// Along which axis of W [O, I] a word's codes lie: GPTQ's qweight is [I*bits/32, O], AWQ's is [I, O*bits/32].
enum class PackedAxis { inputs, outputs };

struct PackedModule {
  std::string name;
  const TensorView* weight = nullptr;  // qweight
  const TensorView* zeros = nullptr;   // qzeros; null: absent
  const TensorView* scales = nullptr;
  const TensorView* groups = nullptr;  // g_idx; null: absent
  std::string problem = {};            // what of the tensors does not fit together; then nothing below is set
  PackedAxis axis = PackedAxis::inputs;
  int bits = 0;
  int64_t num_out = 0, num_in = 0, num_groups = 0;

  // Returns the columns of a group; 0 where groups do not divide the inputs.
  int64_t group_size() const { return num_groups > 0 && num_in % num_groups == 0 ? num_in / num_groups : 0; }
};

// Looks at the module's tensors, reading no values. `bits_if_unknown` counts where neither zeros nor g_idx tell.
PackedModule packed_module(const std::string& name, const FindTensor& find, int bits_if_unknown);

// The order of the codes in a word: as the bits rise, or AWQ's (awq_gemm.h).
enum class WordOrder { plain, awq };

// Returns the codes [O, I]. Of GPTQ's words `order` concerns inputs, of AWQ's outputs.
std::vector<uint8_t> codes_of(const PackedModule& module, WordOrder order);
// Returns the zeros [G, O] as the fields have them.
std::vector<uint8_t> stored_zeros_of(const PackedModule& module, WordOrder order);
// Returns the scales [G, O].
std::vector<float> scales_of(const PackedModule& module);
// Returns g_idx; empty if there is none.
std::vector<int32_t> groups_of(const PackedModule& module);

// Returns the words of qzeros that hold these fields [G, O].
std::vector<std::byte> zero_words(const std::vector<uint8_t>& fields_GO, const PackedModule& module);
// Returns the module's words of 4-bit codes, or zeros, with the codes of each word put from AWQ's order into the plain
// one, or back.
std::vector<std::byte> reordered_words(const TensorView& words, WordOrder from);

}  // namespace pare::runtime
