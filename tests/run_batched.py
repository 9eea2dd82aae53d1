#!/usr/bin/env python3
"""Runs the tests that ctest lists, those of one suite together in one process.

usage: run_batched.py [--jobs N] [--include REGEX] [--exclude REGEX] BUILD_DIR

ctest starts a process for every test. A process takes 0.3 s of a core until LibTorch is loaded, and half a second under
AddressSanitizer, which for thousands of tests is longer than what they do. Here one process runs up to 24 tests of a
suite. What fails or ends such a process runs once more by itself, and that counts: its output is shown, and a test that
only fails beside others is told apart. Tests that are no GoogleTest, or have properties of their own, go to ctest.

REGEX is searched for in a test's name, as ctest's -R and -E do. The status is 1 if a test failed, and 2 for mistakes.
"""
import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

LARGEST_BATCH = 24
SECONDS_TO_END = 10  # for processes that a test has told to end
BESIDE_OTHERS = "Failed beside others of its suite, and not alone"
PLAIN_PROPERTIES = {"WORKING_DIRECTORY", "SKIP_REGULAR_EXPRESSION", "TIMEOUT", "DISABLED"}


class Test:
    def __init__(self, name, properties, command):
        self.name = name
        filters = [i for i, word in enumerate(command) if word.startswith("--gtest_filter=")]
        self.program = tuple(command[:filters[0]]) if filters else ()  # behind an emulator's words
        self.gtest_name = command[filters[0]].split("=", 1)[1] if filters else None
        self.folder = properties.get("WORKING_DIRECTORY")
        self.timeout = properties.get("TIMEOUT", 1500)
        self.is_disabled = properties.get("DISABLED", False)
        self.is_plain = bool(filters) and len(command) == filters[0] + 2 and set(properties) <= PLAIN_PROPERTIES

    @property
    def suite(self):
        return self.program, self.gtest_name.split(".")[0]


def list_tests(build, include, exclude):
    told = subprocess.run(["ctest", "--show-only=json-v1"], cwd=build, check=True, capture_output=True, text=True)
    tests = []
    for entry in json.loads(told.stdout)["tests"]:
        if include and not re.search(include, entry["name"]):
            continue
        if exclude and re.search(exclude, entry["name"]):
            continue
        properties = {each["name"]: each["value"] for each in entry["properties"]}
        tests.append(Test(entry["name"], properties, entry.get("command", ["?"])))
    return tests


def batches_of(tests, seconds):
    """Tests of one suite, in their order. Long batches come first, so that no core is left with one of them: by the
    seconds of the last run, or by their number."""
    suites = {}
    for test in tests:
        suites.setdefault(test.suite, []).append(test)
    batches = []
    for suite in suites.values():
        batches += [suite[i:i + LARGEST_BATCH] for i in range(0, len(suite), LARGEST_BATCH)]
    return sorted(batches, key=lambda batch: sum(seconds.get(test.name, 1.0) for test in batch), reverse=True)


