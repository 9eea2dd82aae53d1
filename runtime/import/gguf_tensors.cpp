#include "runtime/import/gguf_tensors.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>

#include "runtime/import/gguf_config.h"
#include "runtime/import/gguf_stream.h"

namespace pare::runtime {
namespace {

class Tensors {
 public:
  Tensors(const std::shared_ptr<const GgufFile>& file, const DecoderFamily& family, const ModelDescription& model,
          const std::function<DType(const GgufTensor&)>& written_dtype)
      : file_(file), family_(family), model_(model), written_dtype_(written_dtype) {}

  std::vector<StreamedTensor> all();

 private:
  float factor_of(const GgufSource& source);
  void add(const GgufPlace& place);
  void refuse_what_is_left() const;

  const std::shared_ptr<const GgufFile>& file_;
  const DecoderFamily& family_;
  const ModelDescription& model_;
  const std::function<DType(const GgufTensor&)>& written_dtype_;
  std::vector<StreamedTensor> tensors_;
  std::set<std::string> known_;
};

std::vector<StreamedTensor> Tensors::all() {
  const auto has = [&](const std::string& name) { return file_->tensors().contains(name); };
  for (const GgufPlace& place : gguf_places(family_, model_, has)) add(place);
  refuse_what_is_left();
  return std::move(tensors_);
}

// Weights in NVFP4 have a factor in a tensor of its own, one for each expert. That of their inputs is of no use where
// inputs are not rounded.
float Tensors::factor_of(const GgufSource& source) {
  constexpr std::string_view kWeight = ".weight";
  if (!source.name.ends_with(kWeight)) return 1.0f;
  const std::string stem = source.name.substr(0, source.name.size() - kWeight.size());
  if (file_->tensors().contains(stem + ".input_scale")) known_.insert(stem + ".input_scale");
  const auto found = file_->tensors().find(stem + ".scale");
  if (found == file_->tensors().end()) return 1.0f;
  const GgufTensor& tensor = found->second;
  known_.insert(tensor.name);
  if (const int64_t expected = std::max(source.num_parts, int64_t{1}); tensor.num_elements() != expected) {
    throw std::runtime_error(file_->where() + ": " + tensor.name + ": expected " + std::to_string(expected) +
                             " factors, found the shape " + shape_text(tensor.shape));
  }
  std::vector<float> factors(static_cast<size_t>(tensor.num_elements()));
  decode_gguf_blocks(tensor.type, tensor.data, factors);
  return factors[static_cast<size_t>(source.part)];
}

void Tensors::add(const GgufPlace& place) {
  known_.insert(place.source.name);
  const DType dtype = written_dtype_(file_->tensor(place.source.name));
  if (!place.latent_values.empty()) {
    known_.insert(place.latent_values);
    const DType other = written_dtype_(file_->tensor(place.latent_values));
    tensors_.push_back(stream_gguf_latent(file_, place.source.name, place.latent_values, place.name,
                                          dtype == other ? dtype : DType::F32));
    return;
  }
  // Files with the whole may hold its halves as well.
  if (const std::string whole = "attn_kv_b.weight"; place.source.name.ends_with(whole)) {
    const std::string from = place.source.name.substr(0, place.source.name.size() - whole.size());
    known_.insert({from + "attn_k_b.weight", from + "attn_v_b.weight"});
  }
  GgufSource source = place.source;
  source.factor = factor_of(source);
  tensors_.push_back(stream_gguf(file_, source, place.name, dtype));
  // A matrix of one row may be a vector in the file.
  StreamedTensor& tensor = tensors_.back();
  const bool is_vector = place.linear && place.linear->num_out == 1 && place.name.ends_with(".weight") &&
                         tensor.shape == std::vector{place.linear->num_in};
  if (is_vector) tensor.shape = {1, place.linear->num_in};
}

// A tensor that has no place would be lost silently.
void Tensors::refuse_what_is_left() const {
  for (const auto& [name, tensor] : file_->tensors()) {
    if (known_.contains(name) || is_gguf_setting(name)) continue;
    throw std::invalid_argument(file_->where() + ": tensor '" + name + "' does not belong to a " +
                                std::string(family_.model_type) + " model of " + std::to_string(model_.blocks.size()) +
                                " blocks, as the metadata describe it");
  }
}

}  // namespace

std::vector<StreamedTensor> gguf_tensors(const std::shared_ptr<const GgufFile>& file, const DecoderFamily& family,
                                         const ModelDescription& model,
                                         const std::function<DType(const GgufTensor&)>& written_dtype) {
  return Tensors(file, family, model, written_dtype).all();
}

}  // namespace pare::runtime
