#!/usr/bin/env python3
"""Times how threads wait for one another: prefill, decode and a run of gptq, on the machine as it is and beside busy
loops, with the programs' own policy ("adaptive": nothing set) and with OMP_WAIT_POLICY=passive and =active.

usage: bench_waiting.py BUILD MODEL WINDOWS.npy [--loops N] [--rounds N] [--other PATH] [--skip idle|loaded] [--no-run]

BUILD is the folder of pare and pare-runtime; --other times a second build as "other" beside it, with nothing set. All
take turns within a round. Printed: milliseconds, the best and the median of the rounds, and the medians as multiples of
passive's. Policies that spin beside busy loops are slow: what takes longer than --limit seconds is ended and so marked.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

RECIPE = """calibration: {{text: {windows}, samples: 8, tokens: 256}}
passes:
  - gptq: {{bits: 4, group_size: 64}}
"""


def timed(command, environment, limit):
    """(standard output, seconds); (None, limit) of what took longer."""
    start = time.monotonic()
    try:
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return None, limit
    return done.stdout, time.monotonic() - start


def bench_ms(build, environment, arguments, tokens):
    """Milliseconds of a prefill and of a decoded token."""
    command = [
        build / "pare-runtime",
        "bench",
        arguments.model,
        "--prefill-tokens",
        str(tokens),
        "--decode-tokens",
        str(tokens),
        "--repetitions",
        "1",
        "--json",
        "--quiet",
    ]
    output, seconds = timed(command, environment, arguments.limit)
    if output is None:
        return {f"prefill of {tokens}": 1000 * seconds, f"decode, of {tokens}": 1000 * seconds / tokens}
    result = json.loads(output)
    return {f"prefill of {tokens}": 1000 * tokens / result["prefill_tokens_per_second"],
            f"decode, of {tokens}": 1000 / result["decode_tokens_per_second"]}


def run_ms(build, environment, arguments):
    with tempfile.TemporaryDirectory() as folder:
        recipe = pathlib.Path(folder) / "recipe.yaml"
        recipe.write_text(RECIPE.format(windows=arguments.windows.resolve()))
        command = [build / "pare", "run", recipe, "--model", arguments.model, "--out", f"{folder}/out", "--quiet"]
        return {"run of gptq": 1000 * timed(command, environment, arguments.limit)[1]}


def measure(contestants, arguments, tokens):
    times = {}
    for _ in range(arguments.rounds):
        for name, build, setting in contestants:
            clean = {
                key: value for key, value in os.environ.items() if key not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
            }
            found = bench_ms(build, clean | setting, arguments, tokens)
            if not arguments.no_run:
                found |= run_ms(build, clean | setting, arguments)
            for what, ms in found.items():
                times.setdefault(what, {}).setdefault(name, []).append(ms)
    for what, by_name in times.items():
        passive = statistics.median(by_name["passive"])
        for name, values in by_name.items():
            median = statistics.median(values)
            ended = " (ended)" if max(values) >= 1000 * arguments.limit else ""
            print(
                f"  {what:16} {name:9} best {min(values):9.1f} ms, median {median:9.1f} ms, {median / passive:6.2f} x "
                f"passive{ended}",
                flush=True,
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("windows", type=pathlib.Path)
    parser.add_argument("--loops", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=300.0)
    parser.add_argument("--other", type=pathlib.Path)
    parser.add_argument("--skip", choices=["idle", "loaded"])
    parser.add_argument("--no-run", action="store_true", help="prefill and decode alone")
    arguments = parser.parse_args()
    contestants = [("adaptive", arguments.build, {})] + [
        (policy, arguments.build, {"OMP_WAIT_POLICY": policy}) for policy in ("passive", "active")
    ]
    if arguments.other:
        contestants.append(("other", arguments.other, {}))
    if arguments.skip != "idle":
        print(f"idle (load average before: {os.getloadavg()[0]:.2f})")
        measure(contestants, arguments, 256)
    if arguments.skip == "loaded":
        return
    print(f"beside {arguments.loops} busy loops")
    loops = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(arguments.loops)]
    try:
        measure(contestants, arguments, 24)
    finally:
        for loop in loops:
            loop.kill()


if __name__ == "__main__":
    main()
