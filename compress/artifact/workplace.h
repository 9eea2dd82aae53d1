// The places where the phases of a run work, and where they put what they hand on. All of it is in the one folder that
// the run has claimed (runtime/system/partial_output.h), nothing is beside it, and no link is followed.
//
//   OUT.partial/phase-1/progress, training, artifact   where the first of several phases works, as parts.h says
//   OUT.partial/phase-1/made                           what it hands on: its artifact, renamed when it is complete
//   OUT.partial/progress, training, artifact           where the last phase works, or the only one
//
// A phase has finished something only where all phases before it are made. So what another recipe has left is found
// before any work: it has another fingerprint, or it lies where nothing can be yet.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "runtime/system/partial_output.h"

namespace pare::compress {

// The place of one phase. Copies refer to the same place. The last copy of a run releases the claimed folder, which is
// removed if it is empty.
class Workplace {
 public:
  // Throws std::runtime_error when OUTPUT exists; it is called before any work. With Leftovers::go it may remove the
  // leftovers of the run that made OUTPUT.
  static void check_output_is_free(const std::filesystem::path& output, runtime::PartialOutput::Leftovers leftovers);
  // Returns one place for each phase of a run, in the claimed OUTPUT.partial. Throws std::runtime_error where what is
  // there belongs to a run with other phases, unless it is to be discarded (`fresh`, by start_anew). Throws what
  // PartialOutput does.
  static std::vector<Workplace> hold(const std::filesystem::path& output, size_t num_phases, bool fresh);
  // Returns the folder that phase `number` of several (1 is the first) hands on. Every phase but the last has one.
  static std::filesystem::path made_folder(const std::filesystem::path& output, size_t number);

  // Returns OUTPUT.partial, for messages.
  const std::filesystem::path& claimed_folder() const;
  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path progress() const;
  std::filesystem::path run_file() const;
  std::filesystem::path survey_file() const;
  std::filesystem::path training() const;
  std::filesystem::path artifact() const;
  bool is_first() const { return number_ == 1; }
  // Returns whether the phase has handed on already. It is always false for the last one.
  bool is_made() const;

  // Returns whether that file of progress() is one that a phase makes.
  static bool is_own(const std::filesystem::path& file);
  // Returns the files in `folder`, sorted, or none where it is missing or a link.
  static std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder);
  static constexpr const char* kTrainingState = "state";

  // Discards all that is there of this phase and of later ones.
  void start_anew() const;
  // Renames the artifact to made() and removes what it was made from. The last phase's publish() ends the run.
  void publish() const;
  // Removes all that is there of this phase except what it has handed on.
  void discard() const;

 private:
  class Claim;
  Workplace(std::shared_ptr<Claim> claim, size_t number, size_t num_phases);
  bool is_last() const { return number_ == num_phases_; }
  void check_remains() const;

  std::shared_ptr<Claim> claim_;
  size_t number_, num_phases_;  // 1 is the first
  std::filesystem::path folder_;
};

}  // namespace pare::compress
