#!/usr/bin/env python3
"""What `cpack` packs: Debian packages of pare-runtime and the library, and an archive; with PARE_TEST_FULL=1 also
pare's, which is large for LibTorch. They are unpacked, not installed, and run from there.

usage: packages_test.py --build FOLDER [names of tests]
Status 77: there is no dpkg-deb or dpkg-shlibdeps (Debian: dpkg-dev), no file, or no cpack.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

build = temporary = None
HAS_LIBTORCH = False


def pack(generator, folder, *settings):
    words = ["cpack", "--config", str(build / "CPackConfig.cmake"), "-G", generator, "-B", str(folder)]
    for setting in settings:
        words += ["-D", setting]
    # Where cpack notes what it installed, an installation has noted what to remove again.
    manifests = {path: path.read_bytes() for path in build.glob("install_manifest*.txt")}
    packed = subprocess.run(words, cwd=build, capture_output=True, text=True)
    for path in set(build.glob("install_manifest*.txt")) - set(manifests):
        path.unlink()
    for path, content in manifests.items():
        path.write_bytes(content)
    if packed.returncode != 0:
        raise AssertionError(f"{words}: {packed.stdout}{packed.stderr}")


def field(package, name):
    return subprocess.run(["dpkg-deb", "-f", package, name], check=True, capture_output=True, text=True).stdout.strip()


def dependencies(package):
    return {re.split(r"[ (|]", entry.strip())[0] for entry in field(package, "Depends").split(",")}


def unpacked(package):
    folder = package.with_suffix("")
    subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
    return folder


def version_of(program):
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    return subprocess.run([program, "--version"], check=True, capture_output=True, text=True, env=environment).stdout


def setUpModule():
    global temporary
    temporary = pathlib.Path(tempfile.mkdtemp(prefix="pare-packages-"))


def tearDownModule():
    shutil.rmtree(temporary, ignore_errors=True)


class Debian(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        components = re.search(
            r'set\(CPACK_COMPONENTS_ALL "([^"]*)"\)', (build / "CPackConfig.cmake").read_text()
        ).group(1)
        cls.small = [name for name in components.split(";") if name != "full"]
        pack("DEB", temporary / "deb", "CPACK_COMPONENTS_ALL=" + ";".join(cls.small))

    def package(self, name):
        found = list((temporary / "deb").glob(f"{name}_[0-9]*.deb"))
        self.assertEqual(len(found), 1, found)
        return found[0]

    def test_runtime_depends_on_the_libraries_that_it_needs_and_no_others(self):
        package = self.package("pare-runtime")
        self.assertEqual(field(package, "Package"), "pare-runtime")
        needed = dependencies(package)
        self.assertTrue({"libc6", "libpcre2-8-0", "libstdc++6"} <= needed, needed)
        self.assertFalse({name for name in needed if re.search("torch|hdf5|yaml|python", name)}, needed)
        self.assertTrue(any(re.match(r"lib(gomp1|omp5)", name) for name in needed), needed)

    def test_runtime_runs(self):
        folder = unpacked(self.package("pare-runtime"))
        self.assertTrue(version_of(folder / "usr/bin/pare-runtime").startswith("pare-runtime "))
        self.assertEqual([path.name for path in (folder / "usr/bin").iterdir()], ["pare-runtime"])
        self.assertTrue((folder / "usr/share/man/man1/pare-runtime.1").exists())
        self.assertTrue((folder / "usr/share/doc/pare-runtime/copyright").exists())
        self.assertTrue((folder / "usr/share/zsh/vendor-completions/_pare-runtime").exists())  # as Debian has it

    def test_development_has_library_and_header(self):
        if "development" not in self.small:
            self.skipTest("a build with CUDA has no library")
        package = self.package("pare-dev")
        self.assertIn("libpcre2-dev", dependencies(package))
        folder = unpacked(package)
        self.assertTrue((folder / "usr/include/pare.h").exists())
        self.assertTrue((folder / "usr/lib/libpare_runtime.a").exists())

    def test_pare_has_libtorch_beside_it(self):
        if not HAS_LIBTORCH or os.environ.get("PARE_TEST_FULL") != "1":
            self.skipTest("packs LibTorch: for PARE_TEST_FULL=1, and builds with LibTorch")
        pack("DEB", temporary / "full", "CPACK_COMPONENTS_ALL=full")
        package, = (temporary / "full").glob("pare_[0-9]*.deb")
        needed = dependencies(package)
        self.assertTrue({"libc6", "libpcre2-8-0"} <= needed, needed)
        for name in ("libyaml-cpp", "libhdf5"):
            self.assertTrue(any(found.startswith(name) for found in needed), needed)
        folder = unpacked(package)
        self.assertTrue(version_of(folder / "usr/bin/pare").startswith("pare "))
        mapped = subprocess.run(["ldd", folder / "usr/bin/pare"], check=True, capture_output=True, text=True).stdout
        torch = re.search(r"libtorch_cpu\.so => (\S+)", mapped).group(1)
        self.assertEqual(os.path.realpath(torch), str((folder / "usr/lib/pare/libtorch_cpu.so").resolve()))


class Archive(unittest.TestCase):
    """The archive holds everything that was built, so the one of the runtime alone stands for all here."""

    def test_has_one_folder_whose_programs_run(self):
        if HAS_LIBTORCH and os.environ.get("PARE_TEST_FULL") != "1":
            self.skipTest("packs LibTorch: for PARE_TEST_FULL=1")
        pack("TGZ", temporary / "archive")
        package, = (temporary / "archive").glob("*.tar.gz")
        with tarfile.open(package) as archive:
            archive.extractall(temporary / "archive/unpacked")
        folder, = (temporary / "archive/unpacked").iterdir()
        self.assertEqual(f"{folder.name}.tar.gz", package.name)
        for program in sorted((folder / "bin").iterdir()):
            self.assertTrue(version_of(program).startswith(program.name + " "))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, required=True)
    arguments, rest = parser.parse_known_args()
    build = arguments.build.resolve()
    if not all(map(shutil.which, ("cpack", "dpkg-deb", "dpkg-shlibdeps", "file"))):
        print("skipped: there is no cpack, dpkg-deb, dpkg-shlibdeps or file")
        sys.exit(77)
    HAS_LIBTORCH = (build / "pare").exists()
    unittest.main(argv=sys.argv[:1] + rest)