class Batch:
    """A process with all that it starts, which a variable of the environment tells apart from others: a session of its
    own would live on when this program is killed. They write to a file: a pipe stays open while any of them lives."""

    def __init__(self, command, folder, output):
        self.output = output
        self.mark = f"RUN_BATCHED={output}"
        with open(output, "wb") as file:
            self.process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=file,
                                            stderr=subprocess.STDOUT, env=os.environ | {"RUN_BATCHED": str(output)})

    def said(self):
        return self.output.read_text(errors="replace")

    def begun(self):
        return re.findall(r"^\[ RUN      \] (\S+)", self.said(), re.MULTILINE)

    def members(self):
        """{process id: (state, words)} of those that live."""
        found = {}
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it may end meanwhile
                if self.mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found[int(entry.name)] = state, words
        return found

    def describe(self):
        lines = []
        for pid, (state, words) in self.members().items():
            lines.append(f"process {pid}, state {state}: {words[:500]}")
            if shutil.which("gdb"):
                asked = ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all backtrace 20"]
                with contextlib.suppress(subprocess.TimeoutExpired):
                    lines.append(subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                                errors="replace", timeout=60).stdout[-10000:])
        return "\n".join(lines)

    def wait(self, seconds_of_test):
        """Waits for the end; returns an empty text, or what is wrong if it is to be ended: a test that took
        longer than its seconds, or processes that outlive the first one."""
        size, current, since = 0, None, time.monotonic()
        while self.process.poll() is None:
            time.sleep(0.02)
            if self.output.stat().st_size != size:
                size = self.output.stat().st_size
                begun = self.begun()
                if begun and begun[-1] != current:
                    current, since = begun[-1], time.monotonic()
            allowed = seconds_of_test.get(current, max(seconds_of_test.values()))
            if time.monotonic() - since > allowed:
                return f"\nTimeout: {current or 'the program'} took over {allowed:g} s\n{self.describe()}"
        since = time.monotonic()
        while self.members():
            if time.monotonic() - since > SECONDS_TO_END:
                return f"\nit left processes behind, {SECONDS_TO_END} s after its end:\n{self.describe()}"
            time.sleep(0.05)
        return ""

    def end(self):
        for pid in self.members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def run_process(tests):
    """Returns {gtest name: (result, seconds)}, empty if the process did not come to an end, the name of the test that
    it was at then, and all output."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        command = [*tests[0].program, "--gtest_filter=" + ":".join(test.gtest_name for test in tests),
                   "--gtest_also_run_disabled_tests", f"--gtest_output=json:{report}"]
        batch = Batch(command, tests[0].folder, pathlib.Path(folder) / "output")
        try:
            wrong = batch.wait({test.gtest_name: test.timeout for test in tests})
        finally:
            batch.end()
        output, status = batch.said() + wrong, batch.process.returncode
        at = (batch.begun() or [tests[-1].gtest_name])[-1]
        if wrong or not report.exists():
            return {}, at, output + f"\nthe process ended with status {status}"
        results = {}
        for suite in json.loads(report.read_text())["testsuites"]:
            for test in suite["testsuite"]:
                result = "Failed" if test.get("failures") else {"SKIPPED": "Skipped"}.get(test["result"], "Passed")
                results[f'{suite["name"]}.{test["name"]}'] = result, float(test["time"].rstrip("s"))
        # A test whose process fails after its report, as sanitizers have it, has not passed.
        if status != 0 and all(result != "Failed" for result, _ in results.values()):
            return {}, at, output + f"\nthe process ended with status {status}"
        # Tests are listed without PARE_ISA, which takes away those of wider instruction sets.
        if "PARE_ISA" in os.environ:
            for test in tests:
                results.setdefault(test.gtest_name, ("Skipped", 0.0))
        return results, at, output


def run_batch(tests):
    """Returns [(test, result, seconds, output)]."""
    results, at, told = run_process(tests)
    outcomes = []
    for test in tests:
        result, seconds = results.get(test.gtest_name, ("Failed", 0.0))
        output = ""
        if result == "Failed":
            alone, _, output = run_process([test])
            again, seconds = alone.get(test.gtest_name, ("Failed", seconds))
            if again != "Failed" and test.gtest_name in results:
                result = BESIDE_OTHERS
            elif again != "Failed":
                result = again  # another test ended the process that it was in
        outcomes.append((test, result, seconds, output))
    if not results and all(result in ("Passed", "Skipped") for _, result, _, _ in outcomes):
        outcomes = [(test, BESIDE_OTHERS, seconds, told) if test.gtest_name == at else (test, result, seconds, output)
                    for test, result, seconds, output in outcomes]
    return outcomes


def run_others(build, tests, jobs):
    """Returns ctest's status and output for tests that only ctest knows how to run."""
    names = "|".join(re.escape(test.name) for test in tests)
    done = subprocess.run(["ctest", "--output-on-failure", "-j", str(jobs), "-R", f"^({names})$"], cwd=build,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


@contextlib.contextmanager
def interruptible(pool):
    """Without it, a pool runs all that waits before the program ends."""
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--include")
    parser.add_argument("--exclude")
    asked = parser.parse_args()
    for option in ("include", "exclude"):
        try:
            re.compile(getattr(asked, option) or "")
        except re.error as error:
            parser.error(f"--{option}: not a regular expression: {error}")
    start = time.monotonic()
    tests = [test for test in list_tests(asked.build, asked.include, asked.exclude) if not test.is_disabled]
    if not tests:
        parser.error(f"ctest knows no test in '{asked.build}' that the options leave; build it, or change them")
    others = [test for test in tests if not test.is_plain]
    plain = [test for test in tests if test.is_plain]
    failed, skipped = [], []
    record = pathlib.Path(asked.build) / "Testing" / "seconds.json"
    seconds_of = json.loads(record.read_text()) if record.exists() else {}
    ran = {}
    with interruptible(concurrent.futures.ThreadPoolExecutor(asked.jobs)) as pool:
        of_others = pool.submit(run_others, asked.build, others, 1) if others else None
        batches = [pool.submit(run_batch, batch) for batch in batches_of(plain, seconds_of)]
        for future in concurrent.futures.as_completed(batches):
            for test, result, seconds, output in future.result():
                ran[test.name] = seconds
                if result == "Skipped":
                    skipped.append(test.name)
                elif result != "Passed":
                    failed.append((test.name, result))
                    print(output, flush=True)
        status, told = of_others.result() if of_others else (0, "")
    if told:
        print(told)
    record.parent.mkdir(exist_ok=True)
    record.write_text(json.dumps(seconds_of | ran))
    for name in sorted(ran, key=ran.get, reverse=True)[:10]:
        print(f"{ran[name]:8.1f} s  {name}")
    print(f"{len(plain) - len(failed)} of {len(plain)} tests passed in batches, {len(skipped)} of them skipped; "
          f"{time.monotonic() - start:.0f} s with ctest's {len(others)}")
    if failed:
        print("\nThe following tests FAILED:")
        for name, result in failed:
            print(f"\t- {name} ({result})")
    sys.exit(1 if failed or status else 0)


if __name__ == "__main__":
    main()
