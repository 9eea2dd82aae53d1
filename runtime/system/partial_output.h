// The place where a command makes an output that appears whole or not at all, and that nobody else writes meanwhile:
//
//   OUT.partial/claimed-by-pare    the mark, which says which command's folder this is; locked by the one at work
//   OUT.partial/artifact           the output in the making: a file or a folder
//   OUT                            the same, renamed
//
// What is deleted is deleted because the mark is there, which only this module makes: a folder of that name without it
// is somebody else's and is never touched, nor is one that a link of that name leads to.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace pare {

// The path under which an output will appear, to be asked for before any work: `output` without slashes and dots at its
// end. Throws std::invalid_argument when it names nothing that can be made: it is empty, or ends in "..", or leads
// through what is no folder, or back from one that is not there.
std::filesystem::path output_place(const std::filesystem::path& output);

class PartialOutput {
 public:
  // What an unfinished command leaves: nothing that another command could use, or something to go on with.
  enum class Remains { worthless, resumable };
  // What a command that was killed after its publish() has left beside OUTPUT: to be removed by the next command, or
  // left alone by one that only looks.
  enum class Leftovers { stay, go };

  // Takes hold of OUTPUT.partial for `command` ("run", "import"), making it where it is not there. Worthless remains of
  // a killed command go; resumable ones of the same command stay as they are. Throws std::runtime_error: OUTPUT exists;
  // another process is at work; OUTPUT.partial is somebody else's or a link, or holds what another command goes on with.
  PartialOutput(const std::filesystem::path& output, std::string command, Remains remains);
  PartialOutput(PartialOutput&&) noexcept;
  PartialOutput& operator=(PartialOutput&&) = delete;
  // Lets go. Worthless remains are discarded, errors ignored.
  ~PartialOutput();

  // What publish renames, in the folder.
  static constexpr const char* kResult = "artifact";

  // OUTPUT.partial
  static std::filesystem::path folder_of(const std::filesystem::path& output);
  // Throws std::runtime_error when OUTPUT exists: to be asked before any work. Of leftovers only an empty folder goes.
  static void check_is_free(const std::filesystem::path& output, Leftovers leftovers);
  // Takes hold of resumable remains of `command` as they are, to discard them; nullopt: there are none, or they are in
  // use.
  static std::optional<PartialOutput> take_remains(const std::filesystem::path& output, std::string command);

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path result() const;
  // Whether the folder is still this object's: until it is discarded or given to the user.
  bool is_held() const { return lock_ >= 0; }
  // Whether the folder holds nothing but the mark and temporary files.
  bool is_empty() const;

  // Brings the result to OUTPUT, which is durable then. Throws std::runtime_error when OUTPUT has appeared meanwhile: the
  // result then stays where it is, and where remains are worthless it is the user's from then on, unmarked.
  void publish();
  // Removes the result, temporary files, the mark and the folder; a folder with anything else in it stays, unmarked.
  void discard();

 private:
  PartialOutput(std::filesystem::path output, std::string command, Remains remains, int lock);
  void mark(int lock) const;
  [[noreturn]] void fail_occupied();

  std::filesystem::path output_, folder_;
  std::string command_;
  Remains remains_;
  int lock_ = -1;  // of the mark; -1: not held
};

}  // namespace pare
