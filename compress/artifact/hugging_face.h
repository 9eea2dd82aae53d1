// Makes a Hugging Face directory from a run's parts and its source: config.json with a quantization_config, safetensors
// in shards of up to 4 GiB, and the source's other small files.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "compress/artifact/parts.h"
#include "runtime/files/safetensors.h"
#include "runtime/model/checkpoint.h"

namespace pare::compress {

// Copies the files that have a hash in `inputs` and are neither config.json nor weights into `directory`. Throws
// std::runtime_error for a file that no longer has its hash.
void copy_small_files(const runtime::Checkpoint& source, const std::map<std::string, std::string>& inputs,
                      const std::filesystem::path& directory);

// Returns config.json: the source's, with a quantization_config of the modules that are in a container, and with the
// thresholds of activation sparsity. The parts of a whole model beside its text part are left alone, by patterns:
// programs differ in what stands before their names.
std::string artifact_config(const runtime::Checkpoint& source, std::vector<runtime::StoredModule> modules,
                            std::vector<std::string> unquantized, const runtime::SparsityThresholds& thresholds);

// Returns whether the tensor repeats the embedding, which also serves as the head, or belongs to the source's rounding
// of keys and values, which no result of ours says. Such tensors are not written.
bool is_left_out(const runtime::Checkpoint& source, const std::string& tensor);
// Returns the source's tensor `name`, under the name `written`, read while it is written.
runtime::StreamedTensor source_tensor(const runtime::Checkpoint& source, const std::string& name,
                                      const std::string& written);
// Gives tensors the names and the form that a result made from `source` stores: weights as [I, O], and experts in
// stacks, where the source's family has them so and they are floats. Experts among `modules` stay single.
void give_stored_form(const runtime::Checkpoint& source, std::vector<runtime::StreamedTensor>& tensors,
                      const std::vector<runtime::StoredModule>& modules = {});

// Writes model.safetensors, or shards of up to 4 GiB in the given order with their index. Throws what write_safetensors
// throws.
void write_weight_files(std::vector<runtime::StreamedTensor> tensors, const std::filesystem::path& directory);

// Writes the directory into `directory`, which is emptied first. `unquantized` are the linears that the config lists as
// left alone. `inputs` are the SHA-256 of the source's files by name (input_hashes); the small ones among them are
// copied. Throws std::runtime_error for a small file that no longer has its hash, and for a file that cannot be
// written.
void assemble_hugging_face(const Parts& parts, const runtime::Checkpoint& source,
                           const std::vector<std::string>& unquantized,
                           const std::map<std::string, std::string>& inputs, const std::filesystem::path& directory);

// Opens `directory` as any reader would. Decodes every compressed layer and compares it with its record. Compares every
// other tensor bit by bit with the part that changed it, or with the source. Throws std::runtime_error with the name of
// what differs.
void verify_hugging_face(const Parts& parts, const runtime::Checkpoint& source, const std::filesystem::path& directory);

}  // namespace pare::compress
