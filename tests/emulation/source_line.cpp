#include "tests/emulation/source_line.h"

#include <backtrace.h>

#include <cstdint>
#include <map>

namespace pare::emulation {
namespace {

// libbacktrace calls this where there is no debugging information. The line then stays unknown.
void ignore_error(void*, const char*, int) {}

backtrace_state* state() {
  static backtrace_state* state = backtrace_create_state(nullptr, 0, ignore_error, nullptr);
  return state;
}

bool is_kernel_file(const std::string& name) {
  return name.ends_with(".cu") || name.ends_with(".cuh");
}

int keep_line(void* result, uintptr_t, const char* file, int line, const char*) {
  if (file == nullptr) return 0;
  auto& found = *static_cast<std::string*>(result);
  std::string name = file;
  name.erase(0, name.rfind('/') + 1);
  if (found.empty() || is_kernel_file(name)) found = name + ":" + std::to_string(line);
  return is_kernel_file(name) ? 1 : 0;
}

void keep_symbol(void* result, uintptr_t, const char* name, uintptr_t, uintptr_t) {
  if (name != nullptr) *static_cast<std::string*>(result) = name;
}

}  // namespace

std::string source_line(const void* instruction) {
  std::string line;
  backtrace_pcinfo(state(), reinterpret_cast<uintptr_t>(instruction), keep_line, ignore_error, &line);
  return line.empty() ? "an unknown line" : line;
}

const char* symbol_name(const void* function) {
  static std::map<const void*, std::string> names;
  const auto [entry, is_new] = names.try_emplace(function);
  if (is_new) {
    backtrace_syminfo(state(), reinterpret_cast<uintptr_t>(function), keep_symbol, ignore_error, &entry->second);
  }
  return entry->second.empty() ? nullptr : entry->second.c_str();
}

}  // namespace pare::emulation
