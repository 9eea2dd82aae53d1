#include <array>
#include <map>

#include "compress/artifact/artifact.h"
#include "compress/artifact/checked_file.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/sha256.h"
#include "tests/fuzz/fuzz_files.h"
#include "tests/fuzz/fuzz_folder.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 6> kNames = {"run.json",          "survey",     "00000.json",
                                               "00000.safetensors", "00001.json", "00001.safetensors"};
const pare::compress::Fingerprint kFingerprint = {{"model", "x"}};

// Returns the model that the parts belong to.
const pare::runtime::Checkpoint& source() {
  static const pare::runtime::Checkpoint checkpoint = [] {
    const std::string input = pare::runtime::read_text_file(fs::path(FUZZ_CORPUS) / "checkpoint" / "dense");
    const std::vector<pare::FuzzFile> files = pare::split_files(input, 2);
    pare::write_fuzz_file("source/config.json", files.at(0).content);
    pare::write_fuzz_file("source/model.safetensors", files.at(1).content);
    return pare::runtime::Checkpoint::open(pare::fuzz_folder() / "source");
  }();
  return checkpoint;
}

// The first "sha256" of a part's record is that of its tensors.
void state_hash(const std::string& tensors, std::string& record) {
  constexpr std::string_view kKey = "\"sha256\": \"";
  const size_t key = record.find(kKey);
  if (key == std::string::npos || record.size() < key + kKey.size() + 64) return;
  record.replace(key + kKey.size(), 64, pare::runtime::sha256_hex(std::as_bytes(std::span(tensors))));
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return pare::mutate_files(kNames, data, size, max_size, seed);
}

// Resumes what a killed run has left, with the hashes that its files should have, and makes an artifact from it.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fs::path output = pare::fuzz_folder() / "out", progress = pare::fuzz_folder() / "out.partial/progress";
  std::map<std::string, std::string> files;
  for (pare::FuzzFile& file : pare::split_files({reinterpret_cast<const char*>(data), size}, kNames.size())) {
    files[kNames[file.name]] = std::move(file.content);
  }
  pare::attempt([&] { pare::compress::Parts(output, kFingerprint, /*fresh=*/true); });
  for (auto& [name, content] : files) {
    if (name.ends_with(".safetensors")) {
      pare::write_fuzz_file("out.partial/progress/" + name, content);
      continue;
    }
    if (name.ends_with("0.json")) state_hash(files["00000.safetensors"], content);
    if (name.ends_with("1.json")) state_hash(files["00001.safetensors"], content);
    pare::compress::write_checked_file(progress / name, content);
  }
  pare::attempt([&] {
    pare::compress::Artifact artifact(output, kFingerprint, /*fresh=*/false);
    for (const int64_t part : artifact.committed_parts()) {
      for (const pare::compress::LayerRecord& record : *artifact.committed(part)) {
        pare::attempt([&] { artifact.read_layer(part, record); });
      }
      pare::attempt([&] { artifact.read_changed(part, source()); });
    }
    artifact.assemble(source(), {}, {});
    artifact.verify(source());
  });
  fs::remove_all(pare::fuzz_folder() / "out.partial/artifact");
  return 0;
}
