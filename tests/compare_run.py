"""Runs a case of compare_builds.py in a folder of its own."""
import json
import os
import pathlib
import shutil
import subprocess

import compare_data

ROOT = pathlib.Path(__file__).resolve().parent.parent
THREADED = ("run", "calibrate", "record", "eval", "generate")  # commands with --threads


class Failed(Exception):
    """A program that ended otherwise than a case expects."""


def environment():
    return os.environ | {"OMP_WAIT_POLICY": "passive", "LC_ALL": "C"}


def call(program, words, folder, status=0, feed=None):
    """Standard output and standard error. Throws Failed where the program ends with another status."""
    done = subprocess.run([program, *words], cwd=folder, env=environment(), capture_output=True, text=True,
                          errors="replace", input=(folder / feed).read_text() if feed else None)
    if done.returncode != status:
        raise Failed(f"'{' '.join(words)}' ended with {done.returncode}: {done.stderr.strip()[-600:]}")
    return done.stdout, done.stderr


def spilling_budget(program, words, wanted, folder):
    """A --max-memory with which the run's activations are spilled so: less memory spills more, until the run is
    refused."""
    order = ["none", "inputs", "all", "refused"]
    low, high = 16, 4096  # MiB
    while low < high:
        budget = f"{(low + high) // 2}MiB"
        try:
            plan, _ = call(program, [*words, "--max-memory", budget, "--dry-run", "--json"], folder)
            spill = json.loads(plan)["spill"]
        except Failed:
            spill = "refused"
        if spill == wanted:
            return budget
        if order.index(spill) < order.index(wanted):
            high = (low + high) // 2
        else:
            low = (low + high) // 2 + 1
    raise Failed(f"no --max-memory makes 'spill: {wanted}'")


def make_links(scratch):
    """What a case's folder holds beside its recipes, by name; makes what is not in the repository."""
    for name in ("data", "models"):
        (scratch / name).mkdir()
    compare_data.write_data(scratch / "data", ROOT)
    return {name: ROOT / name for name in ("tests", "calibration_data")} | {
        name: scratch / name for name in ("data", "models")
    }


def held(program, scratch, name):
    """Copies, since a build may replace its programs while they are compared."""
    (scratch / name).mkdir()
    for other in ("pare-runtime",):
        if program.with_name(other).is_file():
            shutil.copy(program.with_name(other), scratch / name / other)
    return pathlib.Path(shutil.copy(program, scratch / name / "pare"))


def run_case(program, case, threads, folder, links):
    """Runs the case in `folder` and leaves its outputs alone there."""
    folder.mkdir(parents=True)
    for name, target in links.items():
        (folder / name).symlink_to(target)
    for name, text in case.files.items():
        (folder / name).write_text(text)
    for step in case.steps:
        words = list(step.words)
        called = program.with_name(step.program)
        if words[0] in THREADED and "--threads" not in words:
            words += ["--threads", str(threads)]
        if step.spill:
            words += ["--max-memory", spilling_budget(program, words, step.spill, folder)]
        if words[0] == "run":
            words.append("--quiet")
        for name, text in zip((step.capture, step.complaint), call(called, words, folder, step.status, step.feed)):
            if name:
                (folder / name).write_text(text)
    for name in [*links, *case.files]:
        (folder / name).unlink()
