// The blocks whose statistics are fuzzed.
#pragma once

#include "runtime/model/model_description.h"

namespace pare {
using namespace runtime;

inline BlockDescription fuzz_block(int64_t num_experts) {
  constexpr int64_t kWidth = 4, kInner = 6;
  const auto linear = [](const std::string& name, int64_t num_out, int64_t num_in) {
    return LinearDescription{"b." + name, num_out, num_in, false};
  };
  BlockDescription block;
  block.name = "b";
  block.q = linear("q", kWidth, kWidth);
  block.k = linear("k", kWidth, kWidth);
  block.v = linear("v", kWidth, kWidth);
  block.o = linear("o", kWidth, kWidth);
  for (int64_t e = 0; e < num_experts; ++e) {
    const std::string expert = num_experts > 1 ? std::to_string(e) + "." : "";
    block.experts.push_back({linear(expert + "gate", kInner, kWidth), linear(expert + "up", kInner, kWidth),
                             linear(expert + "down", kWidth, kInner)});
  }
  if (num_experts > 1) {
    block.router = linear("router", num_experts, kWidth);
    block.routing.experts_per_token = 1;
  }
  return block;
}

}  // namespace pare
