#include "compress/reconstruct/reconstruct_work.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <stdexcept>

#include "compress/walk/decoder_block.h"
#include "runtime/containers/container_table.h"

namespace pare::compress {
namespace {

// A layer at work: its plan, its results so far, and where its values are in floating point.
struct WorkedLayer {
  const LayerPlan* plan = nullptr;
  CompressedLayer* layer = nullptr;
  runtime::OwnedTensor* tensor = nullptr;  // for a weight under the model's own name
  GridView* grid = nullptr;                // for codes
  std::string name() const { return plan->linear.name + ".weight"; }
};

std::vector<WorkedLayer> trained_layers(const std::vector<LayerPlan>& layers, BlockWork& work) {
  std::vector<WorkedLayer> trained;
  for (CompressedLayer& layer : work.layers) {
    const auto plan =
        std::find_if(layers.begin(), layers.end(), [&](const auto& l) { return l.linear.name == layer.record.name; });
    if (plan == layers.end() || !plan->is_reconstructed()) continue;
    WorkedLayer item{.plan = &*plan, .layer = &layer};
    if (layer.record.scheme.has_own_tensor()) {
      const auto tensor =
          std::find_if(work.changed.begin(), work.changed.end(), [&](const auto& t) { return t.name == item.name(); });
      if (tensor == work.changed.end()) throw std::logic_error(item.name() + ": there is no pruned weight to train");
      item.tensor = &*tensor;
    }
    trained.push_back(item);
  }
  return trained;
}

// Makes the view that holds the parameters: codes on their grid, or values of the type that they are stored in.
std::unique_ptr<ParameterView> make_view(const at::Tensor& weight_OI, const ReconstructOptions& options,
                                         WorkedLayer& item) {
  const runtime::StoredLinear& stored = item.layer->stored;
  if (item.layer->record.scheme.is_dense()) {
    const runtime::DType dtype = item.tensor != nullptr ? item.tensor->dtype : stored.dense_dtype;
    return float_view(item.name(), ParameterKind::weight, weight_OI, dtype, item.layer->kept_OI);
  }
  auto view = std::make_unique<GridView>(item.plan->linear.name, stored.weight,
                                         GridTraining{.offsets = options.train.weights,
                                                      .scales = options.train.scales,
                                                      .one_scale = item.layer->record.scheme.per_tensor,
                                                      .kept_OI = item.layer->kept_OI});
  item.grid = view.get();
  return view;
}

std::vector<std::byte> bytes_of(const at::Tensor& values_OI, runtime::DType dtype) {
  std::vector<std::byte> bytes(static_cast<size_t>(values_OI.numel()) * runtime::dtype_size_bytes(dtype));
  runtime::convert_from_float(dtype, {values_OI.const_data_ptr<float>(), static_cast<size_t>(values_OI.numel())},
                              bytes);
  return bytes;
}

// Takes the trained values over. The zeros of the mask and the grid's shape stay as they were.
void take_over(const ParameterView& view, WorkedLayer& item, BlockWork& work) {
  const runtime::LinearDescription& linear = item.plan->linear;
  runtime::StoredLinear& stored = item.layer->stored;
  std::vector<float> values(static_cast<size_t>(linear.num_out * linear.num_in));
  if (item.grid != nullptr) {
    stored.weight = item.grid->weight();
    validate(stored.weight, linear.name);
    values = runtime::effective_weight(stored);
  } else {
    const at::Tensor values_OI = view.stored().contiguous();
    if (item.tensor != nullptr) {
      item.tensor->data = bytes_of(values_OI, item.tensor->dtype);
    } else {
      stored.dense_OI = bytes_of(values_OI, stored.dense_dtype);
      runtime::container_format(item.layer->record.scheme.container).adapt(stored, item.layer->record.scheme);
    }
    std::copy_n(values_OI.const_data_ptr<float>(), values.size(), values.begin());
  }
  const at::Tensor weight_OI = at::from_blob(values.data(), {linear.num_out, linear.num_in}, at::kFloat);
  const at::Tensor& kept_OI = item.layer->kept_OI;
  if (kept_OI.defined()) {
    if (weight_OI.ne(0.0).logical_and_(kept_OI.logical_not()).any().item<bool>()) {
      throw std::logic_error(item.name() + ": the reconstruction gave a pruned weight a value");
    }
    item.layer->record.num_zeros = weight_OI.eq(0.0).sum().item<int64_t>();
  }
  work.block.set_weight(item.plan->stage, item.plan->index, values);
}

}  // namespace

bool reconstruct_work(const std::vector<LayerPlan>& layers, int64_t index, const BlockSamples& samples,
                      DecoderFunctions& model, BlockWork& work) {
  auto& block = dynamic_cast<DecoderBlock&>(work.block);  // an encoder's plan has no such step
  std::vector<WorkedLayer> trained = trained_layers(layers, work);
  if (trained.empty()) return false;
  const ReconstructOptions& options = *trained.front().plan->step(PassKind::reconstructs)->reconstruction();
  const std::map<std::string, at::Tensor, std::less<>> tensors = block.tensors();
  ParameterViews views;
  for (WorkedLayer& item : trained) views[item.name()] = make_view(tensors.at(item.name()), options, item);
  for (const runtime::NormDescription& norm : norms_of(block.description())) {
    const std::string name = norm.name + ".weight", bias = norm.name + ".bias";
    views[name] = frozen_view(tensors.at(name));
    if (norm.has_bias) views[bias] = frozen_view(tensors.at(bias));
  }
  // Routing and attention read these in float32.
  for (const runtime::VectorDescription& vector : block.description().vectors()) {
    views[vector.name] = frozen_view(tensors.at(vector.name));
  }
  for (const auto& [name, tensor] : tensors) {
    if (!views.contains(name)) views[name] = frozen_view(tensor.to(model.compute_type()));
  }
  model.set_input_formats(block.input_formats());
  const Reconstruction result = reconstruct_block(model, index, samples, options, views);
  for (WorkedLayer& item : trained) {
    item.layer->record.reconstruction = result.best_epoch == 0 ? 1.0 : result.loss_after / result.loss_before;
    if (result.best_epoch > 0) take_over(*views.at(item.name()), item, work);
  }
  return result.best_epoch > 0;
}

}  // namespace pare::compress
