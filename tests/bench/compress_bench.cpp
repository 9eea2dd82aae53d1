// What compressing costs beside the least that any calibration must do, a forward pass:
//   bench_compress MODEL WINDOWS.npy [NUM_WINDOWS] [BITS] [GROUP]
// times one float32 forward pass of the windows through the blocks (embedding and head left out), then `pare run` with
// GPTQ on the same windows, without evaluation, without and with `fit`, and prints all and their ratios. The run
// includes all: reading and checking the model, statistics, rounding, writing, verifying.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <omp.h>
#include <stdlib.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <stdexcept>
#include <string>

#include "compress/recipe/recipe.h"
#include "compress/run/pipeline.h"
#include "compress/walk/block_walk.h"
#include "runtime/files/npy.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/progress.h"

namespace {

using Clock = std::chrono::steady_clock;

double time_forward(const std::string& model, pare::runtime::TokenWindows windows,
                    const std::filesystem::path& folder) {
  const at::NoGradGuard no_grad;
  const pare::runtime::Checkpoint checkpoint = pare::runtime::Checkpoint::open(model);
  const auto start = Clock::now();
  pare::compress::BlockWalk walk(checkpoint.description(), windows, checkpoint.linear(checkpoint.embedding()), 0,
                                 pare::compress::Spill::none, folder, omp_get_max_threads());
  const auto num_blocks = static_cast<int64_t>(checkpoint.description().blocks.size());
  for (int64_t b = 0; b < num_blocks; ++b) {
    const pare::compress::DecoderBlock block(checkpoint, b, windows.num_tokens);
    for (const pare::runtime::Stage stage : pare::runtime::kStages)
      walk.reach(block, stage, pare::compress::StatisticsNeed::none);
    walk.leave(block);
  }
  return pare::runtime::seconds_since(start);
}

double time_run(const std::string& model, const std::filesystem::path& windows, const std::string& bits,
                const std::string& group, const std::string& fit, const std::filesystem::path& folder) {
  const std::string yaml = "calibration: {text: " + windows.string() +
                           ", samples: 1000000}\npasses:\n  - gptq: {bits: " + bits + ", group_size: " + group +
                           ", fit: " + fit + "}\n";
  pare::runtime::Progress progress(pare::runtime::progress_style(/*quiet=*/true), std::cerr);
  pare::compress::RunOptions options;
  options.model = model;
  options.output = folder / ("fit-" + fit);
  const auto start = Clock::now();
  std::cout << pare::compress::run(pare::compress::parse_recipe(yaml, "bench"), options, progress) << "\n";
  return pare::runtime::seconds_since(start);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: bench_compress MODEL WINDOWS.npy [NUM_WINDOWS] [BITS] [GROUP]\n";
    return 2;
  }
  pare::runtime::TokenWindows windows = pare::runtime::read_npy(argv[2]);
  if (argc > 3 && std::stoll(argv[3]) < windows.num_windows) {
    windows.num_windows = std::stoll(argv[3]);
    windows.ids_NT.resize(static_cast<size_t>(windows.num_windows * windows.num_tokens));
  }
  std::string pattern = (std::filesystem::temp_directory_path() / "pare-bench-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make a folder like " + pattern);
  const std::filesystem::path folder = pattern;
  pare::runtime::write_npy(folder / "windows.npy", windows);
  const double forward = time_forward(argv[1], windows, folder);
  const auto gptq = [&](const std::string& fit) {
    return time_run(argv[1], folder / "windows.npy", argc > 4 ? argv[4] : "4", argc > 5 ? argv[5] : "64", fit, folder);
  };
  const double alone = gptq("false"), fitted = gptq("true");
  std::printf(
      "forward through the blocks %.1f s, gptq %.1f s: %.2f forward passes; with fit %.1f s: %.2f times as long\n",
      forward, alone, alone / forward, fitted, fitted / alone);
  std::filesystem::remove_all(folder);
  return 0;
}
