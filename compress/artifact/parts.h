// What a phase of a run has finished, so that it can be killed at any moment and goes on where it was (in the phase's
// place, workplace.h):
//
//   progress/run.json            the fingerprint: what decides the bytes (model, data, recipe, versions)
//   progress/survey              the survey, where the recipe asks for one
//   training/                    the state of a training phase
//   progress/00003.safetensors   a committed part: the packed tensors of block 3 ...
//   progress/00003.json          ... and its record, written after it; together they are the commitment
//
// Every file is written under a temporary name, fsynced and renamed, and its folder fsynced. Records, fingerprint and
// survey carry a hash of their own (checked_file.h), and a record the hash of its tensors. No output format is known
// here: one is made of the parts and the source.
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

namespace pare {

// What decides every byte of the output, by name: "model", "calibration", "recipe", "pare", "isa", ...
using Fingerprint = std::map<std::string, std::string>;
// Its entry where the number of threads decides as well.
inline constexpr const char* kThreadsEntry = "threads";
// A JSON object, as run.json holds it: to compare a fingerprint with a stored one.
std::string to_json(const Fingerprint& fingerprint);
// Throws std::runtime_error when the stored one, a JSON object, is another (which entries differ). `place`: of the phase
// that has stored it.
void require_same_run(const std::string& stored, const Fingerprint& fingerprint, const Workplace& place);

class Parts {
 public:
  // Goes on in a phase's place with what the same fingerprint has left there, or begins. `fresh` discards what is there
  // of this phase and of later ones. Throws std::runtime_error: what is there is of another run (which entries differ)
  // or damaged (which file).
  Parts(Workplace place, const Fingerprint& fingerprint, bool fresh);
  // In the place of a run's only phase, which it takes hold of. Throws what Workplace::hold throws, too.
  Parts(const std::filesystem::path& output, const Fingerprint& fingerprint, bool fresh);

  // Records of a committed part whose file is intact.
  const std::vector<LayerRecord>* committed(int64_t part) const;
  int64_t num_committed() const { return static_cast<int64_t>(parts_.size()); }
  std::vector<int64_t> committed_parts() const;
  // A layer of a committed part, validated. Throws std::runtime_error.
  StoredLinear read_layer(int64_t part, const LayerRecord& record) const;
  // Tensors of a committed part that replace the source's under their names.
  std::vector<OwnedTensor> read_changed(int64_t part, const Checkpoint& source) const;
  // Its record, for messages.
  std::filesystem::path record_file(int64_t part) const { return part_file(part, ".json"); }
  // All tensors of a committed part.
  SafetensorsFile open_tensors(int64_t part) const;

  void commit(int64_t part, std::vector<StreamedTensor> tensors, std::vector<LayerRecord> records);
  // For commit: the tensors of one layer in its scheme's container, and a tensor that replaces the source's.
  static void append_packed(const StoredLinear& linear, const LayerRecord& record, std::vector<StreamedTensor>& out);
  static void append(OwnedTensor tensor, std::vector<StreamedTensor>& out);

  // All records, by part.
  std::vector<LayerRecord> records() const;

  const Workplace& place() const { return place_; }
  const std::filesystem::path& partial_directory() const { return place_.folder(); }
  // Where the output is made.
  std::filesystem::path artifact_directory() const { return place_.artifact(); }
  std::filesystem::path survey_file() const { return place_.survey_file(); }
  // Where a training phase keeps its state (compress/train/training_state.h), and the file that leads to it.
  std::filesystem::path training_folder() const { return place_.training(); }
  static constexpr const char* kTrainingState = Workplace::kTrainingState;
  // Whether anything is there that the next run would go on from.
  bool has_progress() const;

  // Gives the output in the making its name and removes what it was made of.
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

}  // namespace pare
