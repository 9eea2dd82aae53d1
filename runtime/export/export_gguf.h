// A checkpoint as a GGUF file, which llama.cpp runs: import_gguf.cpp backwards. The tables of families and the walk
// over tensors (runtime/import/gguf_places.h) are those of the import.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/export/gguf_formats.h"
#include "runtime/families/families.h"
#include "runtime/model/checkpoint.h"

namespace pare::runtime {

struct GgufExportOptions {
  // The .gguf file that the checkpoint was imported from, whose blocks are copied where they have the wanted type; "":
  // none.
  std::filesystem::path source = {};
  // True: what would be rounded is refused, naming the first such tensor.
  bool lossless = false;
  // Returns how much an error in each column of a linear's weight counts: the mean square of its inputs, num_in values
  // that are not negative. Empty: all count alike. May be empty itself.
  std::function<std::span<const float>(const LinearDescription&)> importance = {};
  // The file's general.name; "": that of the checkpoint's folder.
  std::string name = {};
  // The file's general.license, which the model's card names; "": none.
  std::string license = {};
  // Called with (tensors done, tensors). May be empty.
  std::function<void(int64_t, int64_t)> progress = {};
};

struct GgufExportedTensor {
  std::string name;            // in the file
  std::vector<int64_t> shape;  // row-major
  GgufType type = GgufType::F32;
  std::string why;            // the type is not the one that was asked for, since ...; else ""
  bool keeps_codes = false;   // the checkpoint's codes are the file's
  bool is_lossless = false;   // every element is what the checkpoint says
  double relative_error = 0;  // |W - W'| / |W|, of all elements
  int64_t num_bytes = 0;
};

struct GgufExport {
  std::string architecture;                 // general.architecture
  std::vector<GgufExportedTensor> tensors;  // in the file's order
  std::vector<std::string> notes;           // what the file cannot say, or llama.cpp computes in its own way
  std::vector<std::string> obstacles;       // why llama.cpp does not load it: llama_cpp_obstacles
  int64_t num_bytes = 0;                    // of the file
  int64_t num_weight_bytes = 0;             // of the tensors
  // The error of all tensors together, as above.
  double relative_error = 0;
};

// Returns the row of the checkpoint's family. Throws std::invalid_argument for an encoder and for a family that has no
// GGUF files.
const DecoderFamily& gguf_family(const Checkpoint& checkpoint);

// Returns what llama.cpp does not expect in models of the family, and so does not load, as sentences; none: it loads
// the model. The import reads such files. Source: the rows of runtime/families (LlamaCppTraits).
std::vector<std::string> llama_cpp_obstacles(const ModelDescription& model, const DecoderFamily& family);

// Checks, before any work, that the checkpoint can be exported: its family, its tokenizer, and that the file's
// metadata, read back by the import, describe the same computation. Leaves nothing behind. Returns what is written in
// which type; keeps_codes, is_lossless and relative_error are not known yet. Throws what export_gguf throws before it
// writes. source: as of GgufExportOptions.
GgufExport plan_gguf_export(const Checkpoint& checkpoint, const GgufFormat& format,
                            const std::filesystem::path& source = {});

// Writes `out`, whole or not at all, with one tensor in memory at a time. Norms, biases, routers and positions are
// F32; `format` is of the other matrices, as plan_gguf_tensors() says. Where codes of the checkpoint fit the type they
// pass unchanged, and so do blocks of options.source that have the type. All others are rounded (encode_gguf_row).
// Numbers in floating point are converted.
// Throws std::invalid_argument for an encoder, for a family or tokenizer that no GGUF file has, for what the metadata
// cannot say (naming the fact, what it is and what would be read), and with options.lossless for the first tensor
// that would change. Throws std::runtime_error if `out` exists, for what the disk refuses, and for numbers that the
// type cannot hold. Throws Interrupted, which is checked at every tensor.
GgufExport export_gguf(const Checkpoint& checkpoint, const std::filesystem::path& out, const GgufFormat& format,
                       const GgufExportOptions& options = {});

}  // namespace pare::runtime
