// The options of pruning and their defaults, in one place. It is free of LibTorch, so that recipes can be read without
// it. options.cpp lists them for recipes, with their ranges and meanings.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/format/fields.h"
#include "runtime/format/linear_weights.h"

namespace pare::prune {

inline constexpr std::string_view kUnstructured = "unstructured";
// The texts that `pattern:` takes.
inline constexpr runtime::TextForm kPatternForm = {"N:M or unstructured", "^([1-9][0-9]*:[1-9][0-9]*|unstructured)$"};

// Reads "N:M", which keeps N of M consecutive inputs, 0 < N < M. kUnstructured gives {0, 0}. Throws
// std::invalid_argument for any other text.
runtime::SparsePattern parse_pattern(std::string_view text);
// Returns the text that parse_pattern reads back.
std::string pattern_text(const runtime::SparsePattern& pattern);

// The weights among which the ratio of unstructured sparsity holds. row: each row of a layer. layer: each layer.
// global: all layers together, whose scores must then be comparable, as magnitudes are. owl: each layer has a ratio of
// its own, found by outliers (owl.h) and held in each row.
enum class Allocation { row, layer, global, owl };
inline std::span<const runtime::EnumName<Allocation>> enum_names(Allocation) {
  static constexpr std::array<runtime::EnumName<Allocation>, 4> kNames = {{{Allocation::row, "row"},
                                                                           {Allocation::layer, "layer"},
                                                                           {Allocation::global, "global"},
                                                                           {Allocation::owl, "owl"}}};
  return kNames;
}

struct SparsityOptions {
  std::string pattern = "2:4";              // or kUnstructured
  double ratio = 0.5;                       // unstructured: the share of weights that become zero; 0 .. 1
  Allocation allocation = Allocation::row;  // for unstructured sparsity

  void fields(runtime::FieldVisitor& visit);
  // The same for a pass that has only these allocations.
  void fields(runtime::FieldVisitor& visit, std::span<const Allocation> allocations);
};

struct OwlOptions {
  double outlier = 5.0;  // an outlier's score exceeds this multiple of its layer's mean; > 0
  double bound = 0.08;   // the most by which a layer's ratio differs from the one asked for

  void fields(runtime::FieldVisitor& visit);
};

inline constexpr int kMaxSolverRounds = 10000;

// Options of solving kept weights again by least squares (resolve.h).
struct ResolveOptions {
  int gradient_steps = 60;  // the most steps of conjugate gradients; 0 leaves the weight as it is
  double tolerance = 3e-5;  // a row is done when a step lowers its trace by less than this share
  double damping = 0.01;    // relative to mean diag(H) over live columns, added to the diagonal of the H that is
                            // minimized; 0 .. 1
  bool exact = false;       // one factorization in float64 for each row, in place of the steps

  void fields(runtime::FieldVisitor& visit);
};

// Returns the bytes that each thread of an exact solution holds for rows that keep this many columns: the matrix, its
// scaled copy and the factor.
constexpr int64_t resolve_exact_bytes(int64_t num_kept) {
  return 3 * num_kept * num_kept * static_cast<int64_t>(sizeof(double));
}

// Options of choosing the mask inside the re-solving (alps.h). Below the first penalty supports wander without gain;
// above the last one they hardly move.
struct AlpsOptions {
  double first_penalty = 0.1;  // rho, in units of the normalized H, grows by equal factors ...
  double last_penalty = 1.0;
  int num_penalties = 12;  // ... in this many values
  int rounds = 5;          // rounds of ADMM at each penalty

  void fields(runtime::FieldVisitor& visit);
};

// The method that chooses a mask. sweep: the column loop that also makes up for what is dropped (SparseGPT). alps:
// ADMM.
enum class MaskChooser { sweep, alps };
inline std::span<const runtime::EnumName<MaskChooser>> enum_names(MaskChooser) {
  static constexpr std::array<runtime::EnumName<MaskChooser>, 2> kNames = {
      {{MaskChooser::sweep, "sweep"}, {MaskChooser::alps, "alps"}}};
  return kNames;
}

}  // namespace pare::prune
