// What a program says of itself to whoever reports a fault: --version --json.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace pare {

// The sources that a program was built from, as git knew them at that time.
struct SourceState {
  std::string_view commit = "unknown";   // 40 hexadecimal digits, or "unknown" for sources that git does not keep
  std::optional<bool> is_modified = {};  // whether files that git keeps differed from the commit; empty where unknown
};

// Defined in a source that each build writes (write_source_state.cmake) and that the programs alone link, so that a new
// commit compiles one small file.
SourceState source_state();

// One JSON object: program, version, commit, modified, isa (the instruction set in use), libtorch (its version; null
// for a program that works without it, whose libtorch is empty), cuda (whether kernels for GPUs are built in),
// compiler. Throws as detect_isa.
std::string version_report(std::string_view program, const SourceState& sources, std::string_view libtorch);

}  // namespace pare
