#!/usr/bin/env python3
"""On a processor without x86-64-v3 a program ends with one sentence on standard error and status 1, before anything
else of it runs. The processors are QEMU's, which emulates their instructions and refuses those that they do not have.

usage: processor_test.py PROGRAM
Status 77: there is no qemu-x86_64 (Debian: qemu-user).
"""
import pathlib
import shutil
import subprocess
import sys

# Name of a processor -> features that it lacks and the sentence must name, and one that it has.
OLD_PROCESSORS = {
    "qemu64": (["SSSE3", "AVX2", "FMA"], "SSE3"),
    "Nehalem": (["AVX", "AVX2", "FMA", "F16C", "BMI2"], "POPCNT"),
    "Haswell,-fma": (["FMA"], "AVX2"),
}


def run(program, processor):
    return subprocess.run(["qemu-x86_64", "-cpu", processor, program, "--version"], capture_output=True, text=True,
                          timeout=300)


def problems_of(program):
    name = pathlib.Path(program).name
    for processor, (missing, present) in OLD_PROCESSORS.items():
        result = run(program, processor)
        # QEMU warns of features that it cannot emulate.
        lines = [line for line in result.stderr.splitlines() if not line.startswith("qemu-x86_64: warning")]
        if result.returncode != 1 or result.stdout or len(lines) != 1:
            yield f"{processor}: expected status 1 and one line, found {result.returncode}, {result.stdout!r}, {lines}"
            continue
        sentence, _, named = lines[0].partition("missing: ")
        features = named.split(", ")
        if (
            not sentence.startswith(f"{name}: this processor ")
            or not set(missing) <= set(features)
            or present in features
        ):
            yield f"{processor}: expected that {missing} are missing and {present} is not, found '{lines[0]}'"
    result = run(program, "max")
    if result.returncode != 0 or not result.stdout.startswith(name):
        yield f"max: expected the version, found {result.returncode}, {result.stdout!r}, {result.stderr!r}"


def main():
    if not shutil.which("qemu-x86_64"):
        print("skipped: there is no qemu-x86_64")
        return 77
    problems = list(problems_of(sys.argv[1]))
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
