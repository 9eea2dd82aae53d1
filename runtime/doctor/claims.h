// What a quantization_config says of modules, whatever their tensors are. It is asked through the container's own
// reader, which sees tensors made for the question.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/doctor/patient.h"

namespace pare::runtime {

class Claims {
 public:
  explicit Claims(const Patient& patient) : patient_(patient) {}

  // Returns whether the configuration, as it stands, expects codes in a module of that name and class (as of
  // ContainerConfig::scheme_of); nullopt: there is none, or it says different things of the module's name in the files
  // and in the description. The name is the description's.
  std::optional<bool> expects_codes(const std::string& module, std::string_view class_name) const;
  // Does the same for another configuration than the checkpoint's.
  static bool expects_codes(const ContainerConfig& config, const std::string& module, std::string_view class_name);
  // Returns how a linear with codes is said to be stored, with the order of columns that the configuration states;
  // nullopt: it does not say.
  std::optional<PackScheme> scheme_of(const std::string& module) const;

 private:
  const Patient& patient_;
};

}  // namespace pare::runtime
