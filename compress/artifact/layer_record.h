// What is known of one compressed layer: committed with its weight, and said in pare.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/format/fields.h"
#include "runtime/format/stored_linear.h"
#include "runtime/format/stored_scheme.h"

namespace pare {

struct LayerRecord {
  std::string name;
  int64_t num_out = 0;
  int64_t num_in = 0;
  bool is_linear = true;  // false: an embedding
  std::string method;     // the recipe's key of the last pass: "gptq", "rtn", ...
  PackScheme scheme;
  // In which order columns were rounded; without groups the scheme does not say.
  StoredActOrder act_order = StoredActOrder::none;
  DType scale_dtype = DType::BF16;
  // Of layers that a pass has pruned: what it promises, or none of an unstructured one, and how many of the values that
  // are multiplied are 0. No zeros: none has.
  SparsePattern pattern = {};
  int64_t num_zeros = 0;
  // tr((W - W') M (W - W')^T) / tr(W M W^T), with M named by error_measure: "hessian" H, "hessian_diagonal" its
  // diagonal, "weights" the identity (no calibration data were needed).
  double relative_error = 0.0;
  std::string error_measure = "weights";
  // Of layers whose input is rounded: |Xq W'^T - X W^T|^2 / |X W^T|^2 on the sampled rows; 0 where none were taken.
  double output_error = 0.0;
  double damping = 0.0;  // of gptq and sparsegpt, the later of both: as used
  std::string scaling;   // of the input, in words; empty: none
  // The share S of the step towards the original model (quant/fit.h); 0 where there was none. Errors are measured
  // against the weight behind that step.
  double fit = 0.0;
  // relative_error before the refinement; 0 where there was none.
  double error_before_refinement = 0.0;
  // Of layers whose block was trained behind all passes: the block's loss on held-out windows after it over that before
  // (compress/reconstruct); 0: none was. The errors above are those before it.
  double reconstruction = 0.0;
  std::vector<std::string> events;  // what went other than planned, in words
  std::string sha256;               // content_hash of the weight
  double seconds = 0.0;             // measured: never in the manifest

  void fields(FieldVisitor& visit) {
    visit("name", name);
    visit("num_out", num_out);
    visit("num_in", num_in);
    visit("is_linear", is_linear);
    visit("method", method);
    visit("scheme", scheme);
    visit("act_order", act_order);
    visit("scale_dtype", scale_dtype);
    visit("pattern", pattern);
    visit("num_zeros", num_zeros);
    visit("relative_error", relative_error);
    visit("error_measure", error_measure);
    visit("output_error", output_error);
    visit("damping", damping);
    visit("scaling", scaling);
    visit("fit", fit);
    visit("error_before_refinement", error_before_refinement);
    visit("reconstruction", reconstruction);
    visit("events", events);
    visit("sha256", sha256);
    visit("seconds", seconds);
  }
  // Whether its weight is a tensor like any other, under its own name: neither codes nor packed, nor a rounded input.
  bool is_plain() const { return scheme.is_plain(); }
  bool is_pruned() const { return num_zeros > 0; }
};

// SHA-256 of codes, scales, zeros, groups, packed dense values, the pattern, outlier columns, the input's format and
// how all are to be read. Two linears have the same hash when a reader cannot tell them apart.
std::string content_hash(const StoredLinear& linear);

// The record as text, and back: one line per field, "name value" in JSON. Doubles survive unchanged.
std::string to_json(const LayerRecord& record);
// Throws std::invalid_argument for what to_json does not write: which field.
LayerRecord parse_record(const std::string& json);

}  // namespace pare
