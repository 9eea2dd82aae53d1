// oneDNN's int8 product beside ours. Built in two forms: onednn_int8.cpp where CMake finds oneDNN (Debian's
// libdnnl-dev), onednn_absent.cpp where it does not.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace pare {

// The library's version, or a sentence why there is none.
std::string onednn_description();
bool has_onednn();

// A product y_MN (float32) = x_MK (int8) * w_KN (int8) with a scale per output channel, weights reordered beforehand
// into the layout that oneDNN prefers; calling it multiplies once.
std::function<void()> onednn_int8_product(int64_t m, int64_t k, int64_t n);

}  // namespace pare
