#include "runtime/engine/block_errors.h"

#include <stdexcept>

namespace pare::runtime {

bool BlockErrors::can_compare(const ModelDescription& model, const ModelDescription& reference) {
  return model.blocks.size() == reference.blocks.size() && model.hidden_size == reference.hidden_size;
}

int64_t BlockErrors::size_bytes(const ModelDescription& model, int64_t num_rows) {
  return static_cast<int64_t>(model.blocks.size() * sizeof(float)) * model.hidden_size * num_rows;
}

BlockErrors::BlockErrors(const ModelDescription& model, int64_t num_rows)
    : states_(model.blocks.size()), squares_(model.blocks.size()), differences_(model.blocks.size()) {
  keep_ = {num_rows, [this](int64_t block, std::span<const float> states_RD) {
             states_[static_cast<size_t>(block)].assign(states_RD.begin(), states_RD.end());
           }};
  compare_ = {num_rows,
              [this](int64_t block, std::span<const float> states_RD) { add(static_cast<size_t>(block), states_RD); }};
}

void BlockErrors::add(size_t block, std::span<const float> reference_RD) {
  const std::vector<float>& states_RD = states_[block];
  if (states_RD.size() != reference_RD.size()) throw std::logic_error("the models were given different batches");
  for (size_t i = 0; i < reference_RD.size(); ++i) {
    const auto value = static_cast<double>(reference_RD[i]);
    const double difference = static_cast<double>(states_RD[i]) - value;
    squares_[block] += value * value;
    differences_[block] += difference * difference;
  }
}

std::vector<double> BlockErrors::values() const {
  std::vector<double> errors;
  for (size_t block = 0; block < states_.size(); ++block) {
    errors.push_back(squares_[block] > 0.0 ? differences_[block] / squares_[block] : 0.0);
  }
  return errors;
}

}  // namespace pare::runtime
