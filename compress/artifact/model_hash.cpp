#include "compress/artifact/model_hash.h"

#include <filesystem>
#include <map>
#include <span>

#include "runtime/commands/artifact_files.h"
#include "runtime/commands/small_files.h"
#include "runtime/system/input_files.h"
#include "runtime/system/sha256.h"

namespace pare::compress {

std::string model_hash(const runtime::Checkpoint& checkpoint) {
  std::map<std::string, std::string> hashes = checkpoint.file_hashes();
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    if (runtime::is_there(checkpoint.directory() / name))
      hashes[name] = runtime::sha256_file(checkpoint.directory() / name);
  }
  runtime::require_listed_hashes(checkpoint.directory(), hashes);
  std::string text = "config.json " + hashes.at("config.json") + "\n";
  for (const std::filesystem::path& path : checkpoint.weight_files()) {
    text += path.filename().string() + " " + hashes.at(path.filename().string()) + "\n";
  }
  return runtime::sha256_hex(std::as_bytes(std::span(text)));
}

std::map<std::string, std::string> input_hashes(const runtime::Checkpoint& source) {
  std::map<std::string, std::string> hashes = source.file_hashes();
  for (const std::string& name : runtime::find_small_files(source.directory()).copied) {
    hashes[name] = runtime::hash_small_file(source.directory(), name);
  }
  return hashes;
}

}  // namespace pare::compress
