#!/usr/bin/env python3
"""cmake/one_openmp.cmake gives a process one OpenMP library, whatever LibTorch calls its own and whichever compiler
builds, in the build folder and after cmake/install_libtorch.cmake. LibTorch is a small library here, with GCC's libgomp
beside it.

usage: one_openmp_build_test.py
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import one_openmp_test

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAME = b"libgomp.so.1\0"
OTHER_NAME = b"libgomp-a.so\0"  # as long, so that it can take the name's place in a file
LIBRARY = """
#include <omp.h>
int torch_threads() {
  int threads = 0;
#pragma omp parallel reduction(+ : threads)
  threads += 1;
  return threads;
}
"""
PROGRAM = """
#include <omp.h>
#include <cstdio>
int torch_threads();
int main() {
  omp_set_num_threads(3);
  int threads = 0;
#pragma omp parallel reduction(+ : threads)
  threads += 1;
  std::printf("%d %d", threads, torch_threads());
}
"""
PROJECT = """
cmake_minimum_required(VERSION 3.22)
project(one_openmp LANGUAGES CXX)
find_package(OpenMP REQUIRED)
set(TORCH_CPU_LIBRARY ${LIBTORCH}/lib/libtorch_cpu.so)
add_library(pare_torch INTERFACE)
include(${PARE}/cmake/one_openmp.cmake)
target_link_libraries(pare_torch INTERFACE ${TORCH_CPU_LIBRARY})
add_executable(program program.cpp)
target_link_libraries(program PRIVATE OpenMP::OpenMP_CXX pare_torch)
set_target_properties(program PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/pare")
install(TARGETS program)
install(CODE "set(PARE_PROGRAM \\"$<TARGET_FILE:program>\\")\\nset(PARE_LIBRARY_FOLDER lib/pare)
  set(PARE_OPENMP_FOLDER \\"${PARE_OPENMP_FOLDER}\\")")
install(SCRIPT ${PARE}/cmake/install_libtorch.cmake)
"""


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{words}: {done.stdout}{done.stderr}")
    return done.stdout


def compilers(folder):
    """GCC, and each clang that has an OpenMP library."""
    (folder / "empty.cpp").write_text("int main() {}")
    for compiler in ["g++"] + [f"clang++-{version}" for version in range(14, 22)]:
        words = [compiler, "-fopenmp", str(folder / "empty.cpp"), "-o", str(folder / "empty")]
        if shutil.which(compiler) and subprocess.run(words, capture_output=True).returncode == 0:
            yield compiler


class OneOpenMp(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="pare-openmp-"))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "program.cpp").write_text(PROGRAM)
        (self.folder / "CMakeLists.txt").write_text(PROJECT)

    def make_libtorch(self, name):
        """A library that needs libgomp under this name, which lies beside it."""
        library = self.folder / "libtorch/lib"
        library.mkdir(parents=True)
        (self.folder / "torch.cpp").write_text(LIBRARY)
        torch = library / "libtorch_cpu.so"
        run("g++", "-fopenmp", "-shared", "-fPIC", self.folder / "torch.cpp", "-Wl,-rpath,$ORIGIN", "-o", torch)
        gomp = pathlib.Path(run("g++", "-print-file-name=libgomp.so.1").strip())
        bundled = library / name[:-1].decode()
        bundled.write_bytes(gomp.read_bytes().replace(NAME, name))
        torch.write_bytes(torch.read_bytes().replace(NAME, name))

    def expect_one(self, program):
        self.assertEqual(len(one_openmp_test.runtimes(program)), 1, run("ldd", program))
        self.assertEqual(run(program), "3 3")

    def test_each_compiler_with_each_name(self):
        for name in (NAME, OTHER_NAME):
            shutil.rmtree(self.folder / "libtorch", ignore_errors=True)
            self.make_libtorch(name)
            for compiler in compilers(self.folder):
                with self.subTest(name=name, compiler=compiler):
                    build = self.folder / f"build-{compiler}-{len(name.split(b'-'))}"
                    run("cmake", "-S", self.folder, "-B", build, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={compiler}",
                        f"-DPARE={ROOT}", f"-DLIBTORCH={self.folder}/libtorch")
                    run("cmake", "--build", build)
                    self.expect_one(build / "program")
                    run("cmake", "--install", build, "--prefix", build / "first")
                    (build / "first").rename(build / "elsewhere")
                    (build / "program").unlink()
                    self.expect_one(build / "elsewhere/bin/program")


if __name__ == "__main__":
    unittest.main()
