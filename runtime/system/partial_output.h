// The place where a command makes an output that appears whole or not at all, and that no other command writes
// meanwhile:
//
//   OUT.partial/claimed-by-pare    the mark, which says which command's folder this is; locked by the one at work
//   OUT.partial/artifact           the output in the making: a file or a folder
//   OUT                            the same, renamed
//
// Something is deleted only if the mark is there, which only this module makes. A folder of that name without a mark
// belongs to somebody else and is never touched, and neither is a folder that a link of that name leads to.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>

namespace pare::runtime {

// Returns the path under which an output will appear: `output` without slashes and dots at its end. Call it before any
// work. Throws std::invalid_argument if the path cannot be made: it is empty, ends in "..", leads through something
// that is not a folder, or leads back from a folder that does not exist.
std::filesystem::path output_place(const std::filesystem::path& output);

// Is thrown by require_disk_space. Whoever chose the place may know better what to do.
class NoDiskSpace : public std::runtime_error {
 public:
  NoDiskSpace(const std::filesystem::path& place, int64_t available, int64_t needed);
  int64_t available() const { return available_; }
  int64_t needed() const { return needed_; }

 private:
  int64_t available_, needed_;
};

// Throws NoDiskSpace unless the file system of `output` has so much room. What an unfinished command has left in
// OUTPUT.partial is part of it.
void require_disk_space(const std::filesystem::path& output, int64_t num_bytes);

class PartialOutput {
 public:
  // The remains of an unfinished command: useless to other commands, or something to go on with.
  enum class Remains { worthless, resumable };
  // A command that was killed after its publish() has left things beside OUTPUT. The next command removes them (go); a
  // command that only looks leaves them there (stay).
  enum class Leftovers { stay, go };

  // Claims OUTPUT.partial for `command` ("run", "import"), and makes it if it does not exist. Worthless remains of a
  // killed command are removed; resumable ones of the same command stay as they are. Throws std::runtime_error if
  // OUTPUT exists, if another process is at work, or if OUTPUT.partial is somebody else's, is a link, or holds what
  // another command goes on with.
  PartialOutput(const std::filesystem::path& output, std::string command, Remains remains);
  PartialOutput(PartialOutput&&) noexcept;
  PartialOutput& operator=(PartialOutput&&) = delete;
  // Gives up the claim. Worthless remains are discarded; errors are ignored.
  ~PartialOutput();

  // The entry of the folder that publish() renames.
  static constexpr const char* kResult = "artifact";

  // OUTPUT.partial
  static std::filesystem::path folder_of(const std::filesystem::path& output);
  // Throws std::runtime_error if OUTPUT exists. Call it before any work. Of leftovers only an empty folder is removed.
  static void check_is_free(const std::filesystem::path& output, Leftovers leftovers);
  // Claims resumable remains of `command` as they are, to discard them. Returns nullopt if there are none, or if they
  // are in use.
  static std::optional<PartialOutput> take_remains(const std::filesystem::path& output, std::string command);

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path result() const;
  // True while the folder is this object's: until it is discarded or given to the user.
  bool is_held() const { return lock_ >= 0; }
  // True if the folder holds nothing but the mark and temporary files.
  bool is_empty() const;

  // Moves the result to OUTPUT, which is durable then. Throws std::runtime_error if OUTPUT has appeared meanwhile. The
  // result then stays where it is; if remains are worthless, the folder loses its mark and is the user's from then on.
  void publish();
  // Removes the result, temporary files, the mark and the folder. A folder with anything else in it stays, without a
  // mark.
  void discard();

 private:
  PartialOutput(std::filesystem::path output, std::string command, Remains remains, int lock);
  void mark(int lock) const;
  [[noreturn]] void fail_occupied();

  std::filesystem::path output_, folder_;
  std::string command_;
  Remains remains_;
  int lock_ = -1;  // the mark's; -1: not held
};

}  // namespace pare::runtime
