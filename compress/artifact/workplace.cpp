#include "compress/artifact/workplace.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <utility>

#include "compress/artifact/checked_file.h"
#include "runtime/commands/artifact_files.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/json_text.h"

namespace pare::compress {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCommand = "run";
constexpr const char* kProgress = "progress";
constexpr const char* kRunFile = "run.json";
constexpr const char* kSurvey = "survey";
constexpr const char* kTraining = "training";
constexpr const char* kArtifact = "artifact";
constexpr const char* kMade = "made";
constexpr std::string_view kPhase = "phase-";

fs::path phase_folder(const fs::path& claimed, size_t number) {
  return claimed / (std::string(kPhase) + std::to_string(number));
}

// Returns 0 for a name that is not that of a phase's folder.
size_t phase_number(const fs::path& folder) {
  const std::string name = folder.filename().string();
  size_t number = 0;
  if (name.starts_with(kPhase)) std::from_chars(name.data() + kPhase.size(), name.data() + name.size(), number);
  return number > 0 && phase_folder("", number) == name ? number : 0;
}

bool is_link(const fs::path& path) {
  return fs::is_symlink(fs::symlink_status(path));
}

// Returns the numbers of the phases that have a folder, the last one first.
std::vector<size_t> phases_in(const fs::path& claimed) {
  std::vector<size_t> numbers;
  for (const fs::path& path : Workplace::files_in(claimed)) {
    if (const size_t number = phase_number(path); number > 0) numbers.push_back(number);
  }
  std::sort(numbers.rbegin(), numbers.rend());
  return numbers;
}

void check_no_links(const fs::path& folder) {
  for (const fs::path& path : Workplace::files_in(folder)) {
    const std::string name = path.filename().string();
    const bool is_ours = name == kProgress || name == kTraining || name == kArtifact || name == kMade;
    if (!is_ours && phase_number(path) == 0) continue;
    if (is_link(path)) {
      throw std::runtime_error("'" + path.string() +
                               "' is a link that no run has made: remove it, or choose another output with --out");
    }
  }
}

// Returns whether the phase has handed on. That folder is renamed when it is complete, and its manifest is removed
// first.
bool has_handed_on(const fs::path& phase) {
  return runtime::is_there(phase / kMade / runtime::kManifestName);
}

// Returns whether a run could go on from what is there.
bool holds_work(const fs::path& phase) {
  const std::vector<fs::path> files = Workplace::files_in(phase / kProgress);
  const bool has_parts = std::any_of(files.begin(), files.end(), [](const fs::path& file) {
    const std::string name = file.filename().string();
    return Workplace::is_own(file) && name != kRunFile && !runtime::is_temporary_name(name);
  });
  return has_parts || has_handed_on(phase) || runtime::is_there(phase / kTraining / Workplace::kTrainingState);
}

// Removes the unfinished artifact and what it is made from. In the progress folder the fingerprint stays: as long as
// any part is there, a run can tell whose it is.
void remove_work(const fs::path& phase) {
  fs::remove_all(phase / kArtifact);
  for (const fs::path& file : Workplace::files_in(phase / kTraining)) {
    if (Workplace::is_own(file) || file.filename() == Workplace::kTrainingState) fs::remove(file);
  }
  ::rmdir((phase / kTraining).c_str());  // unless it holds something else
  for (const fs::path& file : Workplace::files_in(phase / kProgress)) {
    if (Workplace::is_own(file) && file.filename() != kRunFile) fs::remove(file);
  }
}

void remove_run_file(const fs::path& phase) {
  if (is_link(phase / kProgress)) return;
  fs::remove(phase / kProgress / kRunFile);
  ::rmdir((phase / kProgress).c_str());  // unless it holds something else
}

void remove_made(const fs::path& phase) {
  if (!fs::is_directory(fs::symlink_status(phase / kMade))) return;
  fs::remove(phase / kMade / runtime::kManifestName);  // first, so that a half-removed folder does not count as made
  fs::remove_all(phase / kMade);
}

// Removes a phase before the last.
void remove_phase(const fs::path& claimed, size_t number) {
  const fs::path phase = phase_folder(claimed, number);
  if (is_link(phase)) return;
  remove_made(phase);
  remove_work(phase);
  remove_run_file(phase);
  ::rmdir(phase.c_str());  // unless it holds something else
}

// Removes what a complete run has left, the fingerprint last.
void remove_run(const fs::path& claimed) {
  remove_work(claimed);
  for (const size_t number : phases_in(claimed)) remove_phase(claimed, number);
  remove_run_file(claimed);
}

// Returns whether the run whose fingerprint lies in `progress` has made `output`.
bool has_made(const fs::path& progress, const fs::path& output) {
  const fs::path run_file = progress / kRunFile;
  const nlohmann::json fingerprint = runtime::manifest_member(output, "fingerprint");
  if (is_link(progress) || !fs::exists(run_file) || !fingerprint.is_object()) return false;
  try {
    return fingerprint == runtime::parse_json(read_checked_file(run_file), run_file.string());
  } catch (const std::exception&) {  // a damaged one says nothing
    return false;
  }
}

}  // namespace

