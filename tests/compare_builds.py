#!/usr/bin/env python3
"""Compares two builds of pare byte by byte, to prove that a change of the program changes nothing that it writes.

usage: compare_builds.py OLD/build/pare NEW/build/pare [--models small|smollm2|all] [--threads 1,2] [--only GLOB]
    [--jobs N]
                         [--cache DIR] [--keep DIR] [--smollm2 DIR] [--samples N] [--old-alone]
       compare_builds.py --self-test PARE       plants differences in copies of outputs and expects each to be found

Each case (compare_recipes.py) runs with both programs, each in a folder of its own. All files that they leave must be
equal byte by byte, but for what IGNORED and CORRECTIONS list. The old build's results are kept in --cache (default
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
import struct
import subprocess
import sys
import tempfile
import threading
import time

import compare_recipes
from compare_recipes import Case, Step, read_safetensors, write_safetensors

ROOT = pathlib.Path(__file__).resolve().parent.parent
THREADED = ("run", "calibrate", "eval", "generate")  # commands with --threads

# File name -> JSON paths (globs) that say which program wrote it or how long it took.
IGNORED = {
    "pare.json": [
        "pare",
        "fingerprint",
        "engines",
        "calibration.statistics_sha256",
        "calibration.statistics_pare",
        "sha256",
    ],
    "eval*.json": ["seconds", "tokens_per_second", "peak_memory_bytes"],
    "report.json": [
        "budget.measured.seconds",
        "budget.measured.tokens_per_second",
        "budget.measured.peak_memory_bytes",
    ],
}
# Of report.json only these are compared: what was computed, not what was measured of the machine.
REPORTED = [
    "sensitivity",
    "budget",
    "events",
    "layers",
    "output_bytes",
    "bits_per_weight",
    "bits_per_weight_without_head",
]
# Intended changes: (case, file, JSON path, tensor or "" for the whole file; all globs) -> why. Each use is printed.
ORDER = "gptq's order of columns is recorded for layers without groups as well"
EVENTS = "dead columns and too few tokens for a Hessian are events of every pass and layer"
CORRECTIONS = {
    ("*", "*pare.json", "layers*.act_order"): ORDER,
    ("*", "*pare.json", "*events*"): EVENTS,
    ("*", "*report.json", "events*"): EVENTS,
}


class Failed(Exception):
    """A program that ended otherwise than a case expects."""


# --- differences ---


def json_differences(old, new, path=""):
    """Yields (path, what); values are exact, since numbers are read as their texts."""
    if type(old) is not type(new):
        yield path, f"{shown(old)} became {shown(new)}"
    elif isinstance(old, dict):
        here = path + "." if path else ""
        for name in old:
            if name not in new:
                yield here + name, "is gone"
            else:
                yield from json_differences(old[name], new[name], here + name)
        for name in new:
            if name not in old:
                yield here + name, f"is new: {shown(new[name])}"
        if list(old) != list(new) and set(old) == set(new):
            yield path, "keys in another order"
    elif isinstance(old, list):
        for i, (a, b) in enumerate(zip(old, new)):
            yield from json_differences(a, b, f"{path}[{i}]")
        if len(old) != len(new):
            yield path, f"{len(old)} items became {len(new)}"
    elif old != new:
        yield path, f"{shown(old)} became {shown(new)}"


def shown(value):
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


def parse_json(data):
    def exact(number):
        return f"number {number}"
    return json.loads(data, parse_float=exact, parse_int=exact)


def tensor_differences(old_path, new_path):
    (old, old_metadata), (new, new_metadata) = read_safetensors(old_path), read_safetensors(new_path)
    found = False
    for name in sorted(old.keys() | new.keys()):
        if name not in new or name not in old:
            yield name, f"tensor is {'gone' if name in old else 'new'}"
            found = True
    for name in sorted(old.keys() & new.keys()):
        (old_type, old_shape, a), (new_type, new_shape, b) = old[name], new[name]
        if (old_type, old_shape) != (new_type, new_shape):
            yield name, f"{old_type} {old_shape} became {new_type} {new_shape}"
            found = True
        elif a != b:
            elements = 1
            for extent in old_shape:
                elements *= extent
            size = max(1, len(a) // max(1, elements))
            at = first_difference(a, b) // size * size
            yield name, (
                f"{old_type} {old_shape}, first at element {at // size}: bytes {a[at:at + size].hex()} became "
                f"{b[at:at + size].hex()}"
            )
            found = True
    if old_metadata != new_metadata:
        yield "__metadata__", f"{shown(old_metadata)} became {shown(new_metadata)}"
    elif not found:
        yield "", "same tensors, but the header or the order of the file differs"


def first_difference(a, b):
    low, high = 0, min(len(a), len(b))  # the first differing byte is in [low, high]
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if a[low:middle + 1] != b[low:middle + 1] else (middle + 1, high)
    return low


def hdf5_text(path):
    """The whole file as h5dump writes it, floats with 9 digits, without who wrote it."""
    text = subprocess.run(["h5dump", "-m", "%.9g", path], check=True, capture_output=True, text=True).stdout
    text = text[text.index("\n") + 1:]  # the first line names the file
    return re.sub(r'ATTRIBUTE "(pare|libtorch)" \{.*?\n   \}\n', "", text, flags=re.DOTALL).splitlines()


def hdf5_differences(old_path, new_path):
    old, new = hdf5_text(old_path), hdf5_text(new_path)
    where = []
    for i, (a, b) in enumerate(zip(old, new)):
        match = re.match(r'( *)(?:GROUP|DATASET|ATTRIBUTE) "([^"]*)"', a)
        if match:
            where = [item for item in where if item[0] < len(match.group(1))] + [(len(match.group(1)), match.group(2))]
        if a != b:
            yield "/".join(name for _, name in where), f"'{a.strip()[:60]}' became '{b.strip()[:60]}'"
            return
    if len(old) != len(new):
        yield "", "holds more or fewer objects"


def file_differences(name, old_path, new_path):
    """Yields (place in the file, what differs)."""
    old, new = old_path.read_bytes(), new_path.read_bytes()
    base = os.path.basename(name)
    if old == new:
        return
    if base.endswith(".json"):
        a, b = parse_json(old), parse_json(new)
        if base == "report.json":
            a, b = ({key: value for key, value in item.items() if key in REPORTED} for item in (a, b))
        ignored = [path for pattern, paths in IGNORED.items() if fnmatch.fnmatch(base, pattern) for path in paths]
        differences = list(json_differences(a, b))
        for path, what in differences:
            if not any(path == item or path.startswith((item + ".", item + "[")) for item in ignored):
                yield path, what
        if not differences and base != "report.json":
            yield "", "the same values, written otherwise"
    elif base.endswith(".safetensors"):
        yield from tensor_differences(old_path, new_path)
    elif base.endswith(".h5"):
        yield from hdf5_differences(old_path, new_path)
    else:
        at = first_difference(old, new)
        yield "", f"byte {at} of {len(old)} (new: {len(new)}): {old[at:at + 8]!r} became {new[at:at + 8]!r}"


def output_files(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def matches(pattern, text):
    return fnmatch.fnmatchcase(text, pattern.replace("[", "[[]"))


def compare(case_name, old, new):
    """Lines of differences, and (why, line) of those that CORRECTIONS lists."""
    differences, corrected = [], []
    names = sorted(set(output_files(old)) | set(output_files(new)))
    for name in names:
        if not (old / name).exists() or not (new / name).exists():
            found = [("", "the file is " + ("new" if (new / name).exists() else "gone"))]
        else:
            found = file_differences(name, old / name, new / name)
        for place, what in found:
            line = f"{name}: {place + ': ' if place else ''}{what}"
            why = next(
                (
                    why
                    for (case, file, path), why in CORRECTIONS.items()
                    if matches(case, case_name)
                    and matches(file, name)
                    and (matches(path, place) if path else not place)
                ),
                None,
            )
            if why is None:
                differences.append(line)
            else:
                corrected.append((why, line))
    return differences, corrected


def summary(corrected):
    """A line for each reason, with its first place."""
    first = {}
    for why, line in corrected:
        first.setdefault(why, line)
    return [f"intended ({why}): {line}" + (f" and {count - 1} more" if count > 1 else "") for why, line in first.items()
            for count in [sum(reason == why for reason, _ in corrected)]]


# --- runs ---


def environment():
    return os.environ | {"OMP_WAIT_POLICY": "passive", "LC_ALL": "C"}


def call(program, words, folder):
    done = subprocess.run(
        [program, *words], cwd=folder, env=environment(), capture_output=True, text=True, errors="replace"
    )
    if done.returncode != 0:
        raise Failed(f"'{' '.join(words)}' ended with {done.returncode}: {done.stderr.strip()[-600:]}")
    return done.stdout


def spilling_budget(program, words, wanted, folder):
    """A --max-memory with which the run's activations are spilled so: less memory spills more, until the run is
    refused."""
    order = ["none", "inputs", "all", "refused"]
    low, high = 16, 4096  # MiB
    while low < high:
        budget = f"{(low + high) // 2}MiB"
        try:
            spill = json.loads(call(program, [*words, "--max-memory", budget, "--dry-run", "--json"], folder))["spill"]
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
    compare_recipes.write_data(scratch / "data", ROOT)
    return {name: ROOT / name for name in ("tests", "calibration_data")} | {
        name: scratch / name for name in ("data", "models")
    }


def run_case(program, case, threads, folder, links):
    """Runs the case in `folder` and leaves its outputs alone there."""
    folder.mkdir(parents=True)
    for name, target in links.items():
        (folder / name).symlink_to(target)
    for name, text in case.files.items():
        (folder / name).write_text(text)
    for step in case.steps:
        words = list(step.words)
        if words[0] in THREADED:
            words += ["--threads", str(threads)]
        if step.spill:
            words += ["--max-memory", spilling_budget(program, words, step.spill, folder)]
        if words[0] == "run":
            words.append("--quiet")
        output = call(program, words, folder)
        if step.capture:
            (folder / step.capture).write_text(output)
    for name in [*links, *case.files]:
        (folder / name).unlink()


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


def cached_old(program, program_hash, case, threads, inputs, arguments, links):
    """The folder of the old build's outputs, and the seconds that making it took (0: it was there)."""
    key = {
        "program": program_hash,
        "files": case.files,
        "steps": case.steps,
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


def held(program, scratch, name):
    """A copy, since a build may replace its program while it is compared."""
    (scratch / name).mkdir()
    return pathlib.Path(shutil.copy(program, scratch / name / "pare"))


def compare_case(case, threads, arguments, old_hash, inputs, links, scratch):
    """What compare() gives, or how a program failed; seconds of the old and of the new build."""
    seconds_old = seconds_new = 0.0
    try:
        old, seconds_old = cached_old(arguments.old, old_hash, case, threads, inputs, arguments, links)
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


def chosen_cases(arguments):
    """(case, threads) in order."""
    flags = instruction_sets()
    cases = list(compare_recipes.small()) if arguments.models != "smollm2" else []
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
        old_hash = sha256(arguments.old)
        links = make_links(scratch)
        if arguments.models != "small":
            (scratch / "models/smollm2-135m").symlink_to(find_smollm2(arguments))
        inputs = Inputs(links)
        start = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            pending = [
                (case, threads, pool.submit(compare_case, case, threads, arguments, old_hash, inputs, links, scratch))
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


# --- the test of this script ---


def flip(path, offset, mask=1):
    data = bytearray(path.read_bytes())
    data[offset] ^= mask
    path.write_bytes(bytes(data))


def edit_json(path, change):
    value = json.loads(path.read_bytes())
    change(value)
    path.write_text(json.dumps(value, indent=2) + "\n")


def replace_bytes(path, old, new):
    data = path.read_bytes()
    assert old in data and len(old) == len(new), (path, old)
    path.write_bytes(data.replace(old, new))


def move_tensor(path):
    tensors, metadata = read_safetensors(path)
    write_safetensors(path, dict(reversed(tensors.items())), metadata)


def version_of(folder):
    return json.loads((folder / "out/pare.json").read_text())["pare"].encode()


def self_test(program):
    """Each planted change of a copy must be found at its place, and what is ignored must not be."""
    CORRECTIONS.clear()
    model = compare_recipes.family("llama_gqa_untied")
    case = Case(
        "planted",
        {
            "calibrate.yaml": compare_recipes.recipe(model, compare_recipes.SMALL_IDS, []),
            "recipe.yaml": compare_recipes.recipe(
                model, "{statistics: statistics.h5}", ["gptq: {bits: 4, group_size: 32}"]
            ),
        },
        [
            Step(["calibrate", "calibrate.yaml", "statistics.h5"]),
            Step(["run", "recipe.yaml", "--out", "out"]),
            Step(["eval", "out", "--text", "data/small.npy", "--windows", "1", "--json", "--quiet"], "eval.json"),
            Step(
                ["tokenize", "calibration_data/stories260k", "--text", "calibration_data/stories.txt", "--quiet"],
                "ids.txt",
            ),
        ],
    )
    weights = "out/model.safetensors"
    packed = "model.layers.1.mlp.down_proj.weight_packed"
    plants = [  # what, how, what the first line must hold (none: no difference)
        ("nothing", lambda f: None, None),
        (
            "a byte of a tensor",
            lambda f: flip(f / weights, -1),
            "v_proj.weight_scale: BF16 [32, 2], first at element 63: ",
        ),
        ("a byte of the header", lambda f: flip(f / weights, 30), "out/model.safetensors"),
        ("the order of tensors", lambda f: move_tensor(f / weights), "out/model.safetensors: same tensors"),
        (
            "a tensor's type",
            lambda f: replace_bytes(f / weights, b'"dtype":"I32"', b'"dtype":"U32"'),
            "weight_packed: I32",
        ),
        (
            "a tensor's name",
            lambda f: replace_bytes(f / weights, packed.encode(), packed.replace("down", "DOWN").encode()),
            "DOWN_proj.weight_packed: tensor is new",
        ),
        (
            "a number of pare.json",
            lambda f: edit_json(f / "out/pare.json", lambda j: j["layers"][3].update(relative_error=1e-3)),
            "out/pare.json: layers[3].relative_error: number ",
        ),
        (
            "the order of keys",
            lambda f: edit_json(f / "out/pare.json", lambda j: j["layers"][3].update(name=j["layers"][3].pop("name"))),
            "layers[3]: keys in another order",
        ),
        (
            "a value written otherwise",
            lambda f: (f / "out/config.json").write_text(json.dumps(json.loads((f / "out/config.json").read_text()))),
            "out/config.json: the same values, written otherwise",
        ),
        (
            "an event",
            lambda f: edit_json(f / "out/pare.json", lambda j: j["events"].append("x")),
            "out/pare.json: events: ",
        ),
        (
            "the version",
            lambda f: edit_json(f / "out/pare.json", lambda j: j.update(pare="9", engines=[], fingerprint={})),
            None,
        ),
        ("the seconds", lambda f: edit_json(f / "out/report.json", lambda j: j.update(seconds=1)), None),
        (
            "the seconds of a budget's measurement",
            lambda f: edit_json(f / "out/report.json", lambda j: j.update(budget={"measured": {"seconds": 1}})),
            "out/report.json: budget: is new",
        ),
        (
            "the size in the report",
            lambda f: edit_json(f / "out/report.json", lambda j: j.update(output_bytes=1)),
            "out/report.json: output_bytes",
        ),
        (
            "a perplexity",
            lambda f: edit_json(f / "eval.json", lambda j: j.update(perplexity=1.5)),
            "eval.json: perplexity: number ",
        ),
        (
            "the speed of an evaluation",
            lambda f: edit_json(f / "eval.json", lambda j: j.update(seconds=1.5, tokens_per_second=3)),
            None,
        ),
        ("a file less", lambda f: (f / "out/config.json").unlink(), "out/config.json: the file is gone"),
        ("a file more", lambda f: (f / "out/new").write_text(""), "out/new: the file is new"),
        ("a byte of a text", lambda f: flip(f / "ids.txt", 1000), "ids.txt: byte 1000 of"),
        ("a float of the statistics", lambda f: flip(f / "statistics.h5", -5000), "statistics.h5: /"),
        (
            "the version in the statistics",
            lambda f: replace_bytes(f / "statistics.h5", version_of(f), version_of(f)[:-1] + b"x"),
            None,
        ),
    ]
    with tempfile.TemporaryDirectory(prefix="compare-") as name:
        scratch = pathlib.Path(name)
        links = make_links(scratch)
        run_case(program, case, 2, scratch / "old", links)
        run_case(program, case, 1, scratch / "again", links)
        differences, _ = compare(case.name, scratch / "old", scratch / "again")
        assert not differences, f"the number of threads changes {differences[0]}"
        for what, plant, expected in plants:
            shutil.rmtree(scratch / "new", ignore_errors=True)
            shutil.copytree(scratch / "old", scratch / "new")
            plant(scratch / "new")
            differences, _ = compare(case.name, scratch / "old", scratch / "new")
            assert bool(differences) == (expected is not None), f"{what}: {differences or 'not found'}"
            assert (
                expected is None or expected in differences[0]
            ), f"{what}: expected '{expected}' in '{differences[0]}'"
            assert (
                what == "nothing"
                or any(
                    (scratch / "old" / p).read_bytes() != (scratch / "new" / p).read_bytes()
                    for p in set(output_files(scratch / "old")) & set(output_files(scratch / "new"))
                )
                or output_files(scratch / "old") != output_files(scratch / "new")
            ), f"{what}: nothing was planted"
        # A listed correction is let pass at its place alone.
        CORRECTIONS[("plant*", "out/pare.json", "layers[*].relative_error")] = "planted"
        edit_json(scratch / "new/out/pare.json", lambda j: j["layers"][3].update(relative_error=1e-3))
        differences, corrected = compare(case.name, scratch / "old", scratch / "new")
        assert not differences and len(corrected) == 1 and corrected[0][0] == "planted", (differences, corrected)
        edit_json(scratch / "new/out/pare.json", lambda j: j["layers"][3].update(damping=1e-3))
        differences, corrected = compare(case.name, scratch / "old", scratch / "new")
        assert len(differences) == 1 and len(corrected) == 1, (differences, corrected)
        CORRECTIONS.clear()
    print(f"{len(plants) + 2} planted changes: each found or let pass as it must be")
    return 0


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--self-test":
        sys.exit(self_test(pathlib.Path(sys.argv[2]).resolve()))
    sys.exit(main())
