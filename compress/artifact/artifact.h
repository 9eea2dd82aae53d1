// Makes a run's output. Finished blocks are committed as parts in OUT.partial (parts.h), and at the end
//
//   OUT.partial/artifact/   is the Hugging Face directory, assembled anew from the parts (hugging_face.h)
//   OUT                     is that directory, renamed when all is verified and measured
//
// The artifact that a phase hands on to the next one is made in the same way (workplace.h).
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "compress/artifact/parts.h"
#include "runtime/model/checkpoint.h"

namespace pare::compress {

class Artifact : public Parts {
 public:
  using Parts::Parts;

  // Returns the files of a source directory that are copied beside the weights, sorted.
  static std::vector<std::filesystem::path> copied_files(const std::filesystem::path& directory);

  // Do what assemble_hugging_face and verify_hugging_face say, in the artifact folder.
  void assemble(const runtime::Checkpoint& source, const std::vector<std::string>& unquantized,
                const std::map<std::string, std::string>& inputs);
  void verify(const runtime::Checkpoint& source) const;
  // Returns the SHA-256 of every file in the artifact folder, by name.
  std::map<std::string, std::string> output_hashes() const;
  void write_file(const std::string& name, std::string_view text) const;
};

}  // namespace pare::compress
