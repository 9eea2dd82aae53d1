#!/usr/bin/env python3
"""CMakePresets.json: CMake reads it, each preset of configuring is complete, and what it sets is known to
CMakeLists.txt.

usage: presets_test.py --build FOLDER     FOLDER was configured with a LibTorch, or for the runtime alone
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMES = ["release", "development", "debug", "runtime-only", "cuda", "sanitize"]
build = None


def cached(folder, name):
    match = re.search(rf"^{name}:[A-Z]+=(.*)$", (folder / "CMakeCache.txt").read_text(), re.MULTILINE)
    return match.group(1) if match else ""


def cmake(*words):
    return subprocess.run(["cmake", *words], cwd=ROOT, capture_output=True, text=True)


class Presets(unittest.TestCase):
    def test_names(self):
        for kind in ("configure", "build", "test"):
            listed = cmake(f"--list-presets={kind}")
            self.assertEqual(listed.returncode, 0, listed.stderr)
            self.assertEqual(re.findall(r'^\s+"([^"]+)"', listed.stdout, re.MULTILINE), NAMES)

    def test_each_is_valid_and_sets_what_is_there(self):
        files = [ROOT / "CMakeLists.txt", *sorted((ROOT / "cmake").glob("*.cmake"))]
        options = "".join(path.read_text() for path in files)
        for preset in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]:
            shown = cmake("--preset", preset["name"], "-N")
            self.assertEqual(shown.returncode, 0, shown.stderr)
            for name in preset["cacheVariables"]:
                self.assertTrue(name == "CMAKE_BUILD_TYPE" or re.search(rf"\b(option|set)\({name}\b", options), name)
            self.assertRegex(preset["binaryDir"], r"^\$\{sourceDir\}/build")  # which .gitignore names

    # The others take as long and differ in values alone; cuda needs a compiler that is rarely there.
    def test_configuring(self):
        for name in ("runtime-only", "debug"):
            if name == "debug" and not cached(build, "LIBTORCH"):
                continue
            with tempfile.TemporaryDirectory() as folder:
                configured = cmake("--preset", name, "-B", folder, f"-DLIBTORCH={cached(build, 'LIBTORCH')}",
                                   "-DPARE_TESTS=OFF")
                self.assertEqual(configured.returncode, 0, configured.stderr)
                self.assertTrue((pathlib.Path(folder) / "build.ninja").exists())
                self.assertEqual(
                    cached(pathlib.Path(folder), "CMAKE_BUILD_TYPE"), "Debug" if name == "debug" else "Release"
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, required=True)
    arguments, rest = parser.parse_known_args()
    build = arguments.build
    unittest.main(argv=sys.argv[:1] + rest)
