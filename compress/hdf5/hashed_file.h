// Our HDF5 files begin with the hash of all that follows, which is checked before anything else is read:
//
//   bytes 0 .. 511    the user block, one line: "pare KIND VERSION sha256 HASH", HASH of all bytes after the block
//
// It protects from accidents, and names the file's content elsewhere.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compress/hdf5/unpublished_file.h"
#include "runtime/system/input_files.h"

namespace pare {

inline constexpr int64_t kUserBlockBytes = 512;

struct FileKind {
  std::string name;                         // "statistics"
  std::string version;                      // a number
  std::string maker;                        // "pare calibrate": what makes such files
  std::vector<std::string> also_read = {};  // earlier versions that are read, too
  std::string remedy;  // "make the statistics again with pare calibrate": ends the messages about an unusable file

  // What such a file begins with.
  std::string magic() const { return "pare " + name + " "; }
};

// Writes the first line of a file that is otherwise complete. Returns the hash. Throws std::runtime_error (path,
// reason).
std::string write_hash(const UnpublishedFile& file, const FileKind& kind);

// Reads the whole file and returns its hash. Throws std::runtime_error (path): it is of no such kind, of another
// version, or its content does not have the hash that it states.
std::string check_hash(const InputFile& file, const FileKind& kind);

// The version that the file states, one of those that are read. Throws as check_hash does, but for the content.
std::string stated_version(const InputFile& file, const FileKind& kind);

}  // namespace pare
