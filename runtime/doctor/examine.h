// Examines a checkpoint or a .gguf file: everything that is wrong with it, and not only the first fault.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/doctor/examine_packed.h"
#include "runtime/doctor/finding.h"
#include "runtime/doctor/patient.h"

namespace pare::runtime {

struct Examination {
  std::filesystem::path path;
  std::string kind;       // "checkpoint", "gguf"
  std::string container;  // of a quantized checkpoint
  int64_t num_tensors = 0;
  std::vector<Finding> findings;     // the certain ones first
  std::shared_ptr<Patient> patient;  // of a checkpoint; repairs read from it

  int64_t count(Certainty certainty) const;
  // True if nothing is certainly or likely wrong.
  bool is_healthy() const { return count(Certainty::certain) == 0 && count(Certainty::likely) == 0; }
};

struct ExamineOptions {
  OriginalWeight original = {};                         // may be empty
  std::function<void(int64_t, int64_t)> progress = {};  // items done, items; may be empty
};

// Reads all of it, a layer at a time. A healthy checkpoint is opened in the end as every reader does. Throws
// std::runtime_error for a path that is neither, and Interrupted.
Examination examine(const std::filesystem::path& path, const ExamineOptions& options = {});

std::string to_text(const Examination& examination);
// Returns the JSON object of one finding, and of the whole.
nlohmann::ordered_json finding_json(const Finding& finding);
nlohmann::ordered_json examination_json(const Examination& examination);

}  // namespace pare::runtime
