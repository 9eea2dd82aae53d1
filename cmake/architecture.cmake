# What the build is for: x86-64, or AArch64 for the runtime alone. A source whose name ends in an architecture, or in an
# instruction set of one, belongs to it alone.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(PARE_ARCHITECTURE aarch64)
  # Every AArch64 that Linux runs on.
  set(PARE_BASELINE_OPTIONS -march=armv8-a)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
  set(PARE_ARCHITECTURE x86)
  # x86-64-v3: AVX2, FMA, F16C.
  set(PARE_BASELINE_OPTIONS -march=x86-64-v3)
else()
  message(FATAL_ERROR "pare has kernels for x86-64, and for AArch64 where the runtime alone is built; expected a build "
    "for one of these, found '${CMAKE_SYSTEM_PROCESSOR}' (CMAKE_SYSTEM_PROCESSOR)")
endif()

# pare_sources_of_architecture(LIST): takes the sources of the other architecture out.
function(pare_sources_of_architecture PARE_LIST)
  if(PARE_ARCHITECTURE STREQUAL "aarch64")
    # Products of parts in bfloat16 are for AMX and AVX512-BF16; bf16_linear_aarch64.cpp stands in their place.
    list(FILTER ${PARE_LIST} EXCLUDE REGEX "[_/](x86|avx2|avxvnni|avx512|vnni|avx512bf16|amx)\\.cpp$")
    list(FILTER ${PARE_LIST} EXCLUDE REGEX "/(check_processor|bf16_linear)\\.cpp$")
  else()
    list(FILTER ${PARE_LIST} EXCLUDE REGEX "_(aarch64|neon|dotprod|i8mm)\\.cpp$")
  endif()
  set(${PARE_LIST} ${${PARE_LIST}} PARENT_SCOPE)
endfunction()
