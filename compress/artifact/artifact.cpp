#include "compress/artifact/artifact.h"

#include "compress/artifact/hugging_face.h"
#include "runtime/commands/small_files.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/sha256.h"

namespace pare::compress {

namespace fs = std::filesystem;

std::vector<fs::path> Artifact::copied_files(const fs::path& directory) {
  return runtime::copied_files(directory);
}

void Artifact::assemble(const runtime::Checkpoint& source, const std::vector<std::string>& unquantized,
                        const std::map<std::string, std::string>& inputs) {
  assemble_hugging_face(*this, source, unquantized, inputs, artifact_directory());
}

void Artifact::verify(const runtime::Checkpoint& source) const {
  verify_hugging_face(*this, source, artifact_directory());
}

std::map<std::string, std::string> Artifact::output_hashes() const {
  std::map<std::string, std::string> hashes;
  for (const auto& entry : fs::recursive_directory_iterator(artifact_directory())) {
    if (!entry.is_regular_file()) continue;
    hashes[entry.path().lexically_relative(artifact_directory()).string()] = runtime::sha256_file(entry.path());
  }
  return hashes;
}

void Artifact::write_file(const std::string& name, std::string_view text) const {
  runtime::write_file_atomically(artifact_directory() / name, text);
}

}  // namespace pare::compress
