#!/usr/bin/env python3
"""Speed of two builds of pare, measured in turn on one machine: ratios new/old of the time that the same work takes.

usage: compare_speed.py OLD/build/pare NEW/build/pare MODEL [ARTIFACT...] [--pairs 7] [--threads N] [--samples 16]
    [--limit 1.03]

MODEL is a Hugging Face directory (SmolLM2: make demo fetches it), each ARTIFACT one compressed from it. Measured are
prefill and decode of MODEL and of each ARTIFACT (`bench`) and the stages of one gptq run on MODEL. Both programs take
turns and change places from pair to pair, so that what the machine does meanwhile falls on both; a ratio above 1 means
that the new build is slower. Name one program twice to see what the machine's noise alone gives. Run it on an idle
machine. Exit status: 0, or 1 when the median of a ratio is above --limit.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
STAGES = ("forward", "statistics", "compress")  # of a run's stage_seconds


def call(words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))} ended with {done.returncode}: {done.stderr.strip()[-400:]}")
    return json.loads(done.stdout)


def bench(program, model, arguments):
    """Seconds of one prefill and of one decoded token: medians of the repetitions of one process."""
    found = call(
        [
            program,
            "bench",
            model,
            "--json",
            "--quiet",
            "--threads",
            arguments.threads,
            "--repetitions",
            arguments.repetitions,
        ]
    )
    return {
        "prefill": found["prefill_tokens"] / found["prefill_tokens_per_second_median"],
        "decode": 1 / found["decode_tokens_per_second_median"],
    }


def compress(program, model, arguments):
    """Seconds of the stages of one run."""
    with tempfile.TemporaryDirectory(prefix="speed-") as folder:
        recipe = pathlib.Path(folder) / "recipe.yaml"
        recipe.write_text(
            f"model: {model}\ncalibration: {{text: {arguments.text}, samples: {arguments.samples}, tokens: 512}}\n"
            "passes:\n  - gptq: {bits: 4, group_size: 64}\n"
        )
        report = call(
            [
                program,
                "run",
                recipe,
                "--out",
                pathlib.Path(folder) / "out",
                "--json",
                "--quiet",
                "--threads",
                arguments.threads,
            ]
        )
    return {stage: report["stage_seconds"][stage] for stage in STAGES} | {"whole run": report["seconds"]}


def measure(label, work, arguments):
    """Prints a line for each figure of `work`; returns the medians of the ratios."""
    figures = {}
    for pair in range(arguments.pairs):
        programs = [arguments.old, arguments.new]
        times = [None, None]
        for i in ((0, 1) if pair % 2 == 0 else (1, 0)):
            times[i] = work(programs[i])
        for name, old in times[0].items():
            figures.setdefault(name, []).append((old, times[1][name]))
    ratios = []
    for name, pairs in figures.items():
        each = [new / old for old, new in pairs]
        old, new = (1e3 * statistics.median(pair[i] for pair in pairs) for i in (0, 1))
        ratios.append(statistics.median(each))
        print(
            f"{label:28} {name:12} old {old:10.2f} ms  new {new:10.2f} ms  new/old {min(each):6.3f} {ratios[-1]:6.3f} "
            f"{max(each):6.3f}",
            flush=True,
        )
    return ratios


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("old", "new", "model"):
        parser.add_argument(name, type=pathlib.Path)
    parser.add_argument("artifacts", type=pathlib.Path, nargs="*")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--repetitions", type=int, default=3, help="of bench within one process")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--samples", type=int, default=16, help="calibration windows of 512 tokens of the gptq run; 0: no such run"
    )
    parser.add_argument(
        "--text", type=pathlib.Path, default=ROOT / "calibration_data/windows/c4-smollm2.npy", help="the windows"
    )
    parser.add_argument("--limit", type=float, help="largest median ratio that passes")
    arguments = parser.parse_args()
    if arguments.pairs < 1:
        parser.error("--pairs: at least 1")
    busy = os.getloadavg()[0]
    if busy > 0.3:
        print(f"the machine is not idle (load {busy:.1f}): ratios will scatter", file=sys.stderr)
    print(
        f"{arguments.pairs} pairs, {arguments.threads} threads; medians, and of new/old the least, the median and the "
        "largest"
    )
    ratios = []
    for model in [arguments.model, *arguments.artifacts]:
        ratios += measure(model.name, lambda program: bench(program, model, arguments), arguments)
    if arguments.samples > 0:
        ratios += measure(
            "gptq w4g64", lambda program: compress(program, arguments.model.resolve(), arguments), arguments
        )
    return 1 if arguments.limit and max(ratios) > arguments.limit else 0


if __name__ == "__main__":
    sys.exit(main())
