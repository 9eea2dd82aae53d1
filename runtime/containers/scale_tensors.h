// Tensors that several containers name alike: scales of weights, and the fixed range of an input,
//   input_scale         BF16, F16 or F32 [1]   for static input activations
//   input_zero_point    I8 [1]                 asymmetric ones only
//   input_global_scale  F32 [1]                in place of both for nvfp4 inputs: their factor (input_format.h)
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/format/stored_scheme.h"
#include "runtime/format/tensor_view.h"

namespace pare::runtime {

inline constexpr std::string_view kInputScaleSuffix = ".input_scale";
inline constexpr std::string_view kInputZeroPointSuffix = ".input_zero_point";
inline constexpr std::string_view kInputGlobalScaleSuffix = ".input_global_scale";

// These names hold what a reader found. A null pointer: absent.
struct InputTensors {
  const TensorView* scale = nullptr;
  const TensorView* zero_point = nullptr;
  const TensorView* global_scale = nullptr;
};

// Throws std::runtime_error for a tensor that `because` ("symmetric: true") rules out.
void require_absent(const TensorView* tensor, const std::string& module, std::string_view suffix, const char* because);

// Returns the type in which a file holds scales of that type: U8 for F8_E8M0, which is written as its bits.
DType file_dtype(DType scale_dtype);

// Throws std::invalid_argument for a scale that `dtype` does not represent exactly.
OwnedTensor pack_scales(std::span<const float> scales, DType dtype, std::vector<int64_t> shape,
                        const std::string& module, std::string_view suffix);
// Throws std::runtime_error unless the tensor is there, in a type of floats, with that shape. A code's scales must have
// its own type where it has one.
void check_scale_tensor(const TensorView* tensor, const std::vector<int64_t>& shape, const std::string& module,
                        std::string_view suffix, const WeightCode* code = nullptr);
std::vector<float> unpack_scales(const TensorView& tensor);
// The same for scales of a code's own type, which the file holds as file_dtype.
std::vector<float> unpack_scales(const TensorView& tensor, DType scale_dtype);

// Checks the rows' scales of a container that stores the largest magnitude of each, so that a negative one is damage.
// Throws std::runtime_error with the tensor, the number, its row and what to do.
void require_magnitudes(std::span<const float> scales_O, const std::string& module, std::string_view suffix);

// Returns the bytes of the tensors below.
int64_t input_tensor_bytes(const InputFormat& input, DType scale_dtype);
// Throws std::runtime_error for a scale that is not positive and finite, std::invalid_argument for a zero outside of
// I8, and what pack_scales throws.
void append_input_tensors(const StoredLinear& linear, const std::string& module, std::vector<OwnedTensor>& tensors);
// Checks that the tensors that `input` asks for, and no others, are there with the right types and shapes. Throws
// std::runtime_error.
void check_input_tensors(const InputTensors& tensors, const InputFormat& input, const std::string& module);
// Completes linear.input after that check. Throws std::runtime_error for a scale that is not positive and finite.
void read_input_tensors(const InputTensors& tensors, const std::string& module, StoredLinear& linear);

}  // namespace pare::runtime
