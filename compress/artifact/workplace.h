// Where the phases of a run work and hand on: all of it in the one folder that the run has claimed
// (runtime/system/partial_output.h), nothing beside it, and never through links.
//
//   OUT.partial/phase-1/progress, training, artifact   where the first of several phases works, as parts.h says
//   OUT.partial/phase-1/made                           what it hands on: its artifact, renamed when it is complete
//   OUT.partial/progress, training, artifact           where the last phase works, or the only one
//
// A phase has finished something only where all phases before it are made. So what another recipe has left is found
// before any work: it is of another fingerprint, or it lies where nothing can be yet.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "runtime/system/partial_output.h"

namespace pare {

// Of one phase. Copies speak of the same place, and the last one of a run lets go of the claimed folder, which goes with
// it when nothing is in it.
class Workplace {
 public:
  // Throws std::runtime_error when OUTPUT exists: to be asked before any work. Leftovers that may go are those of the
  // run that made it.
  static void check_output_is_free(const std::filesystem::path& output, PartialOutput::Leftovers leftovers);
  // One place for each phase of a run, in the claimed OUTPUT.partial. Unless what is there is to be discarded (`fresh`,
  // by start_anew), throws std::runtime_error where it is of a run with other phases. Throws what PartialOutput does.
  static std::vector<Workplace> hold(const std::filesystem::path& output, size_t num_phases, bool fresh);
  // What phase `number` of several (1 is the first) hands on; for all but the last.
  static std::filesystem::path made_folder(const std::filesystem::path& output, size_t number);

  // OUTPUT.partial, for messages.
  const std::filesystem::path& claimed_folder() const;
  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path progress() const;
  std::filesystem::path run_file() const;
  std::filesystem::path survey_file() const;
  std::filesystem::path training() const;
  std::filesystem::path artifact() const;
  bool is_first() const { return number_ == 1; }
  // Whether the phase has handed on already; never of the last one.
  bool is_made() const;

  // Whether that file of progress() is one that a phase makes.
  static bool is_own(const std::filesystem::path& file);
  // Files in `folder`, sorted; none where it is missing or a link.
  static std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder);
  static constexpr const char* kTrainingState = "state";

  // Discards all that is there of this phase and of those after it.
  void start_anew() const;
  // Renames the artifact to made() and removes what it was made of; the last phase's publish() ends the run.
  void publish() const;
  // Removes all that is there of this phase but what it has handed on.
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

}  // namespace pare
