// The report of --version --json: the facts about a program that a report of a fault needs.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace pare::runtime {

// The sources that a program was built from, as git knew them when it was built.
struct SourceState {
  std::string_view commit = "unknown";   // 40 hexadecimal digits, or "unknown" for sources that git does not keep
  std::optional<bool> is_modified = {};  // true if files that git keeps differed from the commit; empty if unknown
};

// The definition is in a source that each build writes (write_source_state.cmake). Only the programs link it, so that a
// new commit compiles one small file.
SourceState source_state();

// Returns one JSON object: program, version, commit, modified, isa (the instruction set in use), libtorch, cuda
// (whether kernels for GPUs are built in), compiler, model_types (those that are read: decoders, encoders, models
// with_images whose text part is read, and the architectures of GGUF files). libtorch is the version of LibTorch, or
// null for a program that works without it, whose `libtorch` is empty. Throws what detect_isa throws.
std::string version_report(std::string_view program, const SourceState& sources, std::string_view libtorch);

}  // namespace pare::runtime
