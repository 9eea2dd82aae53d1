#include "runtime/import/gguf_expert_codes.h"

#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/model/expert_stacks.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {
namespace {

constexpr int64_t kCodesOfBlock = 32, kScaleBytes = 1, kCodeBytes = 16;

std::string stem_of(size_t block, const char* linear) {
  return "blk." + std::to_string(block) + ".ffn_" + linear + "_exps";
}

// Tensors [E, O, I] or biases [E, O] of the file, whose rows a stack has in turn.
using Sources = std::vector<const GgufTensor*>;

int64_t row_bytes(const GgufTensor& tensor) {
  return static_cast<int64_t>(tensor.data.size()) * tensor.shape.back() / tensor.num_elements();
}

// A block of the file has elements j in the low nibbles and j + 16 in the high ones. Hugging Face's has 2j and 2j + 1.
std::array<std::byte, kCodeBytes> paired_codes(std::span<const std::byte> codes) {
  const auto code = [&](size_t i) {
    const auto byte = static_cast<uint8_t>(codes[i % kCodeBytes]);
    return static_cast<uint8_t>(i < kCodeBytes ? byte & 15 : byte >> 4);
  };
  std::array<std::byte, kCodeBytes> paired{};
  for (size_t b = 0; b < paired.size(); ++b) {
    paired[b] = static_cast<std::byte>(code(2 * b) | code(2 * b + 1) << 4);
  }
  return paired;
}

// Visits every block of every expert's rows in the order of the stack.
template <typename Visit>
void for_each_block(const Sources& sources, const Visit& visit) {
  const int64_t num_rows = sources.front()->shape[0] * sources.front()->shape[1];
  const int64_t size = row_bytes(*sources.front());
  for (int64_t r = 0; r < num_rows; ++r) {
    for (const GgufTensor* const tensor : sources) {
      const auto row = tensor->data.subspan(static_cast<size_t>(r * size), static_cast<size_t>(size));
      for (int64_t at = 0; at < size; at += kScaleBytes + kCodeBytes) {
        visit(row.subspan(static_cast<size_t>(at), kScaleBytes + kCodeBytes));
      }
    }
  }
}

// Adds the codes and scales of a stack.
void add_codes(const std::shared_ptr<const GgufFile>& file, const Sources& sources, const std::string& name,
               std::vector<StreamedTensor>& tensors) {
  const std::vector<int64_t>& shape = sources.front()->shape;
  const int64_t num_rows = shape[1] * static_cast<int64_t>(sources.size()), num_groups = shape[2] / kCodesOfBlock;
  const auto row_of_stack = [num_groups](const ByteSink& sink, size_t unit) {
    return [&sink, bytes = std::vector<std::byte>(),
            limit = static_cast<size_t>(num_groups) * unit](std::span<const std::byte> part) mutable {
      bytes.insert(bytes.end(), part.begin(), part.end());
      if (bytes.size() < limit) return;
      sink(bytes);
      bytes.clear();
    };
  };
  tensors.push_back({name + "_blocks",
                     DType::U8,
                     {shape[0], num_rows, num_groups, kCodeBytes},
                     [file, sources, row_of_stack](const ByteSink& sink) {
                       auto put = row_of_stack(sink, kCodeBytes);
                       for_each_block(sources, [&](std::span<const std::byte> block) {
                         put(paired_codes(block.subspan(kScaleBytes)));
                       });
                       for (const GgufTensor* const tensor : sources) file->drop_pages(*tensor);
                     }});
  tensors.push_back({name + "_scales",
                     DType::U8,
                     {shape[0], num_rows, num_groups},
                     [file, sources, row_of_stack](const ByteSink& sink) {
                       auto put = row_of_stack(sink, kScaleBytes);
                       for_each_block(sources,
                                      [&](std::span<const std::byte> block) { put(block.first(kScaleBytes)); });
                       for (const GgufTensor* const tensor : sources) file->drop_pages(*tensor);
                     }});
}

void add_biases(const std::shared_ptr<const GgufFile>& file, const Sources& sources, const std::string& name,
                DType dtype, std::vector<StreamedTensor>& tensors) {
  const int64_t num_experts = sources.front()->shape[0], num_rows = sources.front()->shape[1];
  const auto num_sources = static_cast<int64_t>(sources.size());
  tensors.push_back({name, dtype, {num_experts, num_rows * num_sources}, [=](const ByteSink& sink) {
                       std::vector<float> all(static_cast<size_t>(num_experts * num_rows * num_sources));
                       std::vector<float> values(static_cast<size_t>(num_experts * num_rows));
                       for (size_t s = 0; s < sources.size(); ++s) {
                         decode_gguf_blocks(sources[s]->type, sources[s]->data, values);
                         for (size_t i = 0; i < values.size(); ++i) all[i * sources.size() + s] = values[i];
                         file->drop_pages(*sources[s]);
                       }
                       std::vector<std::byte> bytes(all.size() * dtype_size_bytes(dtype));
                       convert_from_float(dtype, all, bytes);
                       sink(bytes);
                     }});
}

}  // namespace

bool has_expert_codes(const GgufFile& file, const ModelDescription& model) {
  if (!model.stacks_experts) return false;
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    for (const char* const linear : {"gate", "up", "down"}) {
      const auto found = file.tensors().find(stem_of(b, linear) + ".weight");
      if (found == file.tensors().end() || found->second.type != GgufType::MXFP4) return false;
      if (file.tensors().contains(stem_of(b, linear) + ".scale")) return false;  // stacks have no place for factors
    }
  }
  return true;
}

void stack_expert_codes(const std::shared_ptr<const GgufFile>& file, const ModelDescription& model,
                        std::vector<StreamedTensor>& tensors) {
  std::set<std::string> replaced;
  for (const BlockDescription& block : model.blocks) {
    for (const FeedForwardDescription& expert : block.experts) {
      for (const LinearDescription& linear : {expert.gate, expert.up, expert.down}) {
        replaced.insert({linear.name + ".weight", linear.name + ".bias"});
      }
    }
  }
  std::erase_if(tensors, [&](const StreamedTensor& tensor) { return replaced.contains(tensor.name); });
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    const std::string module = experts_module(model.blocks[b]);
    const auto sources = [&](const std::vector<const char*>& linears, const char* suffix) {
      Sources found;
      for (const char* const linear : linears) found.push_back(&file->tensor(stem_of(b, linear) + suffix));
      return found;
    };
    add_codes(file, sources({"gate", "up"}, ".weight"), module + "gate_up_proj", tensors);
    add_biases(file, sources({"gate", "up"}, ".bias"), module + "gate_up_proj_bias", model.dtype, tensors);
    add_codes(file, sources({"down"}, ".weight"), module + "down_proj", tensors);
    add_biases(file, sources({"down"}, ".bias"), module + "down_proj_bias", model.dtype, tensors);
  }
}

std::string with_expert_codes(const std::string& config_json, const ModelDescription& model) {
  const BlockDescription& block = model.blocks.front();
  const auto of_any_block = [&](const std::string& name) {
    return block.name.substr(0, block.name.rfind('.')) + ".*" + name.substr(block.name.size());
  };
  nlohmann::ordered_json config = parse_ordered_json(config_json, "config.json");
  config["quantization_config"] = {{"modules_to_not_convert",
                                    {of_any_block(block.o.name.substr(0, block.o.name.rfind('.'))),
                                     of_any_block(block.router->name), model.embedding_name, model.head.name}},
                                   {"quant_method", "mxfp4"}};
  return json_text(config, 2) + "\n";
}

}  // namespace pare::runtime
