// The golden checkpoints of tests/golden/families, and variations of them, for the tests of the engine.
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/engine/backend.h"
#include "runtime/engine/transformer.h"
#include "runtime/files/npy.h"
#include "runtime/model/checkpoint.h"
#include "tests/places.h"
#include "tests/runtime/engine/guarded_backend.h"
#include "tests/runtime/engine/reference_backend.h"
#include "tests/runtime/system/tested_isas.h"

namespace pare {
using namespace runtime;

inline std::filesystem::path family_path(const std::string& family) {
  return std::filesystem::path(kSourceFolder) / "tests/golden/families" / family;
}

// Returns the folder names of all golden families.
inline std::vector<std::string> families() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(family_path(""))) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

inline std::string file_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns the float32 values of a .npy file of version 1, in file order.
inline std::vector<float> read_golden_floats(const std::filesystem::path& path) {
  const std::string bytes = file_text(path);
  const size_t data = 10 + static_cast<uint8_t>(bytes.at(8)) + 256 * static_cast<uint8_t>(bytes.at(9));
  if (bytes.find("'descr': '<f4', 'fortran_order': False") == std::string::npos)
    throw std::runtime_error("not float32");
  std::vector<float> values((bytes.size() - data) / sizeof(float));
  std::memcpy(values.data(), bytes.data() + data, values.size() * sizeof(float));
  return values;
}

// Writes a copy of a family's checkpoint whose config.json has `changes`.
inline void copy_family(const std::string& family, const std::filesystem::path& directory,
                        const nlohmann::json& changes) {
  std::filesystem::create_directories(directory);
  for (const auto& entry : std::filesystem::directory_iterator(family_path(family))) {
    if (entry.path().extension() != ".npy") std::filesystem::copy(entry.path(), directory / entry.path().filename());
  }
  nlohmann::json config = nlohmann::json::parse(file_text(directory / "config.json"));
  config.update(changes);
  std::ofstream(directory / "config.json") << config.dump(1);
}

// Returns the tokenizer.json of a byte-level BPE without merges: one token per ASCII character, and <s> (id 0) before
// every text.
inline std::string ascii_tokenizer_json() {
  nlohmann::json vocabulary = {{"<s>", 0}};
  vocabulary["\u0120"] = 1;  // a space and a line feed, as byte-level BPE writes them
  vocabulary["\u010A"] = 2;
  for (int c = 33; c < 127; ++c) vocabulary[std::string(1, static_cast<char>(c))] = c - 30;
  const nlohmann::json bos = {{"id", 0},         {"content", "<s>"},    {"single_word", false}, {"lstrip", false},
                              {"rstrip", false}, {"normalized", false}, {"special", true}};
  const nlohmann::json first = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}};
  const nlohmann::json text_a = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const nlohmann::json text_b = {{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
  const nlohmann::json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const nlohmann::json tokenizer = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", {bos}},
      {"normalizer", nullptr},
      {"pre_tokenizer", byte_level},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single", {first, text_a}},
        {"pair", {first, text_a, text_b}},
        {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {0}}, {"tokens", {"<s>"}}}}}}}},
      {"decoder", byte_level},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"vocab", vocabulary},
        {"merges", nlohmann::json::array()}}}};
  return tokenizer.dump();
}

// The name is "reference", "guarded" (the reference on memory that the host cannot touch) or that of a set.
inline std::unique_ptr<Backend> backend_named(const std::string& name, int num_threads = 2) {
  if (name == "reference") return make_reference_backend();
  if (name == "guarded") return std::make_unique<GuardedBackend>();
  return make_cpu_backend(parse_isa(name), num_threads);
}

inline std::vector<std::string> backend_names() {
  std::vector<std::string> names = {"reference", "guarded"};
  for (const Isa isa : float_isas()) {
    if (supports_isa(isa)) names.emplace_back(isa_name(isa));
  }
  return names;
}

template <typename T>
std::vector<T> downloaded(Backend& backend, const Buffer<T>& buffer) {
  std::vector<T> values(static_cast<size_t>(buffer.size()));
  backend.download<T>(buffer.get(), values);
  return values;
}

// Returns the logits of every row of final hidden states, after soft capping. hidden_RD is in the backend's memory.
inline std::vector<float> logits_of(Transformer& model, const float* hidden_RD, int64_t num_rows) {
  const int64_t vocabulary_size = model.description().vocabulary_size;
  std::vector<float> logits(static_cast<size_t>(num_rows * vocabulary_size));
  const Buffer<float> logits_RV = model.backend().allocate(num_rows * vocabulary_size);
  model.backend().linear(model.head(), hidden_RD, num_rows, logits_RV.get());
  model.backend().download<float>(logits_RV.get(), logits);
  const float cap = model.description().logit_softcap;
  for (float& logit : logits) logit = cap > 0.0f ? cap * std::tanh(logit / cap) : logit;
  return logits;
}

inline std::vector<float> prefill_logits(Transformer& model, const std::vector<int32_t>& ids, int64_t num_windows) {
  const auto num_rows = static_cast<int64_t>(ids.size());
  const Buffer<float> hidden = model.backend().allocate(num_rows * model.description().hidden_size);
  model.prefill_windows(ids, num_windows, hidden.get());
  return logits_of(model, hidden.get(), num_rows);
}

}  // namespace pare
