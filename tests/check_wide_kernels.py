#!/usr/bin/env python3
"""Objects compiled for more than the baseline must export no inline code.

    check_wide_kernels.py ARCHITECTURE NM COMPILER LIBRARY

ARCHITECTURE is x86 or aarch64.
The linker keeps one copy of an inline function or template that several objects hold. If it is that of an object
compiled for AVX-512, the program stops with an illegal instruction on processors without it, in code that has nothing
to do with kernels. Weak symbols of those objects are such copies.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

# Of each architecture: the sets beyond the baseline, the fewest objects for them, the option that a planted one takes.
ARCHITECTURES = {
    "x86": (("avx512", "avxvnni", "vnni", "avx512bf16", "amx"), 13, "-mavx512f"),
    "aarch64": (("dotprod", "i8mm"), 3, "-march=armv8.2-a+dotprod"),
}
# Data that holds a pointer, which every object with exceptions has: no code.
POINTERS = re.compile(r"^DW\.ref\.")
PLANTED = """
template <typename T>
[[gnu::noinline]] T twice(T value) { return value + value; }
float planted(float value) { return twice(value); }
"""


def weak_symbols(nm, path, sets):
    """The objects for more than the baseline in a library or object file, and (object, symbol) of weak code."""
    listing = subprocess.run([nm, "-A", "-C", path], check=True, capture_output=True, text=True).stdout
    wide = re.compile(rf"_({'|'.join(sets)})\.cpp\.o\b|planted_{sets[0]}\.o\b")
    objects, found = set(), []
    for line in listing.splitlines():
        match = re.match(r"(.*):(?:[0-9a-f]+)?\s+([A-Za-z]) (.*)$", line)
        if match is None or not wide.search(match[1]):
            continue
        objects.add(match[1])
        if match[2] in "WVu" and not POINTERS.match(match[3]):
            found.append((match[1], match[3]))
    return objects, found


def main():
    architecture, nm, compiler, library = sys.argv[1:]
    sets, expected_objects, option = ARCHITECTURES[architecture]
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "planted.cpp"
        planted = pathlib.Path(folder) / f"planted_{sets[0]}.o"
        source.write_text(PLANTED)
        subprocess.run([compiler, "-O1", option, "-c", source, "-o", planted], check=True)
        if not weak_symbols(nm, str(planted), sets)[1]:
            sys.exit(f"check_wide_kernels: the template of {source.name} was not found: the check sees nothing")
    objects, found = weak_symbols(nm, library, sets)
    if len(objects) < expected_objects:
        sys.exit(f"check_wide_kernels: {library}: expected at least {expected_objects} objects of wide kernels, found "
                 f"{len(objects)}: {sorted(objects)}")
    for name, symbol in found:
        print(f"{name} exports {symbol}: keep it out of kernels, or give it internal linkage")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
