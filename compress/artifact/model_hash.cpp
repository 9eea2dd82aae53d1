#include "compress/artifact/model_hash.h"

#include <filesystem>
#include <map>
#include <span>

#include "runtime/commands/artifact_files.h"
#include "runtime/system/input_files.h"
#include "runtime/system/sha256.h"

namespace pare {

std::string model_hash(const Checkpoint& checkpoint) {
  std::map<std::string, std::string> hashes = checkpoint.file_hashes();
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    if (is_there(checkpoint.directory() / name)) hashes[name] = sha256_file(checkpoint.directory() / name);
  }
  require_listed_hashes(checkpoint.directory(), hashes);
  std::string text = "config.json " + hashes.at("config.json") + "\n";
  for (const std::filesystem::path& path : checkpoint.weight_files()) {
    text += path.filename().string() + " " + hashes.at(path.filename().string()) + "\n";
  }
  return sha256_hex(std::as_bytes(std::span(text)));
}

}  // namespace pare
