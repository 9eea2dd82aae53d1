// What a training phase trains on and validates with: windows of texts, of .npy files, or a record's sequences.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compress/recipe/distill_pass.h"
#include "compress/record/logit_store.h"
#include "compress/train/trainer.h"
#include "runtime/model/checkpoint.h"

namespace pare::compress {

// Which of the texts' windows, or of a record's sequences, are the i-th that is trained on and the i-th held out.
struct ChosenWindows {
  std::vector<int64_t> training, validation;
};

// The files that training reads, for messages.
std::string names_of(const DistillOptions& options);

// teacher: that is there; null for none. store: what is read in place of texts; null: texts are. Throws
// std::invalid_argument for files that hold too little, or other windows than asked for, and for a record of more than
// max_bytes.
TrainingWindows read_training_windows(const DistillOptions& options, const runtime::Checkpoint& student,
                                      const runtime::Checkpoint* teacher, const LogitStore* store, int64_t max_bytes,
                                      ChosenWindows& chosen);

// What the fingerprint holds of windows beside what a record says itself.
std::string data_identity(const LabelledWindows& data);

}  // namespace pare::compress
