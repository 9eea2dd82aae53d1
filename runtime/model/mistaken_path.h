// Recognizes paths that people often give by mistake for a model, and says what helps.
#pragma once

#include <filesystem>

namespace pare::runtime {

// Throws std::runtime_error, which says what lies there and which command helps, if `path` is
//   - a name of the Hugging Face hub, or its address, and no path here;
//   - a folder of the hub's cache above the one that holds a model;
//   - a folder with an adapter (LoRA) and no model; with a .gguf; or with a model in PyTorch's own files alone;
//   - a file of PyTorch's, or a .safetensors file, whose folder is the model.
// Everything else passes: its reader says what else is wrong.
void refuse_mistaken_model(const std::filesystem::path& path);

// Recognizes the first bytes of a zip archive or a pickle, as torch.save writes them. False if the file cannot be read.
bool is_pytorch_file(const std::filesystem::path& path);

}  // namespace pare::runtime
