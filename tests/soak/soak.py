#!/usr/bin/env python3
"""Kills, interrupts, starves and feeds pare at random, and looks whether anything is lost, left behind or crashes.

usage: soak.py PARE [--minutes N] [--seed N] [--kills N] [--only kill,full,replace,hostile] [--hostile-seconds N]
    [--keep]

Trials are drawn from the seed, which is printed with every one of them: the same seed draws the same trials (when a
signal arrives is the machine's affair). All work on calibration_data/stories260k and files made of it, in a temporary
folder.

kill:    a command that writes something gets a signal (or loses its reader) at a random moment, up to three times, and
         is then run to the
         end: the output has the bytes of an undisturbed run, and nothing lies beside it or in TMPDIR.
full:    the same on a file system that is too small; the command fails with a message, and what it wrote is whole or
         not there. With room again it ends with the same bytes. Where no file system can be mounted, a limit of file
         sizes stands in for it.
replace: an input changes under a running command: it fails and says so, or its output is that of the old or of the new
         input.
hostile: a damaged file is opened by a command that reads it: within 20 s of processor time and on the clock
         (--hostile-seconds, for a machine that does other work), without a signal, with a message when the status is
         not 0.

The exit status is 1 if anything was lost, left behind or crashed; the trial's folder is then kept and named.
"""
import argparse
import ctypes
import filecmp
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "calibration_data" / "stories260k"
TEXT = ROOT / "calibration_data" / "stories.txt"
SIGNALS = [signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
# What sanitizers and the kernel end a program with that does what it must not.
CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}
HOSTILE_SECONDS = 20


class Finding(Exception):
    """Something was lost, left behind, or crashed."""


def recipe(passes, extra=""):
    return (
        f"model: MODEL\noutput: unused\ncalibration: {{text: TEXT, samples: 8, tokens: 64}}\npasses:\n{passes}{extra}"
    )


RECIPES = {
    "gptq": recipe(
        "  - gptq: {bits: 4, group_size: 32}\n    layers: {override: {\"*.down_proj\": {group_size: -1}}}\n"
    ),
    "prune": recipe("  - sparsegpt: {pattern: \"2:4\", storage: packed}\n"),
    "distil": recipe(
        "  - magnitude: {pattern: \"2:4\"}\n  - distill: {text: TEXT, tokens: 64, total_tokens: 1024, batch: 2, "
        "validations: 2, validation_windows: 2}\n"
    ),
    "student": "model: MODEL\noutput: unused\nstudent: {layers: 3}\n",
}


