// How a run's output comes to be, so that it can be killed at any moment and goes on where it was:
//
//   OUT.partial/progress/run.json            the fingerprint: what decides the bytes (model, data, recipe, versions)
//   OUT.partial/progress/00003.safetensors   a committed part: the packed tensors of block 3 ...
//   OUT.partial/progress/00003.json          ... and its record, written after it; together they are the commitment
//   OUT.partial/artifact/                    the Hugging Face directory, assembled anew from the parts at the end
//   OUT                                      that directory, renamed when all is verified and measured
//
// Every file is written under a temporary name, fsynced and renamed, and its folder fsynced.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compress/artifact/layer_record.h"
#include "runtime/files/safetensors.h"
#include "runtime/format/compressed_tensors.h"
#include "runtime/model/checkpoint.h"

namespace pare {

// What decides every byte of the output, by name: "model", "calibration", "recipe", "pare", "isa", ...
using Fingerprint = std::map<std::string, std::string>;

class Artifact {
 public:
  // Takes hold of OUTPUT.partial: makes it, or goes on with one of the same fingerprint. `fresh` discards what is
  // there. Throws std::runtime_error: OUTPUT exists; OUTPUT.partial is of another run (which entries differ), is no
  // such folder or is in use by another process.
  Artifact(std::filesystem::path output, const Fingerprint& fingerprint, bool fresh);
  Artifact(Artifact&&) = delete;
  ~Artifact();

  // Throws std::runtime_error when OUTPUT exists: to be asked before any work.
  static void check_output_is_free(const std::filesystem::path& output);
  // Files of a source directory that are copied beside the weights, sorted.
  static std::vector<std::filesystem::path> copied_files(const std::filesystem::path& directory);
  static std::filesystem::path partial_path(const std::filesystem::path& output);

  // Records of a committed part whose file is intact.
  const std::vector<LayerRecord>* committed(int64_t part) const;
  int64_t num_committed() const { return static_cast<int64_t>(parts_.size()); }
  // A layer of a committed part, validated. Throws std::runtime_error.
  StoredLinear read_layer(int64_t part, const LayerRecord& record) const;

  // Tensors of a committed part that replace the source's under their names.
  std::vector<OwnedTensor> read_changed(int64_t part, const Checkpoint& source) const;

  void commit(int64_t part, std::vector<StreamedTensor> tensors, std::vector<LayerRecord> records);
  // For commit: the tensors of one layer in its scheme's container, and a tensor that replaces the source's.
  static void append_packed(const StoredLinear& linear, const LayerRecord& record, std::vector<StreamedTensor>& out);
  static void append(OwnedTensor tensor, std::vector<StreamedTensor>& out);

  // All records, by part.
  std::vector<LayerRecord> records() const;

  // Writes config.json, the shards and their index, and copies every other small file of the source, into an empty
  // artifact folder. `unquantized` are the linears that the config lists as left alone.
  void assemble(const Checkpoint& source, const std::vector<std::string>& unquantized);
  // Opens the artifact as any reader would, decodes every compressed layer and compares it with its record, and every
  // other tensor with the part that changed it or with the source, bit by bit. Throws std::runtime_error naming what
  // differs.
  void verify(const Checkpoint& source) const;
  // SHA-256 of every file in the artifact folder, by name.
  std::map<std::string, std::string> output_hashes() const;
  void write_file(const std::string& name, std::string_view text) const;

  const std::filesystem::path& partial_directory() const { return partial_; }
  std::filesystem::path artifact_directory() const { return partial_ / "artifact"; }

  // Renames the artifact to OUTPUT and removes the rest.
  void publish();
  // Removes OUTPUT.partial.
  void discard();

 private:
  void claim(const Fingerprint& fingerprint, bool fresh);
  void load_parts();
  std::filesystem::path part_file(int64_t part, const char* extension) const;

  std::filesystem::path output_, partial_;
  int lock_ = -1;
  std::map<int64_t, std::vector<LayerRecord>> parts_;
};

}  // namespace pare
