// The record of one compressed layer. It is committed with the layer's weight and listed in pare.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/containers/stored_linear.h"
#include "runtime/format/fields.h"
#include "runtime/format/stored_scheme.h"

namespace pare::compress {

struct LayerRecord {
  std::string name;
  int64_t num_out = 0;
  int64_t num_in = 0;
  bool is_linear = true;  // false: an embedding
  std::string method;     // the recipe's key of the last pass: "gptq", "rtn", ...
  runtime::PackScheme scheme;
  // The order in which columns were rounded. Without groups the scheme does not say it.
  runtime::StoredActOrder act_order = runtime::StoredActOrder::none;
  runtime::DType scale_dtype = runtime::DType::BF16;
  // For layers that a pass has pruned: the promised pattern, if any (none for unstructured sparsity), and the number of
  // zeros among the values that are multiplied. num_zeros is 0 where no pass has pruned.
  runtime::SparsePattern pattern = {};
  int64_t num_zeros = 0;
  // tr((W - W') M (W - W')^T) / tr(W M W^T). error_measure names M: "hessian" is H, "hessian_diagonal" its diagonal,
  // and "weights" the identity (no calibration data were needed).
  double relative_error = 0.0;
  std::string error_measure = "weights";
  // For layers whose input is rounded: |Xq W'^T - X W^T|^2 / |X W^T|^2 on the sampled rows; 0 where none were taken.
  double output_error = 0.0;
  // The value that gptq or sparsegpt used, the later one's if both ran; empty: no pass used one.
  std::optional<double> damping;
  // Inputs up to it are dropped (InputFormat::sparsity_threshold); 0: none.
  double sparsity_threshold = 0.0;
  std::string scaling;  // a description of the input's scaling; empty: none
  // The share S of the step towards the original model (quant/fit.h), or 0 without such a step. Errors are measured
  // against the weight after that step.
  double fit = 0.0;
  // The relative_error before the refinement, or 0 where there was none.
  double error_before_refinement = 0.0;
  // For layers whose block was trained after all passes (compress/reconstruct): the block's loss on held-out windows
  // after the training over that before it; 0 without such training. The errors above are those before it.
  double reconstruction = 0.0;
  std::vector<std::string> events;  // deviations from the plan, as sentences
  std::string sha256;               // content_hash of the weight
  double seconds = 0.0;             // measured, so never in the manifest

  void fields(runtime::FieldVisitor& visit) {
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
    visit("sparsity_threshold", sparsity_threshold);
    visit("scaling", scaling);
    visit("fit", fit);
    visit("error_before_refinement", error_before_refinement);
    visit("reconstruction", reconstruction);
    visit("events", events);
    visit("sha256", sha256);
    visit("seconds", seconds);
  }
  // Returns whether its weight is a tensor like any other, under its own name: not as codes, not packed, and without a
  // rounded input.
  bool is_plain() const { return scheme.is_plain(); }
  bool is_pruned() const { return num_zeros > 0; }
};

// Returns the SHA-256 of codes, scales, zeros, groups, packed dense values, the pattern, outlier columns, the input's
// format and how all are to be read. Two linears have the same hash when a reader cannot tell them apart.
std::string content_hash(const runtime::StoredLinear& linear);

// Returns the record as text: one line per field, "name value" in JSON. Doubles survive unchanged.
std::string to_json(const LayerRecord& record);
// Reads the text of to_json. Throws std::invalid_argument for any other text (which field).
LayerRecord parse_record(const std::string& json);

}  // namespace pare::compress
