#include "runtime/import/import.h"

#include <array>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string_view>
#include <unordered_map>

#include "runtime/files/gguf.h"
#include "runtime/import/import_sources.h"
#include "runtime/model/checkpoint.h"
#include "runtime/model/checkpoint_files.h"
#include "runtime/model/mistaken_path.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/partial_output.h"
#include "runtime/tokenizer/tokenizer.h"

namespace pare::runtime {
namespace {

bool is_gguf(const std::filesystem::path& source) {
  std::array<char, 4> magic{};
  std::ifstream file(source, std::ios::binary);
  if (!file) throw std::runtime_error(source.string() + ": cannot be opened: " + std::strerror(errno));
  file.read(magic.data(), magic.size());
  return std::string_view(magic.data(), magic.size()) == "GGUF";
}

// Finds a vocabulary that llama2.c's exporter named tokenizer.bin or tok512.bin.
std::filesystem::path find_llama2c_tokenizer(const std::filesystem::path& source) {
  const std::filesystem::path folder = source.has_parent_path() ? source.parent_path() : ".";
  std::filesystem::path found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("tok") || !name.ends_with(".bin")) continue;
    if (!found.empty()) {
      throw std::invalid_argument(source.string() + ": both " + found.string() + " and " + entry.path().string() +
                                  " could be its vocabulary; name one with --tokenizer");
    }
    found = entry.path();
  }
  if (found.empty()) {
    throw std::invalid_argument(source.string() + ": no vocabulary (tok*.bin) beside it; name one with --tokenizer");
  }
  return found;
}

void write_model(ImportedModel model, const std::filesystem::path& directory, const ImportOptions& options) {
  for (const auto& [name, content] : model.text_files) write_file_atomically(directory / name, content);
  if (!options.has_weights) return write_safetensors_header(directory / kSingleFileName, std::move(model.tensors));
  int64_t num_bytes = 0;
  for (const StreamedTensor& tensor : model.tensors) {
    num_bytes += TensorLayout{tensor.dtype, tensor.shape}.num_bytes();
  }
  require_disk_space(directory, num_bytes);
  const auto num_tensors = static_cast<int64_t>(model.tensors.size());
  if (options.progress) options.progress(0, num_tensors);
  for (auto done = std::make_shared<int64_t>(0); StreamedTensor & tensor : model.tensors) {
    tensor.produce = [done, num_tensors, produce = std::move(tensor.produce), &options](const ByteSink& sink) {
      produce([&](std::span<const std::byte> row) {
        throw_if_interrupted();
        sink(row);
      });
      if (options.progress) options.progress(++*done, num_tensors);
    };
  }
  write_safetensors(directory / kSingleFileName, std::move(model.tensors));
}

}  // namespace

ModelDescription describe_source(const std::string& config_json, const std::filesystem::path& source) {
  try {
    return describe_model(config_json, "config.json");
  } catch (const std::invalid_argument& error) {
    throw std::runtime_error(source.string() +
                             ": its metadata does not describe a model that pare runs: in Hugging Face's "
                             "words, " +
                             error.what());
  }
}

void check_tensors(const std::vector<StreamedTensor>& tensors, const ModelDescription& model,
                   const std::filesystem::path& source) {
  std::unordered_map<std::string_view, const StreamedTensor*> by_name;
  for (const StreamedTensor& tensor : tensors) by_name.emplace(tensor.name, &tensor);
  const auto check = [&](const std::string& name, const std::vector<int64_t>& shape) {
    const auto found = by_name.find(name);
    if (found != by_name.end() && found->second->shape == shape) return;
    throw std::runtime_error(source.string() + ": expected a tensor for '" + name + "' of shape " + shape_text(shape) +
                             ", found " + (found == by_name.end() ? "none" : shape_text(found->second->shape)));
  };
  const auto check_linear = [&](const LinearDescription& linear, bool is_transposed = false) {
    check(linear.name + ".weight",
          is_transposed ? std::vector{linear.num_in, linear.num_out} : std::vector{linear.num_out, linear.num_in});
    if (linear.has_bias) check(linear.name + ".bias", {linear.num_out});
  };
  for (const LinearDescription& linear : block_linears(model)) check_linear(linear, model.stores_transposed);
  check_linear({model.embedding_name, model.vocabulary_size, model.hidden_size, false});
  if (model.has_learned_positions()) check_linear(model.position_table);
  if (!model.tied_head) check_linear(model.head);
  for (const NormDescription& norm : all_norms(model)) {
    check(norm.name + ".weight", {norm.width});
    if (norm.has_bias) check(norm.name + ".bias", {norm.width});
  }
  for (const BlockDescription& block : model.blocks) {
    for (const VectorDescription& vector : block.vectors()) {
      const auto found = by_name.find(vector.name);
      const bool has_two_axes = found != by_name.end() && found->second->shape.size() == 2;
      check(vector.name, has_two_axes ? std::vector<int64_t>{1, vector.size} : std::vector{vector.size});
    }
  }
}

DType parse_dtype_name(std::string_view name) {
  for (const DType dtype : {DType::BF16, DType::F16, DType::F32}) {
    if (name == torch_dtype_name(dtype)) return dtype;
  }
  throw std::invalid_argument("'" + std::string(name) +
                              "' is not a type that weights are written in; known: bfloat16, float16, float32");
}

const char* torch_dtype_name(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return "float32";
    case DType::F16:
      return "float16";
    case DType::BF16:
      return "bfloat16";
    default:
      throw std::invalid_argument("weights cannot be written as " + std::string(dtype_name(dtype)) +
                                  "; use BF16, F16 or F32");
  }
}

std::vector<std::filesystem::path> import_inputs(const std::filesystem::path& source, const ImportOptions& options) {
  if (std::filesystem::is_directory(source)) {
    throw std::invalid_argument(
        source.string() +
        " is a folder; import takes a .gguf or a llama2.c .bin file. A Hugging Face folder needs no import");
  }
  if (std::filesystem::exists(source) && !std::filesystem::is_regular_file(source)) {
    throw std::invalid_argument(source.string() + ": expected a file, found a pipe or device");
  }
  refuse_mistaken_model(source);
  if (is_gguf(source)) return GgufFile::open(source).paths();
  refuse_git_lfs_pointer(InputFile(source));
  return {source, options.tokenizer.empty() ? find_llama2c_tokenizer(source) : options.tokenizer};
}

void import_model(const std::filesystem::path& source, const std::filesystem::path& given,
                  const ImportOptions& options) {
  const std::filesystem::path output = output_place(given);
  InputFiles inputs;
  inputs.add(source);
  const std::vector<std::filesystem::path> files = import_inputs(source, options);
  PartialOutput::check_is_free(output, PartialOutput::Leftovers::go);
  for (const std::filesystem::path& file : files) inputs.add(file);
  ImportedModel model = is_gguf(source) ? read_gguf_model(source, options.dtype, options.codes)
                                        : read_llama2c_model(source, files.back(), options.dtype.value_or(DType::BF16));
  PartialOutput partial(output, "import", PartialOutput::Remains::worthless);
  std::filesystem::create_directories(partial.result());
  write_model(std::move(model), partial.result(), options);
  inputs.check_unchanged();
  // An import that cannot be read back must not get the output's name.
  Checkpoint::open(partial.result());
  Tokenizer::open(partial.result());
  partial.publish();
}

}  // namespace pare::runtime