class Workplace:
    """A folder with the inputs of a trial, and a TMPDIR of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.inputs = folder / "in"
        self.outputs = folder / "out"
        self.temporary = folder / "tmp"
        for part in (self.inputs, self.outputs, self.temporary):
            part.mkdir(parents=True)
        shutil.copytree(MODEL, self.inputs / "model")
        shutil.copy(TEXT, self.inputs / "text.txt")
        for name, text in RECIPES.items():
            text = text.replace("MODEL", "in/model").replace("TEXT", "in/text.txt")
            (self.inputs / f"{name}.yaml").write_text(text)

    def environment(self):
        return dict(os.environ, TMPDIR=str(self.temporary), OMP_NUM_THREADS="2", OMP_WAIT_POLICY="passive")


# Commands that write: name -> (arguments, name of the output). All run in the trial's folder with paths relative to it,
# so that manifests, which hold the recipe, are the same everywhere.
WRITERS = {name: (["run", f"in/{name}.yaml", "--out", "out/model"], "model") for name in RECIPES}
WRITERS["calibrate"] = (["calibrate", "in/gptq.yaml", "out/statistics.h5"], "statistics.h5")
WRITERS["record"] = (["record", "in/model", "--text", "in/text.txt", "--tokens", "64", "out/logits.h5"], "logits.h5")
WRITERS["import"] = (["import", str(ROOT / "tests/golden/gguf/llama_gqa_untied.gguf"), "out/model"], "model")


def start(pare, arguments, place, **options):
    return subprocess.Popen([pare, *arguments], env=place.environment(), cwd=place.folder, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, **options)


def run(pare, arguments, place, **options):
    return subprocess.run([pare, *arguments], env=place.environment(), cwd=place.folder, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, **options)


def status_text(code):
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"


def files_under(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file() or path.is_symlink())


class Soak:
    def __init__(self, pare, seed, work, hostile_seconds):
        self.pare, self.random, self.work = pare, random.Random(seed), work
        self.hostile_seconds = hostile_seconds
        self.references = {}
        self.counts = {}
        self.number = 0
        self.kept = []
        self.checked = set()

    def count(self, what, amount=1):
        self.counts[what] = self.counts.get(what, 0) + amount

    # ---- what undisturbed runs give

    def reference(self, job):
        """The folder that an undisturbed run fills, its seconds, and which files differ from run to run (times are in
        them)."""
        if job not in self.references:
            outputs, seconds = [], []
            for attempt in ("a", "b"):
                place = Workplace(self.work / f"reference-{job}-{attempt}")
                arguments, _ = WRITERS[job]
                began = time.time()
                done = run(self.pare, arguments, place)
                seconds.append(time.time() - began)
                if done.returncode != 0:
                    raise Finding(
                        f"{job}: an undisturbed run ends with {status_text(done.returncode)}: "
                        f"{done.stderr.decode()[-600:]}"
                    )
                outputs.append(place.outputs)
            self.references[job] = (outputs[0], min(seconds), self.differing(*outputs))
        return self.references[job]

    @staticmethod
    def differing(first, second):
        return {path for path in files_under(first) if not filecmp.cmp(first / path, second / path, shallow=False)}

    def check_output(self, job, place):
        """Once the output has its name, all of it is there, and right."""
        expected, _, varies = self.reference(job)
        for path in files_under(expected):
            found = place.outputs / path
            if not found.is_file():
                raise Finding(f"{job}: {path} is missing")
            if path not in varies and not filecmp.cmp(expected / path, found, shallow=False):
                raise Finding(f"{job}: {path} differs from an undisturbed run's")

    def check_nothing_left(self, job, place):
        left = [f"tmp/{path}" for path in files_under(place.temporary)]
        left += sorted(
            {path.name for path in place.outputs.iterdir()} - {path.name for path in self.reference(job)[0].iterdir()}
        )
        left += sorted(str(path) for path in set(files_under(place.outputs)) - set(files_under(self.reference(job)[0])))
        if left:
            raise Finding(f"{job}: left behind: {left}")

    def finish(self, job, place):
        """Runs the command to its end, whatever lies there of it, and looks at what it gave."""
        arguments, output = WRITERS[job]
        done = run(self.pare, arguments, place)
        is_there = b"exists" in done.stderr  # the run that was disturbed was complete
        if done.returncode != 0 and not is_there:
            raise Finding(
                f"{job}: after a disturbance it ends with {status_text(done.returncode)}: {done.stderr.decode()[-800:]}"
            )
        if not (place.outputs / output).exists():
            raise Finding(f"{job}: no output: {done.stderr.decode()[-400:]}")
        self.check_output(job, place)
        self.check_nothing_left(job, place)

    # ---- trials

    def kill(self, place):
        job = self.random.choice(sorted(WRITERS))
        arguments, output = WRITERS[job]
        seconds = self.reference(job)[1]
        for _ in range(self.random.randint(1, 3)):
            how = self.random.choice(SIGNALS + ["reader"])
            after = self.random.uniform(0.0, seconds * 1.05)
            process = start(self.pare, arguments, place)
            if how == "reader":
                process.stdout.close()
                process.stderr.close()
            try:
                process.wait(timeout=after)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGPIPE if how == "reader" else how)
            try:
                process.wait(timeout=120)
            except subprocess.TimeoutExpired:
                process.kill()
                raise Finding(f"{job}: still runs 120 s after {how}")
            self.count("kills")
            if -process.returncode in CRASHES:
                raise Finding(f"{job}: {how} after {after:.2f} s: {status_text(process.returncode)}")
            if (place.outputs / output).exists():
                self.check_output(job, place)
        self.finish(job, place)

    def full(self, place):
        job = self.random.choice(sorted(WRITERS))
        arguments, output = WRITERS[job]
        self.reference(job)
        mounts = can_mount()
        size = int(2 ** self.random.uniform(10, 20.5))
        if mounts:
            mount(place.outputs, size)
        try:
            limit = (
                None if mounts else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            )
            done = run(self.pare, arguments, place, preexec_fn=limit)
            self.count("full disks" if mounts else "limits of file sizes")
            if done.returncode < 0 and not (not mounts and -done.returncode == signal.SIGXFSZ):
                raise Finding(
                    f"{job}: {size} bytes of room: {status_text(done.returncode)}: {done.stderr.decode()[-400:]}"
                )
            if done.returncode != 0 and not done.stderr.strip():
                raise Finding(f"{job}: {size} bytes of room: status {done.returncode} without a word")
            if done.returncode == 0 and not (place.outputs / output).exists():
                raise Finding(f"{job}: {size} bytes of room: status 0 and no output")
            if (place.outputs / output).exists():
                self.check_output(job, place)
            if mounts:
                remount(place.outputs)
            self.finish(job, place)
        finally:
            if mounts:
                unmount(place.outputs)

    def replace(self, place):
        job = self.random.choice([name for name in sorted(WRITERS) if name != "import"])
        arguments, output = WRITERS[job]
        seconds = self.reference(job)[1]
        target = self.random.choice(
            ["model/model.safetensors", "model/config.json", "text.txt", "model/tokenizer.json"]
        )
        path = place.inputs / target
        changed = bytearray(path.read_bytes())
        for _ in range(8):  # values, and not the header: the file stays one that can be read
            changed[self.random.randrange(len(changed) * 3 // 4, len(changed))] ^= 1
        process = start(self.pare, arguments, place)
        time.sleep(self.random.uniform(0.0, seconds))
        other = path.with_name("other")
        other.write_bytes(changed)
        os.replace(other, path)
        _, errors = process.communicate(timeout=120)
        self.count("replaced inputs")
        if process.returncode < 0:
            raise Finding(f"{job}: {target} replaced: {status_text(process.returncode)}: {errors.decode()[-400:]}")
        if process.returncode != 0 and not errors.strip():
            raise Finding(f"{job}: {target} replaced: status {process.returncode} without a word")
        if process.returncode != 0 and (place.outputs / output).exists():
            raise Finding(f"{job}: {target} replaced: it failed and has an output all the same")
        if process.returncode == 0:
            try:
                self.check_output(job, place)
            except Finding:  # then it was read behind the change: what that gives
                kept = place.folder / "first"
                shutil.move(place.outputs, kept)
                place.outputs.mkdir()
                again = run(self.pare, arguments, place)
                if again.returncode != 0:
                    raise Finding(f"{job}: {target} replaced: it ended well, and on the new input it fails")
                _, _, varies = self.reference(job)
                if self.differing(kept, place.outputs) - varies:
                    raise Finding(f"{job}: {target} replaced: an output of neither the old nor the new input")

    def hostile(self, place):
        name, path, arguments = self.random.choice(self.readers(place))
        self.check_reader(arguments)
        path.write_bytes(damage(path.read_bytes(), self.random))
        limits = lambda: (resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30)),
                          resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
                          resource.setrlimit(resource.RLIMIT_CPU, (HOSTILE_SECONDS, HOSTILE_SECONDS + 5)))
        try:
            done = run(self.pare, arguments, place, timeout=self.hostile_seconds, preexec_fn=limits)
        except subprocess.TimeoutExpired:
            raise Finding(f"{name}: {path.name} damaged: still runs after {self.hostile_seconds} s")
        self.count("hostile inputs")
        if done.returncode == -signal.SIGXCPU:
            raise Finding(f"{name}: {path.name} damaged: still runs after {HOSTILE_SECONDS} s of processor time")
        if done.returncode < 0:
            raise Finding(
                f"{name}: {path.name} damaged: {status_text(done.returncode)}: "
                f"{done.stderr.decode(errors='replace')[-400:]}"
            )
        if done.returncode != 0 and not done.stderr.strip():
            raise Finding(f"{name}: {path.name} damaged: status {done.returncode} without a word")
        if b"exception" in done.stderr or b"std::" in done.stderr or b"terminate" in done.stderr:
            raise Finding(f"{name}: {path.name} damaged: {done.stderr.decode(errors='replace')[-400:]}")

    def check_reader(self, arguments):
        """Once for each: on undamaged files the command ends well, so that it gets as far as the damage."""
        if tuple(arguments) in self.checked:
            return
        place = Workplace(self.work / f"undamaged-{self.number}")
        self.readers(place)
        done = run(self.pare, arguments, place)
        if done.returncode != 0:
            raise Finding(
                f"{arguments}: on undamaged files it ends with {status_text(done.returncode)}: "
                f"{done.stderr.decode()[-400:]}"
            )
        self.checked.add(tuple(arguments))
        shutil.rmtree(place.folder)

    def readers(self, place):
        """(what, the file that is damaged, the command that reads it)."""
        model = place.inputs / "model"
        artifact = place.inputs / "artifact"
        shutil.copytree(self.reference("gptq")[0] / "model", artifact)
        statistics = place.inputs / "statistics.h5"
        shutil.copy(self.reference("calibrate")[0] / "statistics.h5", statistics)
        shutil.copytree(self.reference("record")[0], place.inputs, dirs_exist_ok=True)
        gguf = place.inputs / "model.gguf"
        shutil.copy(ROOT / "tests/golden/gguf/llama_gqa_untied.gguf", gguf)
        (place.inputs / "from_statistics.yaml").write_text(
            "model: in/model\noutput: unused\ncalibration: {statistics: in/statistics.h5}\npasses:\n"
            "  - gptq: {bits: 8, group_size: -1}\n"
        )
        (place.inputs / "from_logits.yaml").write_text(
            "model: in/model\noutput: unused\npasses:\n  - distill: {logits: in/logits.h5, total_tokens: 128, batch: "
            "1, validations: 1, "
            "validation_windows: 1}\n"
        )
        text = place.inputs / "text.txt"
        measure = ["--text", "in/text.txt", "--context", "64", "--windows", "2"]
        to_model = ["--out", "out/model"]
        jobs = []
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
            jobs.append(("eval", model / name, ["eval", "in/model", *measure]))
            jobs.append(("run", model / name, ["run", "in/gptq.yaml", *to_model, "--dry-run"]))
            jobs.append(("generate", model / name, ["generate", "in/model", "--prompt", "Once", "--max-tokens", "4"]))
        for path in sorted(artifact.iterdir()):
            jobs.append(("verify", path, ["verify", "in/artifact"]))
            jobs.append(("inspect", path, ["inspect", "in/artifact"]))
            jobs.append(("eval", path, ["eval", "in/artifact", *measure, "--no-verify"]))
        jobs.append(("import", gguf, ["import", "in/model.gguf", "out/model"]))
        jobs.append(("eval", gguf, ["eval", "in/model.gguf", *measure]))
        jobs.append(("tokenize", text, ["tokenize", "in/model", "--text", "in/text.txt"]))
        jobs.append(("run", text, ["run", "in/gptq.yaml", *to_model]))
        jobs.append(("run", place.inputs / "gptq.yaml", ["run", "in/gptq.yaml", *to_model, "--dry-run"]))
        jobs.append(("statistics", statistics, ["run", "in/from_statistics.yaml", *to_model]))
        for shard in sorted((place.inputs / "logits.h5.shards").iterdir()):
            jobs.append(("logits", shard, ["run", "in/from_logits.yaml", *to_model]))
        jobs.append(("logits", place.inputs / "logits.h5", ["run", "in/from_logits.yaml", *to_model]))
        return jobs

    # ---- the loop

    def trial(self, what):
        self.number += 1
        folder = self.work / f"trial-{self.number}"
        place = Workplace(folder)
        try:
            getattr(self, what)(place)
        except Finding as finding:
            print(f"FOUND in trial {self.number} ({what}): {finding}\n  kept: {folder}", flush=True)
            self.kept.append(folder)
            return
        shutil.rmtree(folder)


def damage(data, rng):
    """One to a few changes of a kind that files suffer or attackers make."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        if not data:
            return bytes(data)
        at = rng.randrange(min(len(data), rng.choice([64, 4096, len(data)])))
        size = min(len(data) - at, int(2 ** rng.uniform(0, 12)))
        how = rng.randrange(8)
        if how == 0:
            del data[at:]
        elif how == 1:
            data[at] ^= 1 << rng.randrange(8)
        elif how == 2:
            data[at:at + size] = bytes(rng.getrandbits(8) for _ in range(size))
        elif how == 3:
            data[at:at] = data[at:at + size]
        elif how == 4:
            del data[at:at + size]
        elif how == 5:
            data[at:at] = rng.choice(
                [b"[" * 100000, b'{"a":' * 50000, b"\xff" * 64, b"\x1b[2J", b"-1", b"1e999", b"\0" * 16]
            )
        elif how == 6:
            data[at:at + 8] = rng.choice([0, 1, 2 ** 31, 2 ** 32 - 1, 2 ** 63, 2 ** 64 - 1]).to_bytes(8, "little")
        else:
            digits = [i for i in range(at, len(data)) if chr(data[i]).isdigit()][:1]
            for i in digits:
                data[i:i + 1] = rng.choice([b"0", b"-1", b"99999999999999999999", b"2147483648", b"null"])
    return bytes(data)


