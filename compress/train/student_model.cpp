#include "compress/train/student_model.h"

#include <ATen/core/grad_mode.h>

#include <stdexcept>
#include <utility>

#include "runtime/system/progress.h"

namespace pare::compress {

void check_trainable(const runtime::Checkpoint& checkpoint, const TrainedParts& parts) {
  const auto fail = [](const runtime::LinearDescription& linear, const std::string& what) {
    throw std::invalid_argument(linear.name + ": " + what);
  };
  for (const runtime::LinearDescription& linear : runtime::block_linears(checkpoint.description())) {
    const std::optional<runtime::PackScheme> scheme = checkpoint.stored_scheme(linear);
    if (!scheme) continue;
    if (const std::string why = why_not_trained(*scheme); !why.empty()) fail(linear, why);
  }
  if (!checkpoint.sparsity_thresholds().empty()) {
    throw std::invalid_argument(
        "distill: '" + checkpoint.directory().string() +
        "' drops small inputs (activation_sparsity), and its thresholds belong to the weights as "
        "they are: train the model that it was made of, and let the pass follow");
  }
  if (!parts.embedding) return;
  for (const runtime::LinearDescription& table : {checkpoint.embedding(), checkpoint.head()}) {
    if (!checkpoint.stored_scheme(table)) continue;
    fail(table, "an embedding or head in codes is not trained: leave 'embedding' out");
  }
}

StudentModel::StudentModel(const runtime::Checkpoint& checkpoint, const TrainedParts& parts,
                           const IsTrained& is_trained, int64_t max_tokens, at::ScalarType compute, at::Device device,
                           KeptZeros kept_zeros)
    : functions_(checkpoint.description(), max_tokens, compute, device), kept_zeros_(kept_zeros) {
  check_trainable(checkpoint, parts);
  const runtime::ModelDescription& model = checkpoint.description();
  functions_.set_input_formats(read_input_formats(checkpoint));
  functions_.set_frozen(checkpoint);
  if (compute != at::kFloat) {
    exact_.emplace(model, max_tokens, at::kFloat, device);  // no input is rounded then
    exact_->set_frozen(checkpoint);
  }
  const auto read_norm = [&](const std::string& name, const runtime::NormDescription& norm, Views& views) {
    at::Tensor gain_D = read_gain(checkpoint, norm).to(device);
    const runtime::DType dtype = checkpoint.layout(norm.name + ".weight").dtype;
    views[name] = parts.vectors
                      ? float_view(norm.name + ".weight", ParameterKind::gain, gain_D, dtype, {}, norm.unit_offset)
                      : frozen_view(std::move(gain_D));
  };
  const auto read_norm_bias = [&](const runtime::NormDescription& norm, Views& views) {
    if (!norm.has_bias) return;
    const std::string name = norm.name + ".bias";
    at::Tensor bias_D = read_bias(checkpoint, norm).to(device);
    views[name] = parts.vectors ? float_view(name, ParameterKind::bias, bias_D, checkpoint.layout(name).dtype)
                                : frozen_view(std::move(bias_D));
  };
  const auto read_outer = [&](const char* name, const runtime::LinearDescription& table) {
    const runtime::LinearWeights linear = checkpoint.linear(table);
    if (parts.embedding) {
      outer_[name] = float_view(table.name + ".weight", ParameterKind::weight, dense_values(linear).to(device),
                                std::get<runtime::DenseWeight>(linear.weight).dtype);
    } else {
      outer_[name] = frozen(linear, dense_values(linear).to(device), compute);
    }
    checkpoint.drop_pages(table);
  };
  read_outer(kEmbedding, checkpoint.embedding());
  if (!model.tied_head) read_outer(kHead, checkpoint.head());
  read_norm(kFinalNorm, model.final_norm, outer_);
  const std::map<std::string, runtime::SparsityClaim> claims = runtime::sparsity_claims(checkpoint);
  for (const runtime::BlockDescription& block : model.blocks) {
    Views& views = blocks_.emplace_back();
    for (const runtime::LinearDescription& linear : linears_of(block)) {
      const auto claim = claims.find(linear.name);
      read_linear(checkpoint, linear, is_trained(linear.name) ? parts : TrainedParts{false, false, false, false},
                  claim == claims.end() ? nullptr : &claim->second, views);
    }
    for (const runtime::NormDescription& norm : norms_of(block)) {
      read_norm(norm.name + ".weight", norm, views);
      read_norm_bias(norm, views);
    }
    for (const runtime::VectorDescription& vector : block.vectors()) {
      views[vector.name] = frozen_view(float_tensor(checkpoint.values_of(vector)).to(device));
    }
  }
}

bool StudentModel::keeps_zeros(const runtime::LinearWeights& linear, const runtime::SparsityClaim* claim) {
  if (claim != nullptr && claim->is_packed) return true;  // it has no place for anything else
  if (kept_zeros_ == KeptZeros::none || (claim == nullptr && kept_zeros_ == KeptZeros::claimed)) return false;
  if (claim != nullptr) return true;
  const std::optional<runtime::PrunedZeros> zeros = runtime::pruned_zeros(linear, claim);
  if (!zeros) return false;
  const double share = static_cast<double>(zeros->num_zeros) / static_cast<double>(linear.num_out() * linear.num_in());
  guessed_as_pruned_.push_back(linear.name + " (" + runtime::format_number(100.0 * share, 1) + " %)");
  return true;
}

void StudentModel::read_linear(const runtime::Checkpoint& checkpoint, const runtime::LinearDescription& linear,
                               TrainedParts parts, const runtime::SparsityClaim* claim, Views& views) {
  const runtime::LinearWeights weights = checkpoint.linear(linear);
  const std::string name = linear.name + ".weight";
  if (const auto* const quantized = std::get_if<runtime::QuantizedWeight>(&weights.weight)) {
    views[name] = std::make_unique<GridView>(
        linear.name, *quantized,
        GridTraining{parts.weights, parts.scales, checkpoint.stored_scheme(linear)->per_tensor,
                     keeps_zeros(weights, claim)},
        functions_.device());
  } else {
    const auto& dense = std::get<runtime::DenseWeight>(weights.weight);
    at::Tensor weight_OI = dense_values(weights).to(functions_.device());
    if (parts.weights) {
      views[name] = float_view(name, ParameterKind::weight, weight_OI, dense.dtype,
                               keeps_zeros(weights, claim) ? weight_OI.ne(0.0) : at::Tensor());
    } else {
      views[name] = frozen(weights, weight_OI, held_type(weights, functions_.compute_type(), functions_.device()));
    }
  }
  if (linear.has_bias) {
    const at::Tensor bias_O = float_tensor(weights.bias_O).to(functions_.device());
    const std::string bias = linear.name + ".bias";
    views[bias] = parts.vectors ? float_view(bias, ParameterKind::bias, bias_O, checkpoint.layout(bias).dtype)
                                : frozen_view(bias_O.to(functions_.compute_type()), exact_ ? bias_O : at::Tensor());
  }
  checkpoint.drop_pages(linear);
}

std::unique_ptr<ParameterView> StudentModel::frozen(const runtime::LinearWeights& linear, const at::Tensor& weight_OI,
                                                    at::ScalarType type) const {
  at::Tensor value = weight_OI.to(type);
  if (!exact_) return frozen_view(std::move(value));
  // The narrowest type that has the file's values.
  const at::ScalarType exact = held_type(linear, at::kFloat, at::kCPU);
  at::Tensor stored = exact == type ? value : weight_OI.to(exact);
  return frozen_view(std::move(value), std::move(stored));
}

std::vector<Parameter*> StudentModel::parameters() {
  std::vector<Parameter*> parameters;
  const auto append = [&](Views& views) {
    for (auto& [name, view] : views) {
      const std::vector<Parameter*> own = view->parameters();
      parameters.insert(parameters.end(), own.begin(), own.end());
    }
  };
  append(outer_);
  for (Views& views : blocks_) append(views);
  return parameters;
}

void StudentModel::hold_values() {
  const at::NoGradGuard no_grad;
  held_.clear();
  std::vector<NamedTensors> tensors;
  for (int64_t index = 0; index <= num_blocks(); ++index) tensors.push_back(held(index));
  held_ = std::move(tensors);
}

void StudentModel::drop_values() {
  held_.clear();
}

void StudentModel::set_as_stored(bool as_stored) {
  drop_values();
  is_as_stored_ = as_stored;
}

const StudentModel::Views& StudentModel::views(int64_t index) const {
  return index == num_blocks() ? outer_ : blocks_[static_cast<size_t>(index)];
}

NamedTensors StudentModel::held(int64_t index) const {
  if (!held_.empty()) return held_[static_cast<size_t>(index)];
  const at::ScalarType compute = functions().compute_type();
  NamedTensors tensors;
  // Embedding and head are multiplied in many pieces of few rows.
  const bool is_outer = index == num_blocks();
  for (const auto& [name, view] : views(index)) {
    tensors.emplace(name, is_outer ? view->value(compute) : view->held(compute));
  }
  return tensors;
}

TrainedTensors StudentModel::leaves(int64_t index) const {
  const at::ScalarType compute = functions().compute_type();
  TrainedTensors tensors{held(index), {}};
  for (const auto& [name, view] : views(index)) {
    if (!view->is_trained()) continue;
    at::Tensor& value = tensors.all.find(name)->second;
    value = value.detach().requires_grad_(true);
    if (compute == at::kFloat) value.set_grad_dtype(compute);  // also of a weight that is held in less
    tensors.trained.push_back(name);
  }
  return tensors;
}

TrainedTensors StudentModel::block(int64_t index) const {
  return leaves(index);
}

TrainedTensors StudentModel::outer() const {
  return leaves(num_blocks());
}

at::Tensor StudentModel::head(const TrainedTensors& outer) const {
  return outer.all.find(description().tied_head ? kEmbedding : kHead)->second;
}

std::vector<at::Tensor> StudentModel::frozen_tables() const {
  std::vector<at::Tensor> tables;
  for (const char* name : {kEmbedding, kHead}) {
    const auto found = outer_.find(name);
    if (found != outer_.end() && !found->second->is_trained()) {
      tables.push_back(found->second->value(functions_.compute_type()));
    }
  }
  return tables;
}

FrozenModel StudentModel::frozen_outer() const {
  const TrainedTensors tensors = outer();
  return {&functions(),
          tensors.all.find(kEmbedding)->second.detach(),
          head(tensors).detach(),
          tensors.all.find(kFinalNorm)->second.detach(),
          {}};
}

FrozenModel StudentModel::frozen() const {
  FrozenModel model = frozen_outer();
  for (int64_t b = 0; b < num_blocks(); ++b) {
    NamedTensors& tensors = model.blocks.emplace_back(held(b));
    for (const runtime::LinearDescription& linear : linears_of(description().blocks[static_cast<size_t>(b)])) {
      at::Tensor& weight_OI = tensors.find(linear.name + ".weight")->second;
      weight_OI = weight_OI.to(functions().compute_type());
    }
  }
  return model;
}

void StudentModel::add_gradients(Views& views, const TrainedTensors& tensors, std::span<const at::Tensor> gradients) {
  if (gradients.size() != tensors.trained.size()) {
    throw std::invalid_argument("add_gradients: expected " + std::to_string(tensors.trained.size()) +
                                " gradients, found " + std::to_string(gradients.size()));
  }
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].defined()) views.find(tensors.trained[i])->second->add_gradient(gradients[i]);
  }
}

void StudentModel::add_block_gradients(int64_t index, const TrainedTensors& tensors,
                                       std::span<const at::Tensor> gradients) {
  add_gradients(blocks_[static_cast<size_t>(index)], tensors, gradients);
}

void StudentModel::add_outer_gradients(const TrainedTensors& tensors, std::span<const at::Tensor> gradients) {
  add_gradients(outer_, tensors, gradients);
}

void StudentModel::finish_gradients() {
  for (Views& views : blocks_) {
    for (auto& [name, view] : views) view->finish_gradients();
  }
  for (auto& [name, view] : outer_) view->finish_gradients();
}

void StudentModel::check_zeros() const {
  for (const Views& views : blocks_) {
    for (const auto& [name, view] : views) view->check_zeros();
  }
}

ParameterView& StudentModel::view(const std::string& name) const {
  for (const Views& views : blocks_) {
    if (const auto found = views.find(name); found != views.end()) return *found->second;
  }
  return *outer_.at(name);
}

}  // namespace pare::compress
