# Packages: `cpack` in the build folder (or `make package`) makes an archive of everything that was built and, where
# Debian's tools are there, a Debian package for each component.
set(CPACK_GENERATOR TGZ)
find_program(DPKG_SHLIBDEPS dpkg-shlibdeps)
find_program(DEBIAN_FILE file)  # tells CPack which files are programs
mark_as_advanced(DPKG_SHLIBDEPS DEBIAN_FILE)
if(DPKG_SHLIBDEPS AND DEBIAN_FILE)
  list(APPEND CPACK_GENERATOR DEB)
endif()
set(CPACK_PACKAGE_NAME pare)
set(CPACK_PACKAGE_VENDOR pare)
set(CPACK_PACKAGE_CONTACT "the maintainers of pare <pare@localhost>" CACHE STRING "maintainer that a package names")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "makes language-model checkpoints smaller and faster, offline")
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_THREADS 0)  # compress on all cores

string(TOLOWER "${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}" platform)
if(TARGET pare)
  set(CPACK_COMPONENTS_ALL runtime full)
  set(CPACK_PACKAGE_FILE_NAME pare-${PROJECT_VERSION}-${platform})
else()
  set(CPACK_COMPONENTS_ALL runtime)
  set(CPACK_PACKAGE_FILE_NAME pare-runtime-${PROJECT_VERSION}-${platform})
endif()
if(NOT PARE_CUDA)
  list(APPEND CPACK_COMPONENTS_ALL development)
endif()

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME pare-runtime)
set(CPACK_DEBIAN_FULL_PACKAGE_NAME pare)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME pare-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libpcre2-dev, g++ (>= 4:12)")
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION
  "pare-runtime runs, measures and checks compressed models on the CPU. It needs no LibTorch.")
set(CPACK_COMPONENT_FULL_DESCRIPTION
  "pare prunes, quantizes and distils as a recipe says, and has all commands of pare-runtime. LibTorch comes with it.")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION
  "The library pare::runtime to load models, score tokens and generate text, for find_package(pare) of CMake.")
# The libraries in lib/pare are the package's own. dpkg-shlibdeps looks for them where they came from.
if(TARGET pare)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${LIBTORCH}/lib)
endif()
include(CPack)
