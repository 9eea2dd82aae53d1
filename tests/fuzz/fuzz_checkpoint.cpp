#include <array>
#include <nlohmann/json.hpp>

#include "runtime/commands/layer_sparsity.h"
#include "runtime/commands/verify.h"
#include "runtime/doctor/examine.h"
#include "runtime/doctor/repair.h"
#include "runtime/engine/pooling.h"
#include "runtime/model/checkpoint.h"
#include "runtime/tokenizer/tokenizer.h"
#include "runtime/tokenizer/tokenizer_hash.h"
#include "tests/fuzz/fuzz_files.h"
#include "tests/fuzz/fuzz_folder.h"
#include "tests/fuzz/fuzz_input.h"

using pare::attempt;

namespace {

constexpr std::array<const char*, 10> kNames = {"config.json",
                                                "model.safetensors",
                                                "tokenizer.json",
                                                "tokenizer_config.json",
                                                "pare.json",
                                                "1_Pooling/config.json",
                                                "sentence_bert_config.json",
                                                "model.safetensors.index.json",
                                                "model-00001-of-00002.safetensors",
                                                "model-00002-of-00002.safetensors"};

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return pare::mutate_files(kNames, data, size, max_size, seed);
}

// Reads everything in a model's folder: configuration, index, weights in their containers, tokenizer, manifest.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::filesystem::path folder = pare::fuzz_folder() / "checkpoint";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  for (const pare::FuzzFile& file : pare::split_files({reinterpret_cast<const char*>(data), size}, kNames.size())) {
    pare::write_fuzz_file(std::string("checkpoint/") + kNames[file.name], file.content);
  }
  attempt([&] {
    const pare::runtime::Checkpoint checkpoint = pare::runtime::Checkpoint::open(folder);
    attempt([&] { checkpoint.check_values(); });
    attempt([&] { pare::runtime::sparsity_claims(checkpoint); });
    attempt([&] { pare::runtime::read_pooling(folder, 512); });
  });
  attempt([&] { pare::runtime::Tokenizer::open(folder).encode("Hello  world's 1234\n", true); });
  attempt([&] { pare::runtime::tokenizer_hash(folder); });
  attempt([&] { pare::runtime::verify(folder); });
  attempt([&] {
    const pare::runtime::Examination examination = pare::runtime::examine(folder);
    pare::runtime::to_text(examination);
    pare::runtime::examination_json(examination);
    const std::filesystem::path copy = pare::fuzz_folder() / "copy";
    std::filesystem::remove_all(copy);
    std::filesystem::create_directories(copy);
    attempt([&] { pare::runtime::write_repaired(examination, copy); });
  });
  return 0;
}
