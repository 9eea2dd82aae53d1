#!/usr/bin/env python3
"""Compares two builds of pare byte by byte, to prove that a change of the program changes nothing that it writes.

usage: compare_builds.py OLD/build/pare NEW/build/pare [--models small|smollm2|all] [--threads 1,2] [--only GLOB]
                         [--jobs N] [--cache DIR] [--keep DIR] [--smollm2 DIR] [--samples N] [--old-alone]
       compare_builds.py --self-test PARE       plants differences in copies of outputs and expects each to be found

Each case (compare_recipes.py, compare_training.py, compare_evaluations.py) runs with both programs, each in a folder of
its own. All files that they leave must be equal byte by byte, but for what compare_files.py lists as IGNORED and
CORRECTIONS. A pare-runtime is expected beside each pare. The old build's results are kept in --cache (default
build/compare-cache beside the new build), by the old program's SHA-256, the recipes, the inputs, the threads and the
processor's instruction sets. Exit status: 0 all equal, 1 a difference or a failed run, 2 wrong usage.
"""
import argparse
import collections
import concurrent.futures
import fnmatch
import hashlib
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
import threading
import time

import compare_evaluations
import compare_planted
import compare_recipes
import compare_training
from compare_case import Step
from compare_files import compare, summary
from compare_run import ROOT, THREADED, Failed, call, held, make_links, run_case


class Inputs:
    """Hashes of the files that a case's recipes and commands name."""

    def __init__(self, links):
        self.links, self.hashes, self.lock = links, {}, threading.Lock()

    def hash_of(self, path):
        with self.lock:
            if path not in self.hashes:
                digest = hashlib.sha256()
                for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
                    digest.update(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
                self.hashes[path] = digest.hexdigest()
            return self.hashes[path]

    def of(self, case):
        texts = list(case.files.values()) + [" ".join(step.words) for step in case.steps]
        found = {}
        for word in sorted(set(re.findall(r"[\w./-]+", " ".join(texts)))):
            top, _, rest = word.partition("/")
            if top in self.links and (self.links[top] / rest).exists():
                found[word] = self.hash_of(self.links[top] / rest)
        return found


def instruction_sets():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    return set(re.search(r"^flags\s*:(.*)$", text, re.MULTILINE).group(1).split())


def cached_old(program, program_hashes, case, threads, inputs, arguments, links):
    """The folder of the old build's outputs, and the seconds that making it took (0: it was there)."""
    key = {
        "programs": [program_hashes[name] for name in sorted({step.program for step in case.steps})],
        "files": case.files,
        "steps": [{name: value for name, value in step._asdict().items() if value != Step._field_defaults.get(name)}
                  for step in case.steps],
        "threads": threads,
        "inputs": inputs.of(case),
        "cpu": sorted(flag for flag in instruction_sets() if flag.startswith(("avx", "amx", "fma"))),
    }
    name = f"{case.name}-t{threads}-{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]}"
    place = arguments.cache / "results" / name
    if place.exists():
        return place, 0.0
    (arguments.cache / "results").mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=arguments.cache / "results") as folder:
        run_case(program, case, threads, pathlib.Path(folder) / "case", links)
        try:
            os.rename(pathlib.Path(folder) / "case", place)
        except OSError:
            if not place.exists():  # else another comparison was quicker
                raise
    return place, time.monotonic() - start


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def compare_case(case, threads, arguments, old_hashes, inputs, links, scratch):
    """What compare() gives, or how a program failed; seconds of the old and of the new build."""
    seconds_old = seconds_new = 0.0
    try:
        old, seconds_old = cached_old(arguments.old, old_hashes, case, threads, inputs, arguments, links)
    except Failed as error:
        return [f"old build: {error}"], [], seconds_old, seconds_new
    if arguments.old_alone:
        return [], [], seconds_old, seconds_new
    kept = (arguments.keep or scratch) / f"{case.name}-t{threads}"
    start = time.monotonic()
    try:
        run_case(arguments.new, case, threads, kept, links)
    except Failed as error:
        return [f"new build: {error}"], [], seconds_old, seconds_new
    seconds_new = time.monotonic() - start
    differences, corrected = compare(case.name, old, kept)
    if not arguments.keep:
        shutil.rmtree(kept)
    return differences, corrected, seconds_old, seconds_new


