// What is known of one compressed layer: committed with its weight, and said in pare.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/format/compressed_tensors.h"
#include "runtime/format/stored_linear.h"

namespace pare {

struct LayerRecord {
  std::string name;
  int64_t num_out = 0;
  int64_t num_in = 0;
  bool is_linear = true;  // false: an embedding
  std::string method;     // "gptq", "rtn", "fp8", "llm_int8"
  PackScheme scheme;
  DType scale_dtype = DType::BF16;
  // tr((W - W') M (W - W')^T) / tr(W M W^T), with M named by error_measure: "hessian" H, "hessian_diagonal" its
  // diagonal, "weights" the identity (no calibration data were needed).
  double relative_error = 0.0;
  std::string error_measure = "weights";
  // Of layers whose input is rounded: |Xq W'^T - X W^T|^2 / |X W^T|^2 on the sampled rows; 0 where none were taken.
  double output_error = 0.0;
  double damping = 0.0;  // of gptq: as used
  std::string scaling;   // of the input, in words; empty: none
  // relative_error before the refinement; 0 where there was none.
  double error_before_refinement = 0.0;
  std::vector<std::string> events;  // what went other than planned, in words
  std::string sha256;               // content_hash of the weight
  double seconds = 0.0;             // measured: never in the manifest
};

// SHA-256 of codes, scales, zeros, groups, outlier columns, the input's format and how all are to be read. Two linears
// have the same hash when a reader cannot tell them apart.
std::string content_hash(const StoredLinear& linear);

// As one JSON object, which only the same version of pare reads. parse_record throws std::invalid_argument for text that
// to_json does not write.
std::string to_json(const LayerRecord& record);
LayerRecord parse_record(const std::string& text);

}  // namespace pare
