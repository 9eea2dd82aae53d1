#!/usr/bin/env python3
"""Checks who includes whom: DESIGN.md, "The house". Exit status 1 and one line per offence; prints nothing when all is well.

usage: check_includes.py [ROOT]      --self-test plants one offence of each kind and expects it to be found
"""
import pathlib
import re
import sys
import tempfile

# Folder -> folders of ours it may include (itself is always allowed). The longest matching prefix of a file decides.
MAY_INCLUDE = {
    "runtime/format": set(),
    "runtime": {"runtime/format"},
    "quant": {"runtime/format"},
    "compress": {"quant", "runtime", "runtime/format"},
    "tests": {"compress", "quant", "runtime", "runtime/format"},
}
# External header -> files that may include it.
ONLY_IN = [
    (re.compile(r"^(ATen|torch|c10)/"), re.compile(r"^(compress|quant|tests/compress|tests/quant|tests/bench)/")),
    (re.compile(r"^yaml-cpp/"), re.compile(r"^compress/yaml_value\.cpp$")),
    (re.compile(r"^cxxopts"), re.compile(r"^runtime/command_line\.cpp$")),
    (re.compile(r"^pcre2"), re.compile(r"^runtime/tokenizer/[^/]*\.(cpp|h)$")),
    (re.compile(r"^nlohmann/"), re.compile(r"^((runtime|compress)/.*\.cpp|tests/.*)$")),
    (re.compile(r"^Eigen/"), re.compile(r"^(quant|tests/quant)/.*\.cpp$")),
    (re.compile(r"^(hdf5|H5)"), re.compile(r"^(compress|distill)/")),
]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def folder_of(path):
    found = [folder for folder in MAY_INCLUDE if path.startswith(folder + "/")]
    return max(found, key=len) if found else None


def offences(root):
    files = sorted(p for folder in {f.split("/")[0] for f in MAY_INCLUDE} for p in (root / folder).rglob("*") if p.suffix in {".h", ".cpp", ".cu", ".cuh"})
    graph = {}
    for file in files:
        name = file.relative_to(root).as_posix()
        graph[name] = []
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            quoted, target = match.group(1) == '"', match.group(2)
            where = f"{name}:{number}: "
            if quoted:
                if not (root / target).is_file():
                    yield where + f'"{target}" is no file of the project: write it from the top folder'
                    continue
                graph[name].append(target)
                mine, theirs = folder_of(name), folder_of(target)
                if theirs != mine and theirs not in MAY_INCLUDE[mine]:
                    yield where + f"{mine} may not include {theirs}"
            else:
                for pattern, allowed in ONLY_IN:
                    if pattern.match(target) and not allowed.match(name):
                        yield where + f"<{target}> is allowed only in {allowed.pattern}"
    yield from cycles(graph)


def cycles(graph):
    state = {}

    def visit(name, trail):
        state[name] = "open"
        for target in graph.get(name, []):
            if state.get(target) == "open":
                yield "include cycle: " + " -> ".join(trail[trail.index(target):] + [target] if target in trail else [name, target])
            elif target not in state:
                yield from visit(target, trail + [target])
        state[name] = "done"

    for name in graph:
        if name not in state:
            yield from visit(name, [name])


def self_test():
    planted = {
        "runtime/a.cpp": '#include "quant/b.h"\n#include <ATen/ATen.h>\n#include <yaml-cpp/yaml.h>\n',
        "runtime/format/c.h": '#include "runtime/d.h"\n',
        "runtime/d.h": '#include "runtime/e.h"\n#include "runtime/missing.h"\n',
        "runtime/e.h": '#include "runtime/d.h"\n',
        "quant/b.h": '#include "runtime/d.h"\n#include <cxxopts.hpp>\n',
    }
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in planted.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        found = "\n".join(offences(root))
    for expected in ("runtime may not include quant", "<ATen/ATen.h>", "<yaml-cpp/yaml.h>", "runtime/format may not include runtime", "runtime/missing.h", "include cycle", "quant may not include runtime", "<cxxopts.hpp>"):
        assert expected in found, f"planted offence not found: {expected}\n{found}"


if __name__ == "__main__":
    self_test()
    lines = list(offences(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)))
    print("\n".join(lines), end="\n" if lines else "", file=sys.stderr)
    sys.exit(1 if lines else 0)
