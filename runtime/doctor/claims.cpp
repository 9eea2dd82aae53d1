#include "runtime/doctor/claims.h"

#include <array>
#include <cstddef>
#include <vector>

namespace pare::runtime {
namespace {

// A module that no list names.
constexpr const char* kNobody = "no.such.module.of.a.model";
constexpr std::array<std::byte, sizeof(int32_t)> kZero = {};

// Every module has every tensor: one zero, which as g_idx leaves the columns in place.
FindTensor find_anything() {
  static const TensorView tensor{DType::I32, {1}, kZero};
  return [](const std::string&) { return &tensor; };
}

struct Answer {
  std::optional<PackScheme> scheme;
  std::string failure;  // with the module's name taken out
};

Answer ask(const ContainerConfig& config, const std::string& module, std::string_view class_name) {
  Answer answer;
  answer.failure = failure_of([&] { answer.scheme = config.scheme_of(module, class_name, find_anything()); });
  for (size_t at = answer.failure.find(module); at != std::string::npos; at = answer.failure.find(module)) {
    answer.failure.erase(at, module.size());
  }
  return answer;
}

}  // namespace

bool Claims::expects_codes(const ContainerConfig& config, const std::string& module, std::string_view class_name) {
  const Answer answer = ask(config, module, class_name);
  if (answer.failure.empty()) return answer.scheme.has_value() && !answer.scheme->has_own_tensor();
  // A reader that needs more than a made tensor fails for every module in the same way.
  return answer.failure == ask(config, kNobody, class_name).failure;
}

std::optional<bool> Claims::expects_codes(const std::string& module, std::string_view class_name) const {
  if (!patient_.quantization) return std::nullopt;
  const std::string stored = patient_.stored_name(module);
  const ContainerConfig& config = *patient_.quantization->config;
  const bool expected = expects_codes(config, module, class_name);
  if (stored == module || expects_codes(config, stored, class_name) == expected) return expected;
  return std::nullopt;
}

std::optional<PackScheme> Claims::scheme_of(const std::string& module) const {
  if (!patient_.quantization) return std::nullopt;
  for (const std::string& name : {module, patient_.stored_name(module), std::string(kNobody)}) {
    const Answer answer = ask(*patient_.quantization->config, name, "Linear");
    if (answer.scheme) return answer.scheme;
  }
  return std::nullopt;
}

}  // namespace pare::runtime
