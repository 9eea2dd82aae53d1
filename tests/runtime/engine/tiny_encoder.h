// The golden encoders of tests/golden/encoders.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/places.h"
#include "tests/runtime/engine/tiny_models.h"

namespace pare {

inline const std::vector<std::string> kTinyEncoders = {"bert_tiny",  "roberta_tiny",    "distilbert_tiny",
                                                       "mpnet_tiny", "modernbert_tiny", "modernbert_bias_tiny"};

inline std::filesystem::path tiny_encoder_path(const std::string& name = "bert_tiny") {
  return std::filesystem::path(kSourceFolder) / "tests/golden/encoders" / name;
}

struct EncoderGolden {
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> ids;
  std::vector<float> hidden_RD, embeddings_ND;
};

inline EncoderGolden read_encoder_golden(const std::string& name = "bert_tiny") {
  EncoderGolden golden;
  const std::filesystem::path folder = tiny_encoder_path(name);
  const nlohmann::json texts = nlohmann::json::parse(file_text(folder / "texts.json"));
  for (const auto& entry : texts) {
    golden.texts.push_back(entry.at("text"));
    golden.ids.push_back(entry.at("ids").get<std::vector<int32_t>>());
  }
  golden.hidden_RD = read_golden_floats(folder / "hidden.npy");
  golden.embeddings_ND = read_golden_floats(folder / "embeddings.npy");
  return golden;
}

// Writes a copy of the checkpoint whose config.json has `changes`.
inline void copy_encoder(const std::filesystem::path& directory, const nlohmann::json& changes) {
  std::filesystem::create_directories(directory);
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"}) {
    std::filesystem::copy(tiny_encoder_path() / name, directory / name);
  }
  nlohmann::json config = nlohmann::json::parse(file_text(directory / "config.json"));
  config.update(changes);
  std::ofstream(directory / "config.json") << config.dump(1);
}

}  // namespace pare
