#include "compress/run/torch_errors.h"

#include <c10/util/Exception.h>

#include <new>
#include <stdexcept>

namespace pare::compress {

std::string with_own_errors(const std::function<std::string()>& work) {
  try {
    return work();
  } catch (const c10::Error& error) {
    const std::string what = error.what_without_backtrace();
    // Of the allocator, which has no class of errors of its own on a CPU (c10/core/impl/alloc_cpu.cpp).
    if (what.find("DefaultCPUAllocator") != std::string::npos) throw std::bad_alloc();
    throw std::logic_error(what.substr(0, what.find('\n')));
  }
}

}  // namespace pare::compress
