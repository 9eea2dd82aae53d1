// What things cost, as measured: the constants with which a run's time, memory and disk are predicted. Costs are in
// units of the matrix product's rate, which each run measures anew. `tests/compress` compares predictions with runs
// (Pipeline.DryRun*, PredictTraining*).
#pragma once

#include <cstdint>

namespace pare::compress {

// --- operations, of passes ---

// A weight's search of a scale: 25 shrink factors, about 20 operations each.
inline constexpr double kSearchOpsPerWeight = 500.0;
inline constexpr double kRoundOpsPerWeight = 8.0;     // per column of H that the rounding error goes to
inline constexpr double kRefineOpsPerWeight = 11.0;   // per column of H and sweep
inline constexpr double kJudgeOpsPerWeight = 4000.0;  // AWQ's candidates, beside the product with H: search, rounding
inline constexpr double kSmoothOpsPerWeight = 200.0;  // SmoothQuant's candidates, beside the product with sampled rows
inline constexpr double kFactorOpsPerCube = 6.0;      // the factor of H, per I^3
inline constexpr double kScoreOpsPerWeight = 60.0;    // scores and the choice of a mask
inline constexpr double kSweepOpsPerWeight = 8.0;     // SparseGPT's loop, per column of H
inline constexpr double kProductOpsPerWeight = 2.2;   // a round of ALPS or a step of conjugate gradients, per column
// Conjugate gradients stop early: so many steps of those allowed.
inline constexpr double kShareOfSteps = 0.5;
inline constexpr double kFactorOpsPerKept = 1.5;       // a row's own factorization, per kept column cubed
inline constexpr double kFitOpsPerWeight = 16.0;       // per column of H: five float64 products, three for o and down
inline constexpr double kTableOpsPerWeight = 1500.0;   // conversion, rounding, packing, checksums: bound by memory
inline constexpr double kTruncateOpsPerLogit = 150.0;  // in each sum over a vocabulary: exponentials and reads

// --- shares of the matrix product's rate ---

inline constexpr double kForwardEfficiency = 0.75;     // products of [T, D], norms, softmax
inline constexpr double kReconstructEfficiency = 0.5;  // float32; a block's graph, one thread per window
inline constexpr double kStatisticsEfficiency = 0.85;  // tiles of H
inline constexpr double kEvaluationEfficiency = 0.6;   // pare's own kernels

// --- rates of bytes ---

inline constexpr double kBytesPerSecond = 1e9;         // hashing and writing files
inline constexpr double kWeightBytesPerSecond = 1e10;  // reading weights while tokens are decoded one by one

// --- memory ---

// What LibTorch, MKL and the allocator hold beside our buffers once they are used: for the process, for each worker,
// and for each worker and column of the widest matrix. Measured with 1, 2 and 4 threads on models of 64 to 1024
// channels, and with 2 and 16 on a block of Llama 2 7B's shape, where a worker held 18 MB, and 28 with `fit`.
inline constexpr int64_t kLibraryBytes = int64_t{4} << 20;
inline constexpr int64_t kWorkerBytes = int64_t{4} << 20;
inline constexpr int64_t kWorkerColumnBytes = int64_t{3} << 10;
// What a worker of an encoder's walk holds on a heap of its own beside the tensors that are counted: four workers on
// all-MiniLM-L6-v2, with texts of 512 tokens, held 293 MB on an EPYC, and 272 to 328 MB on a Xeon. One worker held 151
// to 173 MB on an EPYC: of the file's pages, more stay mapped on some runs than on others.
inline constexpr int64_t kWalkingHeapBytes = int64_t{32} << 20;
// What a thread that takes gradients holds for its graph's nodes and on the heap.
inline constexpr int64_t kGradientThreadBytes = int64_t{4} << 20;
// H and U of a stage in float32, and the float64 matrix in which U is made. When that is gone, refinement has a damped
// H in its place.
inline constexpr int64_t kFactorElementBytes = 4 + 4 + 8;
// Three panels of 128 columns in float64 beside it: the squares on the diagonal, their inverses, and a panel at work.
inline constexpr int64_t kFactorColumnBytes = 3 * 128 * 8;
// With `fit` H and that of the held-out windows in float32, and the factor in float64.
inline constexpr int64_t kFitElementBytes = 4 + 4 + 8;
// A training holds more than its tensors: each thread the products' buffers and a heap of its own, and a heap what it
// keeps between pieces of different sizes. Measured in float32 on two threads: 4.40 GB where tensors are 4.00 (SmolLM2,
// micro-batches of a window of 512 tokens), 5.69 where they are 5.13 (of two), 1.36 to 1.43 where they are 1.13 (6
// blocks).
inline constexpr double kHeapShare = 1.07;
inline constexpr int64_t kThreadBytes = int64_t{80} << 20;
// [tokens, V] that a loss holds at its highest point, those of its graph included.
inline constexpr double kTensorsOfLoss = 15.0;
// A run predicts its size before calibration has counted outlier columns. It assumes one in this many.
inline constexpr int64_t kExpectedOutlierShare = 8;

}  // namespace pare::compress
