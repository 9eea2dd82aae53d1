#!/usr/bin/env python3
"""That the tests of tests/cuda that are for a GPU too link there: of the emulator they use nothing that real_device.cpp
lacks.

usage: check_device_tests.py --nm NM --defined OBJECT... --used OBJECT...
"""
import argparse
import re
import subprocess
import sys


def symbols(nm, which, objects):
    lines = subprocess.run(
        [nm, "-C", which, *objects], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.splitlines()
    # [value] type name; weak ones are of a type of their own and count alike.
    found = (re.match(r"[0-9a-f]*\s*[A-Za-z] (.*)", line) for line in lines)
    return {match.group(1) for match in found if match and match.group(1).startswith("pare::emulation::")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nm", required=True)
    parser.add_argument("--defined", nargs="+", required=True)
    parser.add_argument("--used", nargs="+", required=True)
    arguments = parser.parse_args()
    defined = symbols(arguments.nm, "--defined-only", arguments.defined)
    used = symbols(arguments.nm, "--undefined-only", arguments.used)
    assert defined and used, "the objects name nothing of the emulator: are they those of the tests?"
    for name in sorted(used - defined):
        print(
            f"{name} is used by a test for a GPU, and real_device.cpp lacks it: the test belongs in emulated_*_test.cpp"
        )
    return 1 if used - defined else 0


if __name__ == "__main__":
    sys.exit(main())
