#!/usr/bin/env python3
"""Exactly one OpenMP runtime is loaded into a program: two would keep two teams of threads, and settings of one would
not be the other's.

usage: one_openmp_test.py PROGRAM
"""
import pathlib
import re
import subprocess
import sys

RUNTIME = re.compile(r"^lib(gomp|omp|iomp5)\b.*\.so")


def runtimes(program):
    """The files of OpenMP runtimes that the loader maps; libraries under two names may be one file."""
    lines = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout.splitlines()
    found = set()
    for line in lines:
        name, _, rest = line.strip().partition(" => ")
        if RUNTIME.match(pathlib.Path(name).name) and rest.startswith("/"):
            found.add(pathlib.Path(rest.split(" (")[0]).resolve())
    return found


def main():
    found = runtimes(sys.argv[1])
    if len(found) != 1:
        print(f"{sys.argv[1]}: expected one OpenMP runtime, found {sorted(map(str, found))}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
