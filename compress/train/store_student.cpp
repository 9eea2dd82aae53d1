#include "compress/train/store_student.h"

#include <cmath>
#include <utility>

#include "compress/passes/compress_stage.h"
#include "runtime/commands/layer_sparsity.h"

namespace pare::compress {
namespace {

std::vector<std::byte> bytes_as(runtime::DType dtype, const at::Tensor& values) {
  const at::Tensor contiguous = values.to(at::kCPU).contiguous();
  std::vector<std::byte> bytes(static_cast<size_t>(contiguous.numel()) * runtime::dtype_size_bytes(dtype));
  runtime::convert_from_float(dtype, {contiguous.const_data_ptr<float>(), static_cast<size_t>(contiguous.numel())},
                              bytes);
  return bytes;
}

runtime::OwnedTensor owned(const runtime::Checkpoint& checkpoint, const std::string& name, const at::Tensor& values) {
  const runtime::TensorLayout source = checkpoint.layout(name);
  return {name, source.dtype, source.shape, bytes_as(source.dtype, values)};
}

// The narrowest type that holds a fixed range's scale, as the file that it was read from had it.
runtime::DType input_scale_dtype(const runtime::InputFormat& input) {
  for (const runtime::DType dtype : {runtime::DType::BF16, runtime::DType::F16}) {
    if (runtime::round_to(input.scale, dtype) == input.scale) return dtype;
  }
  return runtime::DType::F32;
}

double relative_change(const at::Tensor& after, const runtime::LinearWeights& before) {
  const at::Tensor start = dense_values(before);
  const double norm = start.pow(2).to(at::kDouble).sum().item<double>();
  return norm > 0.0 ? after.sub(start).pow(2).to(at::kDouble).sum().item<double>() / norm : 0.0;
}

// float32 [O, I], what a file is to hold. A frozen view has its values in the type that is multiplied, which may be
// narrower than the file's.
at::Tensor values_to_store(ParameterView& view, const runtime::LinearWeights& before) {
  return view.is_trained() ? view.value(at::kFloat).to(at::kCPU, at::kFloat) : dense_values(before);
}

// A linear or table with codes, or packed: as its container stores it.
CompressedLayer stored_layer(ParameterView& view, const runtime::Checkpoint& checkpoint,
                             const runtime::LinearDescription& linear, const runtime::PackScheme& scheme,
                             const std::map<std::string, runtime::SparsityClaim>& claims, KeptZeros kept_zeros,
                             std::string_view method, bool is_linear) {
  const runtime::LinearWeights before = checkpoint.linear(linear);
  CompressedLayer layer;
  LayerRecord& record = layer.record;
  layer.stored.input = before.input;
  layer.stored.input_scale_dtype = input_scale_dtype(before.input);
  const at::Tensor value_OI = values_to_store(view, before);
  if (const auto* const grid = dynamic_cast<const GridView*>(&view)) {
    layer.stored.weight = grid->weight();
  } else if (const auto* const codes = std::get_if<runtime::QuantizedWeight>(&before.weight)) {
    layer.stored.weight = *codes;
  } else {
    const auto& dense = std::get<runtime::DenseWeight>(before.weight);
    layer.stored.weight.num_out = linear.num_out;
    layer.stored.weight.num_in = linear.num_in;
    layer.stored.weight.pattern = dense.pattern;
    if (!scheme.has_own_tensor()) {
      layer.stored.dense_dtype = dense.dtype;
      layer.stored.dense_OI = bytes_as(dense.dtype, value_OI);
    }
  }
  record.name = linear.name;
  record.num_out = linear.num_out;
  record.num_in = linear.num_in;
  record.is_linear = is_linear;
  record.method = method;
  record.scheme = scheme;
  record.act_order = scheme.act_order;
  record.scale_dtype = layer.stored.weight.scale_dtype;
  const int64_t num_zeros = value_OI.eq(0.0).sum().item<int64_t>();
  const auto claim = claims.find(linear.name);
  const bool is_claimed = claim != claims.end();
  const std::optional<runtime::PrunedZeros> guessed =
      is_claimed ? std::nullopt : runtime::pruned_zeros(before, nullptr);
  const bool are_kept = kept_zeros == KeptZeros::pruned || (kept_zeros == KeptZeros::claimed && is_claimed);
  const bool stay = are_kept || !view.is_trained();
  if (view.keeps_zeros() || (stay && (is_claimed || guessed))) {
    record.pattern = is_claimed ? claim->second.pattern : guessed ? guessed->pattern : layer.stored.weight.pattern;
    record.num_zeros = num_zeros;
  }
  record.relative_error = relative_change(value_OI, before);
  return layer;
}

}  // namespace

void commit_student(const StudentModel& student, const runtime::Checkpoint& checkpoint, const RunPlan& plan,
                    Artifact& artifact) {
  const runtime::ModelDescription& model = checkpoint.description();
  const std::string_view method = plan.blocks.front().front().steps.front().row->key;  // the training is the only step
  const std::map<std::string, runtime::SparsityClaim> claims = runtime::sparsity_claims(checkpoint);
  std::vector<CompressedLayer> tables;
  std::vector<runtime::OwnedTensor> outer;
  const auto add_table = [&](const runtime::LinearDescription& table, const char* name, bool is_linear) {
    ParameterView& view = student.view(name);
    if (const std::optional<runtime::PackScheme> scheme = checkpoint.stored_scheme(table)) {
      tables.push_back(stored_layer(view, checkpoint, table, *scheme, claims, student.kept_zeros(), method, is_linear));
    } else if (view.is_trained()) {
      outer.push_back(owned(checkpoint, table.name + ".weight", view.stored()));
    }
  };
  add_table(checkpoint.embedding(), StudentModel::kEmbedding, /*is_linear=*/false);
  if (!model.tied_head) add_table(model.head, StudentModel::kHead, /*is_linear=*/true);
  if (ParameterView& norm = student.view(StudentModel::kFinalNorm); norm.is_trained()) {
    outer.push_back(owned(checkpoint, model.final_norm.name + ".weight", norm.stored()));
  }
  commit_layers(kTablesPart, std::move(tables), std::move(outer), artifact);

  for (size_t b = 0; b < model.blocks.size(); ++b) {
    std::vector<CompressedLayer> layers;
    std::vector<runtime::OwnedTensor> changed;
    const auto add_tensor = [&](const std::string& name) {
      ParameterView& view = student.view(name);
      if (view.is_trained()) changed.push_back(owned(checkpoint, name, view.stored()));
    };
    for (const LayerPlan& layer : plan.blocks[b]) {
      const std::string name = layer.linear.name + ".weight";
      ParameterView& view = student.view(name);
      if (layer.scheme.is_plain() && !view.is_trained()) continue;
      layers.push_back(stored_layer(view, checkpoint, layer.linear, layer.scheme, claims, student.kept_zeros(), method,
                                    /*is_linear=*/true));
      if (layer.scheme.has_own_tensor()) {
        // It replaces the source's even where it is what it was: its record speaks of it.
        changed.push_back(owned(checkpoint, name, values_to_store(view, checkpoint.linear(layer.linear))));
      }
      if (layer.linear.has_bias) add_tensor(layer.linear.name + ".bias");
    }
    const runtime::BlockDescription& block = model.blocks[b];
    for (const runtime::LinearDescription& router : block.routers()) add_tensor(router.name + ".weight");
    for (const runtime::NormDescription& norm : norms_of(block)) {
      add_tensor(norm.name + ".weight");
      if (norm.has_bias) add_tensor(norm.name + ".bias");
    }
    commit_layers(part_of_block(static_cast<int64_t>(b)), std::move(layers), std::move(changed), artifact);
  }
}

}  // namespace pare::compress
