#!/usr/bin/env python3
"""Checks that no line of source has more than 120 columns. Exit status 1 and a line per offence.

usage: check_lines.py [ROOT]      --self-test alone: plants lines of each kind and expects the long ones to be found

Source is C++, CUDA, Python, CMake, shell, the Makefile, YAML and what configures tools; Markdown is checked by
check_prose.py. Files are found by folder, so that this works without git too. What was generated or taken as it is
(data, licences) is no source.
"""

import pathlib
import sys
import tempfile

MAX_COLUMNS = 120
SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake", ".yaml", ".yml"}
NAMES = {"CMakeLists.txt", "Makefile", ".clang-format", ".clang-tidy", ".gitignore", "CMakePresets.json"}
# At the top, what is made there; below, what is data.
NOT_OURS = ("build*", "models", "out", ".git", ".venv", ".kit")
DATA = "corpus"


def is_source(file):
    if file.suffix in SUFFIXES or file.name in NAMES:
        return True
    if file.suffix:
        return False
    with file.open("rb") as stream:
        return stream.read(2) == b"#!"


def source_files(root):
    for entry in sorted(root.iterdir()):
        if any(entry.match(pattern) for pattern in NOT_OURS):
            continue
        for file in sorted(entry.rglob("*")) if entry.is_dir() else [entry]:
            if (
                file.is_file()
                and not file.is_symlink()
                and not {"__pycache__", DATA} & set(file.parts)
                and is_source(file)
            ):
                yield file


def offences(root):
    for file in source_files(root):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if len(line) > MAX_COLUMNS:
                yield f"{file.relative_to(root)}:{number}: the line has {len(line)} columns, at most {MAX_COLUMNS}"


def self_test():
    long, short = "x" * 121 + "\n", "\u00e4" * 120 + "\n"
    files = {
        "runtime/a.cpp": short + long,
        "tests/b.py": long,
        ".ci/run": "#!/bin/bash\n" + long,
        "recipes/c.yaml": long,
        "CMakeLists.txt": long,
        ".github/workflows/d.yml": long,
        "runtime/short.h": short,
        "calibration_data/text.txt": long,
        "tests/corpus/00": long, "tests/corpus/g.yaml": long,
        "README.md": long,
        "build/e.cpp": long,
        "build-fuzz/f.cpp": long,
        "out/g.yaml": long,
        "models/h.py": long,
        ".git/hooks/i.sh": long,
    }
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        found = [":".join(line.split(":")[:2]) for line in offences(root)]
    expected = [
        ".ci/run:2",
        ".github/workflows/d.yml:1",
        "CMakeLists.txt:1",
        "recipes/c.yaml:1",
        "runtime/a.cpp:2",
        "tests/b.py:1",
    ]
    assert sorted(found) == expected, f"expected: {expected}\nfound: {found}"


if __name__ == "__main__":
    self_test()
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(0)
    lines = list(
        offences(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1]).resolve())
    )
    print("\n".join(lines), end="\n" if lines else "", file=sys.stderr)
    sys.exit(1 if lines else 0)
