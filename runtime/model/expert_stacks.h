// The experts of a block in stacks, as gpt_oss's files hold them:
//
//   experts.gate_up_proj       [E, D, 2F]  gate and up alternate: column 2f is row f of gate, 2f + 1 that of up
//   experts.gate_up_proj_bias  [E, 2F]     likewise
//   experts.down_proj          [E, F, D]
//   experts.down_proj_bias     [E, D]
//
// in floats, or the two weights in MXFP4 (OCP Microscaling Formats Specification 1.0), outputs first:
//
//   experts.gate_up_proj_blocks  U8 [E, 2F, D / 32, 16]  32 codes of E2M1, the low half of a byte first
//   experts.gate_up_proj_scales  U8 [E, 2F, D / 32]      2^(n - 127)
//
// and down_proj's likewise. Codes stand for bfloat16 values, as transformers' convert_moe_packed_tensors has them.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "runtime/files/safetensors.h"
#include "runtime/format/container_format.h"
#include "runtime/model/model_description.h"

namespace pare::runtime {

// A tensor of one expert, whose bytes are made from a stack each time they are read.
struct ExpertTensor {
  std::string name;  // "model.layers.0.mlp.experts.3.gate_proj.weight"
  DType dtype = DType::BF16;
  std::vector<int64_t> shape;
  std::function<std::vector<std::byte>()> make;
  std::vector<std::string> stacks;                     // the names of the tensors that it is made from
  std::vector<std::span<const std::byte>> parts = {};  // the bytes of them that it is made from
};

// Returns the weights and biases of a mixture's routed experts, which have biases and stand in stacks; empty if `find`
// knows no stack. Throws std::runtime_error for stacks of other types or shapes (tensor, expected, found), and where
// one of them is missing.
std::vector<ExpertTensor> experts_of_stacks(const BlockDescription& block, const FindTensor& find);

// Returns what stands before the numbers of a mixture's routed experts: "model.layers.0.mlp.experts.".
std::string experts_module(const BlockDescription& block);

// Replaces the float tensors of single experts of a mixture by its stacks of floats, made while they are written. Does
// nothing unless the weights and biases of all routed experts are there, each kind in one type.
void stack_experts(const BlockDescription& block, std::vector<StreamedTensor>& tensors);

// Returns a config.json without its quantization_config, if that says that experts are stored in MXFP4.
std::string without_mxfp4(const std::string& config_json, const std::string& where);

}  // namespace pare::runtime
