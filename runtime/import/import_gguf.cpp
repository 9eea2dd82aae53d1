// GGUF -> Hugging Face. The import undoes what llama.cpp's converter changed. These are names, gains with a unit
// offset, which it stores with the 1 added, weights that Hugging Face's files hold as [I, O], what makes keys and
// values of a latent, and two orders of rows: that of q and k where its RoPE rotates neighbours and Hugging Face's
// rotates halves, and that of stacks which have q, k and v head by head.
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>

#include "runtime/families/families.h"
#include "runtime/files/gguf.h"
#include "runtime/import/gguf_config.h"
#include "runtime/import/gguf_expert_codes.h"
#include "runtime/import/gguf_linear_codes.h"
#include "runtime/import/gguf_tensors.h"
#include "runtime/import/import_sources.h"
#include "runtime/model/expert_stacks.h"
#include "runtime/system/json_text.h"
#include "runtime/text/unicode.h"
#include "runtime/tokenizer/gguf_vocabulary.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::ordered_json;

std::optional<DType> float_dtype(GgufType type) {
  if (type == GgufType::F32) return DType::F32;
  if (type == GgufType::F16) return DType::F16;
  if (type == GgufType::BF16) return DType::BF16;
  return std::nullopt;
}

// Returns the type of a file's matrices, or float32 if they have several; nullopt if any of them has codes.
std::optional<DType> read_matrix_dtype(const GgufFile& file) {
  std::optional<DType> common;
  for (const auto& [name, tensor] : file.tensors()) {
    if (tensor.shape.size() < 2) continue;
    const std::optional<DType> dtype = float_dtype(tensor.type);
    if (!dtype) return std::nullopt;
    common = common.value_or(*dtype) == *dtype ? *dtype : DType::F32;
  }
  return common;
}

class GgufModel {
 public:
  GgufModel(const std::filesystem::path& path, std::optional<DType> dtype, GgufCodes codes)
      : codes_(codes),
        file_(std::make_shared<GgufFile>(GgufFile::open(path))),
        family_(find_gguf_family(*file_)),
        sizes_(read_gguf_sizes(*file_, family_)),
        asked_dtype_(dtype),
        matrix_dtype_(read_matrix_dtype(*file_)) {}

  std::string config() const { return make_gguf_config(*file_, family_, sizes_, written_dtype()); }
  // As if the blocks that predict later tokens were the model's: so their tensors have names.
  std::string config_of_all_blocks() const {
    GgufSizes sizes = sizes_;
    sizes.num_blocks += sizes.num_next_tokens;
    return make_gguf_config(*file_, family_, sizes, written_dtype());
  }
  std::string generation_config() const { return make_gguf_generation_config(*file_); }
  std::string tokenizer_config() const;
  std::string tokenizer() const { return make_tokenizer_json(read_gguf_vocabulary(*file_)); }
  std::vector<StreamedTensor> tensors(const ModelDescription& model) const {
    return gguf_tensors(file_, family_, model, [&](const GgufTensor& tensor) { return written_dtype(tensor); });
  }
  bool has_codes_of_experts(const ModelDescription& model) const { return has_expert_codes(*file_, model); }
  void stack_codes(const ModelDescription& model, std::vector<StreamedTensor>& tensors) const {
    stack_expert_codes(file_, model, tensors);
  }
  std::string keep_linear_codes(const ModelDescription& model, const std::string& config,
                                std::vector<StreamedTensor>& tensors) const {
    return runtime::keep_linear_codes(file_, family_, model, config, tensors);
  }

 private:
  // The type that a tensor is written in, or the weights as a whole.
  DType written_dtype(const GgufTensor& tensor) const {
    if (asked_dtype_) return *asked_dtype_;
    if (const std::optional<DType> dtype = float_dtype(tensor.type)) return *dtype;
    // Small differences between corrected scores decide, and published models have them in float32.
    const bool is_rounded = codes_ == GgufCodes::rounded && !tensor.name.ends_with(kGgufCorrection);
    return is_rounded ? DType::BF16 : DType::F32;
  }
  DType written_dtype() const {
    const DType of_codes = codes_ == GgufCodes::decoded ? DType::F32 : DType::BF16;
    return asked_dtype_.value_or(matrix_dtype_.value_or(of_codes));
  }

  GgufCodes codes_;
  std::shared_ptr<const GgufFile> file_;
  const DecoderFamily& family_;
  GgufSizes sizes_;
  std::optional<DType> asked_dtype_, matrix_dtype_;
};

std::string GgufModel::tokenizer_config() const {
  Json config;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  for (const auto& [role, token] : gguf_special_tokens(*file_)) config[role] = token;
  const auto templates = gguf_chat_templates(*file_);
  if (templates.size() == 1 && templates.front().first == "default") {
    config["chat_template"] = templates.front().second;
  } else {
    for (const auto& [name, text] : templates) config["chat_template"].push_back({{"name", name}, {"template", text}});
  }
  config["model_max_length"] = file_->integer(std::string(family_.gguf) + ".context_length");
  config["clean_up_tokenization_spaces"] = false;
  return json_text(config, 2) + "\n";
}

}  // namespace

ImportedModel read_gguf_model(const std::filesystem::path& path, std::optional<DType> dtype, GgufCodes codes) {
  const GgufModel model(path, dtype, codes);
  std::string config = model.config();
  const ModelDescription description = describe_source(config, path);
  ImportedModel imported;
  imported.tensors = model.tensors(describe_source(model.config_of_all_blocks(), path));
  check_tensors(imported.tensors, description, path);
  const bool keeps_codes = !dtype && model.has_codes_of_experts(description);
  if (keeps_codes) {
    model.stack_codes(description, imported.tensors);
  } else if (description.stacks_experts) {
    for (const BlockDescription& block : description.blocks) stack_experts(block, imported.tensors);
  }
  if (codes == GgufCodes::kept && !description.stacks_experts) {
    config = model.keep_linear_codes(description, config, imported.tensors);
  }
  const std::string tokenizer = model.tokenizer();  // first, since it refuses tokens that are not text
  imported.text_files = {{"config.json", keeps_codes ? with_expert_codes(config, description) : config},
                         {"generation_config.json", model.generation_config()},
                         {"tokenizer_config.json", model.tokenizer_config()},
                         {"tokenizer.json", tokenizer}};
  return imported;
}

}  // namespace pare::runtime