def find_smollm2(arguments):
    """The imported checkpoint that .ci/demo makes; imported by the old build where only its GGUF file is there."""
    for place in (arguments.smollm2, ROOT / "models/smollm2-135m", arguments.cache / "models/smollm2-135m"):
        if place and (place / "config.json").exists():
            return place.resolve()
    cache = pathlib.Path(
        os.environ.get("PARE_CACHE")
        or pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "pare"
    )
    for file in sorted((cache / "smollm2").glob("*.gguf")):
        (arguments.cache / "models").mkdir(parents=True, exist_ok=True)
        call(arguments.old, ["import", str(file), str(arguments.cache / "models/smollm2-135m")], arguments.cache)
        return (arguments.cache / "models/smollm2-135m").resolve()
    sys.exit(
        f"no SmolLM2 in models/smollm2-135m nor {cache}/smollm2: make demo fetches it, or name a checkpoint with "
        "--smollm2"
    )


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=pathlib.Path)
    parser.add_argument("new", type=pathlib.Path, nargs="?")
    parser.add_argument("--models", choices=["small", "smollm2", "all"], default="small")
    parser.add_argument("--threads", default="", help="of each run, such as 1,2 (default: 1,2; smollm2: 2)")
    parser.add_argument("--only", default="*", metavar="GLOB", help="cases by name")
    parser.add_argument("--jobs", type=int, default=1, help="cases that run at the same time")
    parser.add_argument("--cache", type=pathlib.Path, help="where the old build's results are kept")
    parser.add_argument("--keep", type=pathlib.Path, help="an empty folder for the new build's outputs")
    parser.add_argument("--smollm2", type=pathlib.Path, help="SmolLM2-135M as a Hugging Face directory")
    parser.add_argument(
        "--samples",
        type=int,
        default=compare_recipes.SAMPLES,
        help="calibration windows of SmolLM2's recipes (published: 128)",
    )
    parser.add_argument("--old-alone", action="store_true", help="fill the cache and stop")
    arguments = parser.parse_args()
    if arguments.new is None and not arguments.old_alone:
        parser.error("name two programs, or --old-alone")
    for name in ("old", "new"):
        path = getattr(arguments, name)
        if path is not None:
            if not path.is_file():
                parser.error(f"{path}: no such program")
            setattr(arguments, name, path.resolve())
    if arguments.cache is None:
        arguments.cache = (arguments.new or arguments.old).parent / "compare-cache"
    arguments.cache = arguments.cache.resolve()
    if arguments.keep is not None:
        arguments.keep = arguments.keep.resolve()
        arguments.keep.mkdir(parents=True, exist_ok=True)
        if any(arguments.keep.iterdir()):
            parser.error(f"--keep {arguments.keep}: not empty")
    return arguments


def small_cases():
    return [*compare_recipes.rounded(), *compare_training.trained(), *compare_evaluations.evaluated()]


def chosen_cases(arguments):
    """(case, threads) in order."""
    flags = instruction_sets()
    cases = small_cases() if arguments.models != "smollm2" else []
    large = list(compare_recipes.smollm2(ROOT / "recipes", arguments.samples)) if arguments.models != "small" else []
    counts = [int(n) for n in arguments.threads.split(",") if n]
    for case in cases + large:
        if not fnmatch.fnmatchcase(case.name, arguments.only):
            continue
        case = case._replace(steps=[step for step in case.steps if step.needs_cpu is None or step.needs_cpu in flags])
        is_threaded = any(step.words[0] in THREADED for step in case.steps)
        for threads in (counts or ([2] if case in large else [1, 2]))[:None if is_threaded else 1]:
            yield case, threads


def main():
    arguments = parse_arguments()
    chosen = list(chosen_cases(arguments))
    if not chosen:
        sys.exit(f"--only {arguments.only}: no case has such a name")
    arguments.cache.mkdir(parents=True, exist_ok=True)
    total = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="compare-", dir=arguments.cache) as name:
        scratch = pathlib.Path(name)
        arguments.old = held(arguments.old, scratch, "old")
        arguments.new = arguments.new and held(arguments.new, scratch, "new")
        old_hashes = {name: sha256(path) for name in ("pare", "pare-runtime")
                      if (path := arguments.old.with_name(name)).is_file()}
        links = make_links(scratch)
        if arguments.models != "small":
            (scratch / "models/smollm2-135m").symlink_to(find_smollm2(arguments))
        inputs = Inputs(links)
        start = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            pending = [
                (case, threads, pool.submit(compare_case, case, threads, arguments, old_hashes, inputs, links, scratch))
                for case, threads in chosen
            ]
            for case, threads, future in pending:
                differences, corrected, seconds_old, seconds_new = future.result()
                verdict = (
                    "DIFFERS"
                    if differences
                    else "corrected" if corrected else "cached" if arguments.old_alone else "same"
                )
                total[verdict] += 1
                total["old"] += seconds_old
                total["new"] += seconds_new
                seconds = f"{seconds_new:7.1f} s" + (f"  (old {seconds_old:.1f} s)" if seconds_old else "")
                print(
                    f"{verdict:10} {threads} thread{'s' if threads > 1 else ' '}  {case.name:45}{seconds}", flush=True
                )
                for line in (
                    differences[:1]
                    + ([f"and {len(differences) - 1} more places"] if len(differences) > 1 else [])
                    + summary(corrected)
                ):
                    print(f"           {line}", flush=True)
    used = os.times()
    cpu = used.children_user + used.children_system
    print(
        f"{len(chosen)} runs: "
        + ", ".join(f"{total[v]} {v}" for v in ("same", "corrected", "DIFFERS", "cached") if total[v])
        + f"; {time.monotonic() - start:.0f} s ({total['old']:.0f} s of the old build, {total['new']:.0f} s of the "
          f"new; {cpu:.0f} s of processor time)"
    )
    return 1 if total["DIFFERS"] else 0


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--self-test":
        sys.exit(compare_planted.self_test(pathlib.Path(sys.argv[2]).resolve()))
    sys.exit(main())
