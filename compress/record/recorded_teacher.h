// A teacher whose logits were recorded (pare record).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "compress/record/logit_store.h"
#include "compress/train/train_step.h"

namespace pare::compress {

// Batches name sequences of the training data; stored[i] is the store's number of the i-th. The store must outlive it.
// num_vocabulary: of the student. Throws std::invalid_argument for vocabularies that differ by more than kMaxPadding.
std::unique_ptr<Teacher> recorded_teacher(const LogitStore& store, std::vector<int64_t> stored, int64_t num_vocabulary);

}  // namespace pare::compress
