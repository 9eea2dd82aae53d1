// An input that is several files one after another: a byte for the name, three for the size (make_corpus.py).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace pare {

struct FuzzFile {
  uint8_t name;  // its place in the fuzzer's list
  std::string content;
};

inline std::vector<FuzzFile> split_files(std::string_view input, size_t num_names) {
  std::vector<FuzzFile> files;
  while (input.size() >= 4) {
    const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<uint8_t>(input[i])); };
    const size_t size = std::min(input.size() - 4, byte(1) | byte(2) << 8 | byte(3) << 16);
    files.push_back({static_cast<uint8_t>(byte(0) % num_names), std::string(input.substr(4, size))});
    input.remove_prefix(4 + size);
  }
  return files;
}

inline std::string join_files(const std::vector<FuzzFile>& files) {
  std::string input;
  for (const FuzzFile& file : files) {
    input += static_cast<char>(file.name);
    for (const int shift : {0, 8, 16}) input += static_cast<char>(file.content.size() >> shift & 255);
    input += file.content;
  }
  return input;
}

inline void mutate_text(std::string& text, size_t max_growth) {
  std::string buffer = text;
  buffer.resize(text.size() + max_growth);
  const size_t size = LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(buffer.data()), text.size(), buffer.size());
  text = buffer.substr(0, size);
}

// Mutates the header alone, and corrects its size.
inline void mutate_safetensors(std::string& file, size_t max_growth) {
  uint64_t size = 0;
  if (file.size() < sizeof size) return mutate_text(file, max_growth);
  std::memcpy(&size, file.data(), sizeof size);
  if (size > file.size() - sizeof size) return mutate_text(file, max_growth);
  std::string header = file.substr(sizeof size, size);
  const std::string data = file.substr(sizeof size + size);
  mutate_text(header, max_growth);
  size = header.size();
  std::memcpy(file.data(), &size, sizeof size);
  file = file.substr(0, sizeof size) + header + data;
}

// For LLVMFuzzerCustomMutator. It changes one file. Now and then it changes only the header of a safetensors file, or
// the whole input.
inline size_t mutate_files(std::span<const char* const> names, uint8_t* data, size_t size, size_t max_size,
                           unsigned seed) {
  std::vector<FuzzFile> files = split_files({reinterpret_cast<const char*>(data), size}, names.size());
  const std::string whole = join_files(files);
  if (files.empty() || whole.size() >= max_size || seed % 16 == 0) return LLVMFuzzerMutate(data, size, max_size);
  FuzzFile& file = files[seed / 16 % files.size()];
  const bool is_safetensors = std::string_view(names[file.name]).ends_with(".safetensors");
  const size_t max_growth = std::min<size_t>(max_size - whole.size(), 256);
  if (is_safetensors && seed / 256 % 2 == 0) {
    mutate_safetensors(file.content, max_growth);
  } else {
    mutate_text(file.content, max_growth);
  }
  const std::string joined = join_files(files);
  const size_t kept = std::min(joined.size(), max_size);
  std::memcpy(data, joined.data(), kept);
  return kept;
}

}  // namespace pare
