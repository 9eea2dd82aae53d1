#!/usr/bin/env python3
"""Plants bugs into the CUDA kernels, one at a time, and runs the tests of tests/cuda on the emulated device: each must
be found.

usage: run.py BUILD [--jobs N] [--only TEXT]      BUILD: a build folder with test_cuda_plain, test_cuda_asan and
    test_cuda_race made
       run.py --check-table                       only looks whether every planted text stands once in its file

For each bug of table.py a copy of the file with the bug is compiled, as its build compiles it, and linked in front of
the kernels' library; the tests that the table names run until the first fails. The build that is most likely to see
that kind of bug goes first. What no build finds is a survivor: the tests lack something. A file that is not changed
also goes through, and must pass. The exit status is 1 with survivors.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from table import MUTANTS  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[3]
KERNELS = ROOT / "runtime" / "cuda"
BUILDS = ("plain", "race", "asan")
FIRST_BUILD = {"barrier": "race", "race": "race", "bounds": "asan"}
LIMIT_SECONDS = 300
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


def changed_text(mutant):
    text = (KERNELS / mutant.file).read_text()
    if text.count(mutant.text) != 1:
        sys.exit(f"mutants: {mutant.file}: found {text.count(mutant.text)} times, expected once:\n{mutant.text}")
    return text.replace(mutant.text, mutant.replacement)


class Commands:
    """How each build compiles a kernel file and links its test program."""

    def __init__(self, build):
        self.build = build
        self.compile = {}
        for entry in json.loads((build / "compile_commands.json").read_text()):
            for name in BUILDS:
                if f"pare_cuda_{name}.dir" in entry["command"]:
                    words = [word for word in shlex.split(entry["command"]) if not word.endswith("ccache")]
                    self.compile[name, pathlib.Path(entry["file"]).name] = words
        self.link = {}
        for name in BUILDS:
            done = subprocess.run(
                ["ninja", "-C", build, "-t", "commands", "-s", f"tests/cuda/test_cuda_{name}"],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            line = next(line for line in done.stdout.splitlines() if f"-o tests/cuda/test_cuda_{name} " in line)
            self.link[name] = shlex.split(line.removeprefix(": && ").split(" && ")[0])

    def make(self, name, mutant, folder):
        """The test program of that build with the bug in it."""
        source = mutant.compiled or mutant.file
        place = folder / "runtime" / "cuda" / mutant.file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(changed_text(mutant))
        words = list(self.compile[name, source])
        words[words.index("-o") + 1] = str(folder / f"{name}.o")
        if source == mutant.file:
            words[words.index("-c") + 1] = str(place)
        # Before the project's own folder, and no warning is an error: what a bug leaves behind may be unused.
        words[1:1] = [f"-I{folder}"]
        run(words + ["-Wno-error", "-w"], self.build, f"{mutant.name()} does not compile")
        link = list(self.link[name])
        program = folder / f"test_{name}"
        link[link.index("-o") + 1] = str(program)
        link.insert(link.index("-o"), str(folder / f"{name}.o"))
        run(link, self.build, f"{mutant.name()} does not link")
        return program


class Broken(Exception):
    """A mutant that cannot be tried."""


def run(words, folder, what):
    done = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise Broken(f"{what}:\n{done.stdout[-3000:]}")


def first_failure(program, tests):
    """What the tests say of the bug; None where all pass."""
    try:
        done = subprocess.run(
            [program, f"--gtest_filter={tests}", "--gtest_throw_on_failure", "--gtest_brief=1"],
            cwd=program.parent,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=LIMIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"more than {LIMIT_SECONDS} s"
    if done.returncode == 0:
        if " 0 tests from " in done.stdout or "0 tests ran" in done.stdout:
            raise Broken(f"no test is named {tests}")
        return None
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    for number, line in enumerate(lines):
        if line.endswith("Failure"):
            return " ".join(lines[number + 1:number + 3])[:160]
    return (lines or [""])[-1][:160] + f" (status {done.returncode})"


def try_mutant(commands, mutant):
    """(build, what it said), or None for a survivor."""
    order = sorted(BUILDS, key=lambda name: name != FIRST_BUILD.get(mutant.kind, "plain"))
    with tempfile.TemporaryDirectory(prefix="pare-mutant-") as folder:
        for name in order:
            failure = first_failure(commands.make(name, mutant, pathlib.Path(folder)), mutant.tests)
            if failure is not None:
                return name, failure
    return None


def check_unchanged(commands):
    """Every build with a file that is as it was: the tests pass, so that what they find is the bug."""
    for name in BUILDS:
        with tempfile.TemporaryDirectory(prefix="pare-mutant-") as folder:
            same = MUTANTS[0].unchanged()
            failure = first_failure(commands.make(name, same, pathlib.Path(folder)), same.tests)
            if failure is not None:
                sys.exit(f"mutants: the {name} build fails without a bug: {failure}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=pathlib.Path, nargs="?")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="bugs whose file, kind or text contains this")
    parser.add_argument("--check-table", action="store_true")
    arguments = parser.parse_args()
    for mutant in MUTANTS:
        changed_text(mutant)
    if arguments.check_table:
        return 0
    commands = Commands(arguments.build.resolve())
    check_unchanged(commands)
    chosen = [
        mutant for mutant in MUTANTS if any(arguments.only in text for text in (mutant.file, mutant.kind, mutant.text))
    ]
    start, survivors = time.monotonic(), []
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        futures = {pool.submit(try_mutant, commands, mutant): mutant for mutant in chosen}
        for future in concurrent.futures.as_completed(futures):
            mutant = futures[future]
            try:
                found = future.result()
            except Broken as error:
                pool.shutdown(cancel_futures=True)
                sys.exit(f"mutants: {error}")
            print(f"{mutant.name()}: " + (f"found by {found[0]}: {found[1]}" if found else "SURVIVED"), flush=True)
            survivors += [] if found else [mutant]
    for mutant in survivors:
        print(f"\nSURVIVED: {mutant.name()}\n--- \n{mutant.text}\n+++\n{mutant.replacement}")
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} planted bugs found in {time.monotonic() - start:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
