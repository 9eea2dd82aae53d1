#include "runtime/device/make_backend.h"

namespace pare {

std::unique_ptr<Backend> make_backend(const BackendOptions& options) {
  return make_cpu_backend(options.isa.value_or(detect_isa()), options.num_threads);
}

}  // namespace pare
