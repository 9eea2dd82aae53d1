// Where the whole model is trained: on the CPU, or on a GPU through LibTorch.
#pragma once

#include <ATen/core/Tensor.h>

namespace pare::compress {

// The first GPU, or the CPU. To be called before LibTorch is used: its part for CUDA is loaded only when it is asked
// for, since that alone takes some hundred MB. Operators are then the deterministic ones where there are any. Throws
// std::invalid_argument where LibTorch was built without CUDA or finds no GPU.
at::Device training_device(bool on_gpu);

// Gives what freed tensors leave in LibTorch's hands back to the device, for others to allocate. Before LibTorch 2.9,
// which has no way to ask for it without CUDA's own headers, it stays there.
void release_cached_memory(at::Device device);

// Floating-point operations per second of a bfloat16 product of `device`, a GPU.
double measure_gpu_rate(at::Device device);

}  // namespace pare::compress