// Holds the claimed folder.
class Workplace::Claim {
 public:
  explicit Claim(const fs::path& output) : partial(output, kCommand, runtime::PartialOutput::Remains::resumable) {}
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  ~Claim() {
    try {
      if (partial.is_held() && partial.is_empty()) partial.discard();
    } catch (const std::exception&) {  // the failure that led here is the one to report
    }
  }
  runtime::PartialOutput partial;
};

void Workplace::check_output_is_free(const fs::path& output, runtime::PartialOutput::Leftovers leftovers) {
  if (!runtime::is_there(output)) return;
  // A run that was killed after its last rename leaves the remains of its folder. The fingerprint identifies them.
  if (leftovers == runtime::PartialOutput::Leftovers::go) {
    if (std::optional<runtime::PartialOutput> remains = runtime::PartialOutput::take_remains(output, kCommand)) {
      const fs::path progress = remains->folder() / kProgress;
      if (!runtime::is_there(remains->result()) && has_made(progress, output)) {
        remove_run(remains->folder());
        remains->discard();
        throw std::runtime_error(
            "output '" + output.string() +
            "' exists (the run that made it was complete): remove it or choose another with --out");
      }
      ::rmdir(progress.c_str());  // empty, if that run was killed before its last calls
    }
  }
  runtime::PartialOutput::check_is_free(output, leftovers);
}

std::vector<Workplace> Workplace::hold(const fs::path& output, size_t num_phases, bool fresh) {
  check_output_is_free(output, runtime::PartialOutput::Leftovers::go);
  const auto claim = std::make_shared<Claim>(output);
  std::vector<Workplace> places;
  for (size_t number = 1; number <= num_phases; ++number) places.push_back(Workplace(claim, number, num_phases));
  check_no_links(claim->partial.folder());
  for (const size_t number : phases_in(claim->partial.folder())) {
    check_no_links(phase_folder(claim->partial.folder(), number));
  }
  if (!fresh) places.back().check_remains();
  return places;
}

void Workplace::check_remains() const {
  const fs::path& claimed = claimed_folder();
  size_t at_work = 1;  // the first that is not made
  while (at_work < num_phases_ && has_handed_on(phase_folder(claimed, at_work))) ++at_work;
  const auto clear = [&](const fs::path& phase) {
    if (!holds_work(phase)) return;
    throw std::runtime_error("'" + claimed.string() + "' is an unfinished run of another recipe, with other phases (" +
                             phase.filename().string() +
                             "): start over with --fresh, or choose another output with --out");
  };
  const std::vector<size_t> found = phases_in(claimed);
  const auto is_later = [&](size_t number) { return number > at_work || number >= num_phases_; };
  for (const size_t number : found) {
    if (is_later(number)) clear(phase_folder(claimed, number));
  }
  if (at_work < num_phases_) clear(claimed);
  // The rest holds no work, so nothing is lost with it.
  for (const size_t number : found) {
    if (is_later(number)) remove_phase(claimed, number);
  }
  if (at_work == num_phases_) return;
  remove_work(claimed);
  remove_run_file(claimed);
}

Workplace::Workplace(std::shared_ptr<Claim> claim, size_t number, size_t num_phases)
    : claim_(std::move(claim)),
      number_(number),
      num_phases_(num_phases),
      folder_(number == num_phases ? claimed_folder() : phase_folder(claimed_folder(), number)) {}

const fs::path& Workplace::claimed_folder() const {
  return claim_->partial.folder();
}

fs::path Workplace::made_folder(const fs::path& output, size_t number) {
  return phase_folder(runtime::PartialOutput::folder_of(output), number) / kMade;
}

fs::path Workplace::progress() const {
  return folder_ / kProgress;
}
fs::path Workplace::run_file() const {
  return progress() / kRunFile;
}
fs::path Workplace::survey_file() const {
  return progress() / kSurvey;
}
fs::path Workplace::training() const {
  return folder_ / kTraining;
}
fs::path Workplace::artifact() const {
  return folder_ / kArtifact;
}
bool Workplace::is_made() const {
  return !is_last() && has_handed_on(folder_);
}

bool Workplace::is_own(const fs::path& file) {
  return file.extension() == ".json" || file.extension() == ".safetensors" || file.filename() == kSurvey ||
         runtime::is_temporary_name(file.filename().string());
}

std::vector<fs::path> Workplace::files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  if (!fs::is_directory(fs::symlink_status(folder))) return files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

void Workplace::start_anew() const {
  const fs::path& claimed = claimed_folder();
  // The last phase goes first, so that after a kill the first phases remain.
  remove_work(claimed);
  remove_run_file(claimed);
  for (const size_t number : phases_in(claimed)) {
    if (number >= number_) remove_phase(claimed, number);
  }
}

void Workplace::publish() const {
  if (is_last()) {
    claim_->partial.publish();
    remove_run(claimed_folder());
    claim_->partial.discard();
    return;
  }
  remove_made(folder_);  // half of one may be there, if a run was killed while it removed it
  runtime::sync_directory(artifact());
  fs::rename(artifact(), folder_ / kMade);
  runtime::sync_directory(folder_);
  discard();
}

void Workplace::discard() const {
  remove_work(folder_);
  remove_run_file(folder_);
  if (!is_last()) {
    ::rmdir(folder_.c_str());  // unless it holds something else
  } else if (phases_in(folder_).empty()) {
    claim_->partial.discard();
  }
}

}  // namespace pare::compress
