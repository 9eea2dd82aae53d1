# Writes a source that defines source_state() of version_report.h for a folder of sources.
#
#   cmake -D SOURCE=FOLDER -D OUTPUT=FILE.cpp -P write_source_state.cmake
#
# A file that would stay as it is keeps its time, so that nothing is compiled again.
set(commit "unknown")
set(is_modified "std::nullopt")
find_program(GIT git)
if(GIT)
  # A folder that was unpacked inside another repository has no commit of its own.
  execute_process(COMMAND ${GIT} ls-files --error-unmatch CMakeLists.txt WORKING_DIRECTORY ${SOURCE}
    RESULT_VARIABLE is_foreign OUTPUT_QUIET ERROR_QUIET)
  execute_process(COMMAND ${GIT} rev-parse --verify HEAD WORKING_DIRECTORY ${SOURCE}
    RESULT_VARIABLE has_failed OUTPUT_VARIABLE hash OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  execute_process(COMMAND ${GIT} --no-optional-locks status --porcelain --untracked-files=no
    WORKING_DIRECTORY ${SOURCE} RESULT_VARIABLE status_failed OUTPUT_VARIABLE changes ERROR_QUIET)
  if(is_foreign EQUAL 0 AND has_failed EQUAL 0 AND status_failed EQUAL 0)
    set(commit "${hash}")
    if(changes STREQUAL "")
      set(is_modified "false")
    else()
      set(is_modified "true")
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT "${OUTPUT}" @ONLY CONTENT [[
// Made by write_source_state.cmake; do not edit.
#include "runtime/commands/version_report.h"

namespace pare::runtime {

SourceState source_state() {
  return {.commit = "@commit@", .is_modified = @is_modified@};
}

}  // namespace pare::runtime
]])
