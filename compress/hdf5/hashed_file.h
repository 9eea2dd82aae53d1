// Our HDF5 files begin with the hash of all that follows. It is checked before anything else is read:
//
//   bytes 0 .. 511    the user block, one line: "pare KIND VERSION sha256 HASH", HASH of all bytes after the block
//
// The hash protects from accidents, and other files refer to the content by it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compress/hdf5/unpublished_file.h"
#include "runtime/system/input_files.h"

namespace pare::compress {

inline constexpr int64_t kUserBlockBytes = 512;

struct FileKind {
  std::string name;                         // "statistics"
  std::string version;                      // a number
  std::string maker;                        // "pare calibrate": the command that makes such files
  std::vector<std::string> also_read = {};  // earlier versions that can be read as well
  std::string remedy;  // "make the statistics again with pare calibrate": ends the messages about an unusable file

  // Returns the beginning of such a file.
  std::string magic() const { return "pare " + name + " "; }
};

// Writes the first line of a file that is otherwise complete. Returns the hash. Throws std::runtime_error (path,
// reason).
std::string write_hash(const UnpublishedFile& file, const FileKind& kind);

// Reads the whole file and returns its hash. Throws std::runtime_error (path) when it is not of this kind, is of
// another version, or its content does not have the hash that it states.
std::string check_hash(const runtime::InputFile& file, const FileKind& kind);

// Returns the version that the file states, one of those that can be read. Throws as check_hash does, except for the
// content, which it does not check.
std::string stated_version(const runtime::InputFile& file, const FileKind& kind);

}  // namespace pare::compress
