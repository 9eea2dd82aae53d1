#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "runtime/commands/layer_sparsity.h"
#include "runtime/commands/verify.h"
#include "runtime/engine/pooling.h"
#include "runtime/model/checkpoint.h"
#include "runtime/tokenizer/tokenizer.h"
#include "runtime/tokenizer/tokenizer_hash.h"
#include "tests/fuzz/fuzz_folder.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

// An input is files one behind another: a byte for the name, three for the size (tests/fuzz/make_corpus.py).
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

struct File {
  uint8_t name;
  std::string content;
};

std::vector<File> split(std::string_view input) {
  std::vector<File> files;
  while (input.size() >= 4) {
    const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<uint8_t>(input[i])); };
    const size_t size = std::min(input.size() - 4, byte(1) | byte(2) << 8 | byte(3) << 16);
    files.push_back({static_cast<uint8_t>(byte(0) % kNames.size()), std::string(input.substr(4, size))});
    input.remove_prefix(4 + size);
  }
  return files;
}

std::string join(const std::vector<File>& files) {
  std::string input;
  for (const File& file : files) {
    input += static_cast<char>(file.name);
    for (const int shift : {0, 8, 16}) input += static_cast<char>(file.content.size() >> shift & 255);
    input += file.content;
  }
  return input;
}

void mutate(std::string& text, size_t max_growth) {
  std::string buffer = text;
  buffer.resize(text.size() + max_growth);
  const size_t size = LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(buffer.data()), text.size(), buffer.size());
  text = buffer.substr(0, size);
}

// The header alone, with its size put right again.
void mutate_safetensors(std::string& file, size_t max_growth) {
  uint64_t size = 0;
  if (file.size() < sizeof size) return mutate(file, max_growth);
  std::memcpy(&size, file.data(), sizeof size);
  if (size > file.size() - sizeof size) return mutate(file, max_growth);
  std::string header = file.substr(sizeof size, size);
  const std::string data = file.substr(sizeof size + size);
  mutate(header, max_growth);
  size = header.size();
  std::memcpy(file.data(), &size, sizeof size);
  file = file.substr(0, sizeof size) + header + data;
}

template <typename Read>
void attempt(Read read) {
  pare::fuzz(nullptr, 0, [&](std::span<const std::byte>) { read(); });
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  std::vector<File> files = split({reinterpret_cast<const char*>(data), size});
  const std::string whole = join(files);
  if (files.empty() || whole.size() >= max_size || seed % 16 == 0) return LLVMFuzzerMutate(data, size, max_size);
  File& file = files[seed / 16 % files.size()];
  const bool is_safetensors = std::string_view(kNames[file.name]).ends_with(".safetensors");
  const size_t max_growth = std::min<size_t>(max_size - whole.size(), 256);
  if (is_safetensors && seed / 256 % 2 == 0) {
    mutate_safetensors(file.content, max_growth);
  } else {
    mutate(file.content, max_growth);
  }
  const std::string joined = join(files);
  const size_t kept = std::min(joined.size(), max_size);
  std::memcpy(data, joined.data(), kept);
  return kept;
}

// Everything that is read of a model's folder: configuration, index, weights in their containers, tokenizer, manifest.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::filesystem::path folder = pare::fuzz_folder() / "checkpoint";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  for (const File& file : split({reinterpret_cast<const char*>(data), size})) {
    pare::write_fuzz_file(std::string("checkpoint/") + kNames[file.name], file.content);
  }
  attempt([&] {
    const pare::Checkpoint checkpoint = pare::Checkpoint::open(folder);
    attempt([&] { checkpoint.check_values(); });
    attempt([&] { pare::sparsity_claims(checkpoint); });
    if (checkpoint.is_encoder()) attempt([&] { pare::read_pooling(folder, checkpoint.encoder()); });
  });
  attempt([&] { pare::Tokenizer::open(folder).encode("Hello  world's 1234\n", true); });
  attempt([&] { pare::tokenizer_hash(folder); });
  attempt([&] { pare::verify(folder); });
  return 0;
}
