# The toolchain of Debian's cross compiler for AArch64: the runtime alone, whose tests QEMU runs on another processor.
#
#   cmake -B build-aarch64 --toolchain cmake/aarch64-linux-gnu.cmake -DPARE_RUNTIME_ONLY=ON \
#     -DPARE_AARCH64_LIBRARIES=FOLDER
#
# PARE_AARCH64_LIBRARIES is a folder in which the packages for arm64 are unpacked; .ci/aarch64 makes one.
# The environment's QEMU_CPU is the processor that QEMU shows programs (qemu-aarch64 -cpu help).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(PARE_AARCH64_LIBRARIES "" CACHE PATH "folder in which packages for arm64 are unpacked")
# What CMake tries while it configures sees it too.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES PARE_AARCH64_LIBRARIES)
set(CMAKE_FIND_ROOT_PATH ${PARE_AARCH64_LIBRARIES} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
# Libraries of the compiler's lie below -L. Others are found by the programs' RPATH.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64;-L;/usr/aarch64-linux-gnu)
