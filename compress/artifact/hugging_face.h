// A Hugging Face directory of a run's parts and its source: config.json with a quantization_config, safetensors in
// shards of up to 4 GiB, and the source's other small files.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "compress/artifact/parts.h"
#include "runtime/files/safetensors.h"
#include "runtime/model/checkpoint.h"

namespace pare {

// Whether the tensor repeats the embedding, which serves as the head as well: not written.
bool is_second_copy(const Checkpoint& source, const std::string& tensor);
// A tensor as it lies in its file, under `name`. The view's data must live until it is written.
StreamedTensor view_tensor(const std::string& name, const TensorView& view);
// model.safetensors, or shards of up to 4 GiB in the given order with their index. Throws what write_safetensors
// throws.
void write_weight_files(std::vector<StreamedTensor> tensors, const std::filesystem::path& directory);

// Writes it into `directory`, which is emptied first. `unquantized` are the linears that the config lists as left
// alone; `inputs` the SHA-256 of the source's files by name (input_hashes), of which the small ones are copied. Throws
// std::runtime_error: a small file that is no longer what its hash says; what cannot be written.
void assemble_hugging_face(const Parts& parts, const Checkpoint& source, const std::vector<std::string>& unquantized,
                           const std::map<std::string, std::string>& inputs, const std::filesystem::path& directory);

// Opens `directory` as any reader would, decodes every compressed layer and compares it with its record, and every
// other tensor with the part that changed it or with the source, bit by bit. Throws std::runtime_error naming what
// differs.
void verify_hugging_face(const Parts& parts, const Checkpoint& source, const std::filesystem::path& directory);

}  // namespace pare
