#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>

#include <string>
#include <utility>

#include "tests/emulation/address_check.h"

// This part of the sanitizers' interface has no header.
extern "C" void __ubsan_get_current_report_data(const char** kind, const char** message, const char** file,
                                                unsigned* line, unsigned* column, char** address);

namespace pare::emulation::address_check {
namespace {

std::string first_report;

// Keeps a report: "AddressSanitizer: use-after-poison on address 0x...", then the innermost frame that has a line of a
// file.
void keep_address_report(const char* text) {
  if (!first_report.empty()) return;
  const std::string report = text;
  const size_t begin = report.find("AddressSanitizer:");
  if (begin == std::string::npos) return;
  first_report = report.substr(begin, report.find(" at pc", begin) - begin);
  for (size_t frame = report.find("    #"); frame != std::string::npos; frame = report.find("    #", frame + 1)) {
    const std::string line = report.substr(frame, report.find('\n', frame) - frame);
    const size_t in = line.find(" in ");
    if (in == std::string::npos || line.find(".cu:") == std::string::npos) continue;
    first_report += line.substr(in);
    break;
  }
}

}  // namespace

bool is_on() {
  return true;
}

void before_switch(void** state, const void* next_stack, size_t bytes) {
  __sanitizer_start_switch_fiber(state, next_stack, bytes);
}

void after_switch(void* state, const void** left_stack, size_t* bytes) {
  __sanitizer_finish_switch_fiber(state, left_stack, bytes);
}

void poison(const void* begin, size_t bytes) {
  __asan_poison_memory_region(begin, bytes);
}
void unpoison(const void* begin, size_t bytes) {
  __asan_unpoison_memory_region(begin, bytes);
}

std::string take_report() {
  static const bool listens = [] {
    __asan_set_error_report_callback(&keep_address_report);
    return true;
  }();
  static_cast<void>(listens);
  return std::exchange(first_report, {});
}

}  // namespace pare::emulation::address_check

// The sanitizers call these. Reports become exceptions, so they must not end the process, and each fault must be
// reported as often as it happens. Leaks of the host are not checked in this build.
extern "C" const char* __asan_default_options() {
  return "halt_on_error=0:suppress_equal_pcs=0:detect_leaks=0:detect_stack_use_after_return=0";
}

extern "C" void __ubsan_on_report() {
  using pare::emulation::address_check::first_report;
  const char *kind = "", *message = "", *file = "";
  unsigned line = 0, column = 0;
  char* address = nullptr;
  __ubsan_get_current_report_data(&kind, &message, &file, &line, &column, &address);
  if (!first_report.empty()) return;
  first_report =
      std::string("UndefinedBehaviorSanitizer: ") + message + " (" + kind + ") at " + file + ":" + std::to_string(line);
}
