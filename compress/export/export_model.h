// Writes a checkpoint in another format: the same model for another engine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "compress/export/export_plan.h"
#include "compress/plan/plan_verdicts.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/progress.h"

namespace pare::compress {

struct ExportOptions {
  const runtime::FolderFormat* format = nullptr;
  bool lossless = false;  // refuses whatever would change a value, before anything is written
};

// What was written of one layer.
struct ExportedLayer {
  LayerExport plan;
  bool is_same = true;          // every value of the weight, read back, is that of the source
  bool has_same_scales = true;  // and so is every scale
  double relative_error = 0.0;  // |W - W'| / |W| (Frobenius norms) of what was read back
};

struct ExportResult {
  std::vector<ExportedLayer> layers;
  int64_t num_bytes = 0;                                             // of all files
  int64_t source_bytes = 0, output_bytes = 0;                        // of weight files
  double bits_per_weight = 0.0, bits_per_weight_without_head = 0.0;  // of the result
  std::vector<std::string> events;
  std::vector<EngineVerdict> engines;
};

// Makes the directory `output` from `source`: config.json, weights, the small files, a model card (model_card.h) in the
// place of the source's, and a pare.json with the SHA-256 of all. It appears whole or not at all. Then every layer is
// read back and compared with the source's. Embedding, norms and layers that are not compressed keep their bytes. One
// layer is in memory at a time, and finished layers lie on the disk (OUT.partial). Throws what plan_export throws, and
// std::invalid_argument with `lossless` for a scale that the format's type does not hold. Throws std::runtime_error for
// an output that exists, files that cannot be written or that change meanwhile, and Interrupted.
ExportResult export_model(const runtime::Checkpoint& source, const std::filesystem::path& output,
                          const ExportOptions& options, runtime::Progress& progress);

// Returns "relative error up to 1.23e-03 ('LAYER')".
std::string error_text(double relative_error, const std::string& worst);
// Returns the lines that say what became of the layers.
std::vector<std::string> passage_lines(const ExportResult& result, const runtime::FolderFormat& format);
// Returns those lines and the engines' verdicts, and a JSON object of what became of the layers.
std::vector<std::string> export_lines(const ExportResult& result, const runtime::FolderFormat& format);
std::string export_json(const ExportResult& result, const runtime::FolderFormat& format);

}  // namespace pare::compress
