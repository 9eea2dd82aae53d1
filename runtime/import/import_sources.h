// The content that import.cpp writes, as each source format yields it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/files/safetensors.h"
#include "runtime/import/import.h"
#include "runtime/model/model_description.h"

namespace pare::runtime {

struct ImportedModel {
  std::vector<std::pair<std::string, std::string>> text_files;  // name, content: config.json, tokenizer.json, ...
  std::vector<StreamedTensor> tensors;                          // with Hugging Face names
};

// Both keep the source mapped for as long as the tensors' producers live.
// codes: as of ImportOptions.
ImportedModel read_gguf_model(const std::filesystem::path& path, std::optional<DType> dtype,
                              GgufCodes codes = GgufCodes::rounded);
ImportedModel read_llama2c_model(const std::filesystem::path& path, const std::filesystem::path& tokenizer,
                                 DType dtype);

// Returns the model of a config.json that was made from the metadata of `source`. Throws std::runtime_error naming the
// file for sizes that no model has, before anything is made of them.
ModelDescription describe_source(const std::string& config_json, const std::filesystem::path& source);

// Throws std::runtime_error naming the file and the tensor unless everything that the model needs is there in its
// shape.
void check_tensors(const std::vector<StreamedTensor>& tensors, const ModelDescription& model,
                   const std::filesystem::path& source);

// Returns config.json's name: "float32", "float16" or "bfloat16".
const char* torch_dtype_name(DType dtype);

// Returns the place of row `row` of a Hugging Face q or k projection in formats whose RoPE rotates neighbours
// (2j, 2j + 1). Hugging Face's rotates halves (j, j + K/2).
inline int64_t neighbour_rotated_row(int64_t row, int64_t head_size) {
  const int64_t in_head = row % head_size;
  return row - in_head + (in_head % (head_size / 2)) * 2 + in_head / (head_size / 2);
}

}  // namespace pare::runtime
