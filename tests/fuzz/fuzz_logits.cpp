#include <array>

#include "compress/record/logit_store.h"
#include "tests/fuzz/fuzz_files.h"
#include "tests/fuzz/fuzz_folder.h"
#include "tests/fuzz/fuzz_hdf5.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

// The master comes last, because it states its shards' hashes.
constexpr std::array<const char*, 3> kNames = {"store/t.h5.shards/00000.h5", "store/t.h5.shards/00001.h5",
                                               "store/t.h5"};
constexpr size_t kMaster = 2;

// Returns the 32 bytes that the letters of a hash stand for, or nothing for other letters.
std::string bytes_of_hash(const std::string& letters) {
  std::string bytes;
  for (size_t i = 0; i + 1 < letters.size(); i += 2) {
    const size_t used = letters.find_first_not_of("0123456789abcdef");
    if (used != std::string::npos) return "";
    bytes += static_cast<char>(std::stoi(letters.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return pare::mutate_files(kNames, data, size, max_size, seed);
}

// Reads a teacher's logits: the master and its shards, whose hashes are corrected from the inside out.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::array<std::string, kNames.size()> files;
  for (pare::FuzzFile& file : pare::split_files({reinterpret_cast<const char*>(data), size}, kNames.size())) {
    files[file.name] = std::move(file.content);
  }
  std::string& master = files[kMaster];
  for (size_t i = 0; i < kMaster; ++i) {
    const size_t place = pare::stated_hash_place(files[i]);
    if (place == std::string::npos) continue;
    const std::string before = bytes_of_hash(files[i].substr(place, 64));
    pare::sign(files[i]);
    const std::string after = bytes_of_hash(files[i].substr(place, 64));
    const size_t stated = before.empty() ? std::string::npos : master.find(before);
    if (stated != std::string::npos && !after.empty()) master.replace(stated, after.size(), after);
  }
  pare::sign(master);
  for (size_t i = 0; i < kNames.size(); ++i) pare::write_fuzz_file(kNames[i], files[i]);
  pare::attempt([&] {
    const pare::compress::LogitStore store = pare::compress::LogitStore::open(pare::fuzz_folder() / kNames[kMaster]);
    for (int64_t i = 0; i < store.num_sequences(); ++i) {
      pare::attempt([&] { store.sequence(i); });
      pare::attempt([&] { store.label_log_probs(i); });
      pare::attempt([&] { store.read(i, 0, store.length(i)); });
    }
  });
  return 0;
}
