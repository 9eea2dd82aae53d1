// The finished parts of a run's phase, so that the run can be killed at any moment and goes on from there. They lie in
// the phase's place (workplace.h):
//
//   progress/run.json            the fingerprint: what decides the bytes (model, data, recipe, versions)
//   progress/survey              the survey, where the recipe asks for one
//   training/                    the state of a training phase
//   progress/00003.safetensors   a committed part: the packed tensors of block 3 ...
//   progress/00003.json          ... and its record, written after it; together they are the commitment
//
// Every file is written under a temporary name, fsynced and renamed, and its folder is fsynced. Records, fingerprint
// and survey carry a hash of their own (checked_file.h), and a record has the hash of its tensors. No output format is
// known here: an output is made from the parts and the source.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "compress/artifact/layer_record.h"
#include "compress/artifact/workplace.h"
#include "runtime/files/safetensors.h"
#include "runtime/model/checkpoint.h"

namespace pare::compress {

// Everything that decides the output's bytes, by name: "model", "calibration", "recipe", "pare", "isa", ...
using Fingerprint = std::map<std::string, std::string>;
// The fingerprint's entry for the number of threads, present where that decides the bytes as well.
inline constexpr const char* kThreadsEntry = "threads";
// Returns a JSON object, as run.json holds it. It serves to compare a fingerprint with a stored one.
std::string to_json(const Fingerprint& fingerprint);
// Throws std::runtime_error when the stored fingerprint, a JSON object, is another (the message says which entries
// differ). `place` is that of the phase that has stored it.
void require_same_run(const std::string& stored, const Fingerprint& fingerprint, const Workplace& place);

class Parts {
 public:
  // Goes on in a phase's place with the parts that a run of the same fingerprint has left there, or begins. `fresh`
  // discards what is there of this phase and of later ones. Throws std::runtime_error when what is there belongs to
  // another run (which entries differ) or is damaged (which file).
  Parts(Workplace place, const Fingerprint& fingerprint, bool fresh);
  // Does the same in the place of a run's only phase, which it claims. Throws also what Workplace::hold throws.
  Parts(const std::filesystem::path& output, const Fingerprint& fingerprint, bool fresh);

  // Returns the records of a committed part, or null where the part is not committed. The part's file is intact.
  const std::vector<LayerRecord>* committed(int64_t part) const;
  int64_t num_committed() const { return static_cast<int64_t>(parts_.size()); }
  std::vector<int64_t> committed_parts() const;
  // Returns a layer of a committed part, validated. Throws std::runtime_error.
  runtime::StoredLinear read_layer(int64_t part, const LayerRecord& record) const;
  // Returns the tensors of a committed part that replace the source's under their names.
  std::vector<runtime::OwnedTensor> read_changed(int64_t part, const runtime::Checkpoint& source) const;
  // Returns the path of a part's record, for messages.
  std::filesystem::path record_file(int64_t part) const { return part_file(part, ".json"); }
  // Opens all tensors of a committed part.
  runtime::SafetensorsFile open_tensors(int64_t part) const;

  void commit(int64_t part, std::vector<runtime::StreamedTensor> tensors, std::vector<LayerRecord> records);
  // For commit: append the tensors of one layer in its scheme's container, and a tensor that replaces the source's.
  static void append_packed(const runtime::StoredLinear& linear, const LayerRecord& record,
                            std::vector<runtime::StreamedTensor>& out);
  static void append(runtime::OwnedTensor tensor, std::vector<runtime::StreamedTensor>& out);

  // Returns all records, by part.
  std::vector<LayerRecord> records() const;

  const Workplace& place() const { return place_; }
  const std::filesystem::path& partial_directory() const { return place_.folder(); }
  // The folder in which the output is made.
  std::filesystem::path artifact_directory() const { return place_.artifact(); }
  std::filesystem::path survey_file() const { return place_.survey_file(); }
  // The folder in which a training phase keeps its state (compress/train/training_state.h), and the file that leads to
  // it.
  std::filesystem::path training_folder() const { return place_.training(); }
  static constexpr const char* kTrainingState = Workplace::kTrainingState;
  // Returns whether anything is there that the next run would go on from.
  bool has_progress() const;

  // Gives the finished output its name and removes what it was made from.
  void publish() { place_.publish(); }
  // Removes all that the phase has left.
  void discard() { place_.discard(); }

 private:
  void claim(const Fingerprint& fingerprint, bool fresh);
  void load();
  std::filesystem::path part_file(int64_t part, const char* extension) const;

  Workplace place_;
  std::map<int64_t, std::vector<LayerRecord>> parts_;
};

}  // namespace pare::compress
