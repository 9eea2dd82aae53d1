#include "compress/train/training_device.h"

#include <ATen/Context.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <dlfcn.h>
#include <torch/version.h>
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 9
#include <c10/core/CachingDeviceAllocator.h>
#endif

#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace pare::compress {

at::Device training_device(bool on_gpu) {
  if (!on_gpu) return at::kCPU;
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);  // without it cuBLAS does not repeat its sums
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    throw std::invalid_argument("--device cuda: this LibTorch cannot use CUDA (" + std::string(dlerror()) +
                                "): install its CUDA packages and build again with 'make build CUDA=1' in the source "
                                "folder of pare, set LIBTORCH to a build that has CUDA, or leave the option out");
  }
  if (!at::hasCUDA()) {
    throw std::invalid_argument("--device cuda: LibTorch finds no GPU that it can use: leave the option out");
  }
  at::globalContext().setDeterministicAlgorithms(/*b=*/true, /*warn_only=*/true);
  return at::kCUDA;
}

void release_cached_memory([[maybe_unused]] at::Device device) {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 9
  if (!device.is_cpu()) c10::getDeviceAllocator(device.type())->emptyCache();
#endif
}

double measure_gpu_rate(at::Device device) {
  constexpr int64_t kWidth = 4096;
  constexpr int kProducts = 10;
  const at::Tensor matrix = at::ones({kWidth, kWidth}, at::TensorOptions(device).dtype(at::kBFloat16));
  at::Tensor product = at::matmul(matrix, matrix);
  const auto wait = [&] { return product[0][0].item<float>(); };  // a product is begun, not finished, when it returns
  wait();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kProducts; ++i) product = at::matmul(matrix, matrix);
  wait();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return kProducts * 2.0 * static_cast<double>(kWidth * kWidth * kWidth) / seconds.count();
}

}  // namespace pare::compress