LIBC = ctypes.CDLL(None, use_errno=True)
MOUNTS = None


def mount(folder, size):
    if LIBC.mount(b"soak", str(folder).encode(), b"tmpfs", 0, f"size={max(size, 4096)}".encode()) != 0:
        raise OSError(ctypes.get_errno(), "mount")


def remount(folder):
    if LIBC.mount(b"soak", str(folder).encode(), b"tmpfs", 32, b"size=512m") != 0:  # MS_REMOUNT
        raise OSError(ctypes.get_errno(), "remount")


def unmount(folder):
    LIBC.umount2(str(folder).encode(), 2)  # MNT_DETACH


def can_mount():
    """Whether a file system can be mounted here; looked at once."""
    global MOUNTS
    if MOUNTS is None:
        with tempfile.TemporaryDirectory() as folder:
            try:
                mount(folder, 1 << 20)
                unmount(folder)
                MOUNTS = True
            except OSError:
                MOUNTS = False
    return MOUNTS


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pare", type=os.path.abspath)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="default: the clock's")
    parser.add_argument("--kills", type=int, default=0, help="go on until so many kills have been made")
    parser.add_argument("--only", default="kill,full,replace,hostile", help="the trials to draw from")
    parser.add_argument(
        "--hostile-seconds", type=float, default=HOSTILE_SECONDS, help="on the clock; processor time stays at 20"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder of the references too")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else time.time_ns() % 2 ** 32
    work = pathlib.Path(tempfile.mkdtemp(prefix="pare-soak-"))
    soak = Soak(arguments.pare, seed, work, arguments.hostile_seconds)
    kinds = arguments.only.split(",")
    print(
        f"soak: seed {seed}, {work}"
        + ("" if can_mount() else "; no file system can be mounted here: file sizes are limited instead"),
        flush=True,
    )
    began = last = time.time()
    while time.time() - began < 60 * arguments.minutes or soak.counts.get("kills", 0) < arguments.kills:
        soak.trial(soak.random.choice(kinds))
        if time.time() - last > 60:
            last = time.time()
            print(f"  {(last - began) / 60:.0f} min: {json.dumps(soak.counts)}, findings {len(soak.kept)}", flush=True)
    print(f"soak: seed {seed}: {soak.number} trials, {json.dumps(soak.counts)}, findings {len(soak.kept)}")
    if not soak.kept and not arguments.keep:
        shutil.rmtree(work)
    return 1 if soak.kept else 0


if __name__ == "__main__":
    sys.exit(main())
