# Headers that most files include are compiled once: those of the standard library and of nlohmann-json, and LibTorch's,
# which take most of the time of a file that includes them. Nothing but time depends on it: files include what they use,
# and a build with -DPARE_PRECOMPILED_HEADERS=OFF finds the file that does not.
# With sanitizers files have options of their own, which such headers do not fit.
set(PARE_PRECOMPILES ON)
if(PARE_SANITIZE)
  set(PARE_PRECOMPILES OFF)
endif()
option(PARE_PRECOMPILED_HEADERS "compile the headers of LibTorch and of the standard library once for all files"
  ${PARE_PRECOMPILES})

set(PARE_STANDARD_HEADERS <algorithm> <array> <charconv> <chrono> <cmath> <cstdint> <cstring> <filesystem> <functional>
  <limits> <map> <memory> <numeric> <optional> <set> <span> <sstream> <stdexcept> <string> <string_view> <utility>
  <variant> <vector> <nlohmann/json.hpp>)
set(PARE_TORCH_HEADERS ${PARE_STANDARD_HEADERS} <ATen/Parallel.h> <ATen/core/Tensor.h> <ATen/core/grad_mode.h>
  <ATen/ops/arange.h> <ATen/ops/cat.h> <ATen/ops/empty.h> <ATen/ops/empty_like.h> <ATen/ops/eye.h>
  <ATen/ops/from_blob.h> <ATen/ops/full.h> <ATen/ops/mm.h> <ATen/ops/ones.h> <ATen/ops/tensor.h> <ATen/ops/where.h>
  <ATen/ops/zeros.h> <ATen/ops/zeros_like.h>)

# ccache must see a precompiled header by what it was made of. After one, GCC 12 no longer knows which inlined functions
# are the standard library's, and warns of copies in std::string, which it does nowhere else.
function(pare_precompiles target)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread>)
  endif()
endfunction()

# pare_precompile(TARGET HEADERS...): TARGET's files are compiled after HEADERS, in a precompiled form of its own.
function(pare_precompile target)
  if(PARE_PRECOMPILED_HEADERS)
    target_precompile_headers(${target} PRIVATE ${ARGN})
    pare_precompiles(${target})
  endif()
endfunction()

# pare_precompiled_headers(NAME HEADERS... LIBRARIES...): HEADERS precompiled for several targets, with the options that
# LIBRARIES ask for.
function(pare_precompiled_headers name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "HEADERS;LIBRARIES")
  if(PARE_PRECOMPILED_HEADERS)
    set(source ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp)  # CMake compiles headers for a target that has a source
    if(NOT EXISTS ${source})
      file(WRITE ${source} "// It includes what is precompiled, and nothing else.\n")
    endif()
    add_library(${name} OBJECT ${source})
    target_link_libraries(${name} PRIVATE ${arg_LIBRARIES})
    pare_precompile(${name} ${arg_HEADERS})
  endif()
endfunction()

# pare_precompile_as(TARGET NAME): TARGET's files are compiled after the headers of NAME, which has the same options.
function(pare_precompile_as target name)
  if(PARE_PRECOMPILED_HEADERS)
    target_precompile_headers(${target} REUSE_FROM ${name})
    pare_precompiles(${target})
  endif()
endfunction()
