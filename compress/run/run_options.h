// What a command line says of a run beside its recipe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace pare::compress {

// What the command line may say beside the recipe. But for threads and device, whose arithmetic a training has, none of
// it changes a byte of the output.
struct RunOptions {
  std::filesystem::path model;    // instead of the recipe's; empty: the recipe's
  std::filesystem::path output;   // likewise
  std::filesystem::path imatrix;  // of calibrate: where llama.cpp's importance matrix goes; empty: nowhere
  std::optional<int64_t> max_memory_bytes;
  int num_threads = 0;  // 0: as OpenMP decides
  // Items `distill`, and the evaluation where the program has kernels for CUDA; all others work on the CPU.
  bool on_gpu = false;
  bool dry_run = false;
  bool fresh = false;
};

}  // namespace pare::compress
