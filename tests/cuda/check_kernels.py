#!/usr/bin/env python3
"""Compiles every .cu file with CUDA's compiler for the devices that CMakeLists.txt names, and reads what ptxas says of
the kernels.

usage: check_kernels.py BUILD [--jobs N]     BUILD: a folder for the objects; what has not changed is not compiled again
       check_kernels.py BUILD --self-test    compiles kernels with planted faults, and expects each to be found

Faults: a warning of the compiler or of ptxas; registers that spill; a stack frame in local memory, unless STACK_FRAMES
names it; more registers for the threads of a block (those of __launch_bounds__, or 1024) than a multiprocessor has;
more than 48 KiB of static shared memory, which ptxas refuses itself. Prints a table of the kernels. The options are
those of -DPARE_CUDA=ON: CMake is what compiles.

With PARE_TEST_FULL it also builds the programs that run on a GPU, so that their hosts' side is compiled and linked with
CUDA's own headers.

The exit status is 0, 1 with faults, and 77 with a line "SKIPPED" where .ci/find_nvcc finds no compiler.
"""
import argparse
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77
# CUDA C++ Programming Guide 13, table "Technical Specifications per Compute Capability".
MOST_THREADS = 1024         # of a block
REGISTERS = 65536           # of a multiprocessor, and of a block

PROGRAMS = ["pare-runtime", "test_cuda_device", "device_facts"]

# Kernels that may have a stack frame, and why. One that no longer has it is a fault too.
STACK_FRAMES = {}

# Name -> source, and what the check must say.
PLANTED = {
    "spills": (
        "__global__ void __launch_bounds__(1024) kernel(float* x) {\n"
        "  float values[128];\n"
        "#pragma unroll\n  for (int i = 0; i < 128; ++i) values[i] = x[i * 1024 + threadIdx.x];\n"
        "  __syncthreads();\n"
        "#pragma unroll\n  for (int i = 0; i < 128; ++i) x[i * 1024 + 1023 - threadIdx.x] = values[i] * values[127 - "
        "i];\n}\n",
        "bytes of registers spilled",
    ),
    "stack frame": (
        "__global__ void __launch_bounds__(32) kernel(float* x, int n) {\n"
        "  float values[16];\n  for (int i = 0; i < 16; ++i) values[i] = x[i];\n"
        "  for (int i = 0; i < n; ++i) values[n % 16] += values[i % 16];\n"
        "  for (int i = 0; i < 16; ++i) x[i] = values[i];\n}\n",
        "stack frame",
    ),
    "no launch bound": (
        "__global__ void kernel(float* x) {\n  float sums[80];\n"
        "  for (int i = 0; i < 80; ++i) sums[i] = 0.0f;\n  for (int k = 0; k < 1000; ++k) {\n"
        "    const float value = x[k];\n"
        "#pragma unroll\n    for (int i = 0; i < 80; ++i) sums[i] = sums[i] * value + x[k + i * 1024];\n  }\n"
        "#pragma unroll\n  for (int i = 0; i < 80; ++i) x[i * 1024 + threadIdx.x] = sums[i];\n}\n",
        "declare __launch_bounds__",
    ),
    "warning": ("__global__ void kernel(float* x) {\n  int unused = 1;\n  x[0] = 1.0f;\n}\n", "unused"),
    "shared memory": (
        "__global__ void kernel(float* x) {\n  __shared__ float tile[12 * 1024 + 1];\n"
        "  tile[threadIdx.x] = x[0];\n  __syncthreads();\n  x[0] = tile[x[1] > 0.0f ? 0 : 12 * 1024];\n}\n",
        "too much shared",
    ),
    "device function": (
        "__device__ __noinline__ float sum(const float* x, int n) {\n  float values[16];\n"
        "  for (int i = 0; i < 16; ++i) values[i] = x[i];\n"
        "  for (int i = 0; i < n; ++i) values[n % 16] += values[i % 16];\n"
        "  return values[n % 16];\n}\n__global__ void __launch_bounds__(32) kernel(float* x, int n) { x[0] = sum(x, "
        "n); }\n",
        "stack frame",
    ),
}


def compile_and_report(command):
    """The compiler with ptxas's report beside the object: what CMake calls in the compiler's place."""
    if "-c" not in command:
        return subprocess.run(command).returncode
    target = pathlib.Path(command[command.index("-o") + 1])
    kept = target.with_suffix(".kept")
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    done = subprocess.run(
        command + ["-Xptxas", "-v", "--keep", "--keep-dir", str(kept)], stderr=subprocess.PIPE, text=True
    )
    if done.returncode == 0:
        bounds = {}
        for ptx in kept.glob("*.ptx"):
            # .visible .entry NAME( parameters ) .maxntid X, Y, Z
            for name, bound in re.findall(r"\.entry\s+(\w+)\s*\([^)]*\)\s*(?:\.maxntid\s+([\d, ]+))?", ptx.read_text()):
                threads = 1
                for size in bound.split(","):
                    threads *= int(size or 1)
                bounds[name] = threads if bound else None
        target.with_suffix(".report").write_text(json.dumps({"ptxas": done.stderr, "bounds": bounds}))
    else:
        sys.stderr.write(done.stderr)
    shutil.rmtree(kept)
    return done.returncode


def demangled(names):
    text = subprocess.run(
        ["c++filt", "-p"], input="\n".join(names), stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    short = [re.sub(r"\(anonymous namespace\)::|\bpare::(runtime::)?", "", line) for line in text.splitlines()]
    return dict(zip(names, short))


def functions_of(report):
    """One dictionary for each kernel and each function that is not inlined, per architecture."""
    functions, entries, arch = [], set(), None
    for line in report["ptxas"].splitlines():
        if match := re.search(r"Compiling entry function '(\w+)' for '(\w+)'", line):
            entries.add(match.group(1))
            arch = match.group(2)
        elif match := re.search(r"Function properties for (\w+)", line):
            name = match.group(1)
            functions.append(
                {
                    "name": name,
                    "arch": arch,
                    "is_kernel": name in entries,
                    "bound": report["bounds"].get(name),
                    "registers": 0,
                    "shared": 0,
                }
            )
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            functions[-1] |= {"stack": int(match.group(1)), "spilled": int(match.group(2)) + int(match.group(3))}
        elif match := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            kernel = next(f for f in reversed(functions) if f["is_kernel"])
            kernel |= {"registers": int(match.group(1)), "shared": int(shared.group(1)) if shared else 0}
    names = demangled(sorted({f["name"] for f in functions}))
    for function in functions:
        function["name"] = names[function["name"]]
    return functions


def faults_of(report, functions, allowed_frames):
    for line in report["ptxas"].splitlines():
        if re.search(r"warning|Potential Performance Loss|ignored", line):
            yield line.strip()
    for f in functions:
        where = f"{f['name']} ({f['arch']}): "
        if f["spilled"]:
            yield where + (
                f"{f['spilled']} bytes of registers spilled to local memory and back (without a second "
                "argument of 1, __launch_bounds__ aims at several blocks)"
            )
        if f["stack"] and f["name"] not in allowed_frames:
            yield where + (
                f"{f['stack']} bytes of stack frame: index arrays by what is known when loops are unrolled, "
                "or name the kernel in STACK_FRAMES"
            )
        threads = f["bound"] or MOST_THREADS
        if f["registers"] * threads > REGISTERS:
            advice = "" if f["bound"] else ": declare __launch_bounds__(threads, 1)"
            yield where + f"{f['registers']} registers for {threads} threads are more than {REGISTERS}{advice}"


def print_table(functions):
    print(f"{'kernel':60} {'device':8} {'registers':>9} {'threads':>8} {'shared':>7}")
    for f in sorted((f for f in functions if f["is_kernel"]), key=lambda f: (f["name"], f["arch"])):
        print(f"{f['name']:60} {f['arch']:8} {f['registers']:9} {f['bound'] or '-':>8} {f['shared']:7}")


def find_nvcc():
    found = subprocess.run([ROOT / ".ci" / "find_nvcc"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if found.returncode == 1:
        print("SKIPPED: kernels are not compiled with CUDA's compiler:", found.stderr.strip())
        sys.exit(SKIPPED)
    if found.returncode != 0:
        sys.exit(found.stderr.strip())
    return found.stdout.strip()


def configure(build, nvcc):
    """Objects and reports of another compiler or another version of this file are made again."""
    stamp = hashlib.sha256(f"{nvcc} {ROOT}".encode() + pathlib.Path(__file__).read_bytes()).hexdigest()
    if not (build / "made_by").is_file() or (build / "made_by").read_text() != stamp:
        shutil.rmtree(build, ignore_errors=True)
        build.mkdir(parents=True)
    launcher = f"{sys.executable};{pathlib.Path(__file__).resolve()};--compile;--"
    with open(build / "cmake.log", "w") as log:
        done = subprocess.run(
            [
                "cmake",
                "-S",
                ROOT,
                "-B",
                build,
                "-G",
                "Ninja",
                "-DPARE_CUDA=ON",
                "-DPARE_RUNTIME_ONLY=ON",
                f"-DCMAKE_CUDA_COMPILER={nvcc}",
                f"-DCMAKE_CUDA_COMPILER_LAUNCHER={launcher}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    if done.returncode != 0:
        sys.exit((build / "cmake.log").read_text() + "check_kernels: CMake failed with -DPARE_CUDA=ON")
    (build / "made_by").write_text(stamp)
    commands = []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        command = shlex.split(entry["command"])
        if command[0] == nvcc:
            commands.append(command)
    assert commands, f"nothing in compile_commands.json is compiled by {nvcc}"
    return commands


def object_of(command):
    return command[command.index("-o") + 1]


def check(build, jobs):
    objects = [object_of(command) for command in configure(build, find_nvcc())]
    programs = PROGRAMS if os.environ.get("PARE_TEST_FULL") else []
    if subprocess.run(["cmake", "--build", build, "-j", str(jobs), "--target", *objects, *programs]).returncode != 0:
        return 1
    functions, faults = [], []
    for path in objects:
        report = json.loads((build / path).with_suffix(".report").read_text())
        found = functions_of(report)
        functions += found
        faults += faults_of(report, found, STACK_FRAMES)
    print_table(functions)
    if len({f["arch"] for f in functions if f["is_kernel"]}) < 2:
        faults.append("kernels for at least two devices were expected")
    for name in STACK_FRAMES:
        if not any(f["name"] == name and f["stack"] for f in functions):
            faults.append(f"STACK_FRAMES names {name}, which has none")
    print("\n".join(f"FAULT: {fault}" for fault in faults) or "no faults")
    return 1 if faults else 0


def self_test(build):
    template = configure(build, find_nvcc())[0]
    missed = []
    for name, (source, expected) in PLANTED.items():
        file = build / "planted.cu"
        file.write_text(source)
        command = [str(file) if word.endswith(".cu") else word for word in template]
        command[command.index("-o") + 1] = str(build / "planted.o")
        done = subprocess.run(
            [sys.executable, __file__, "--compile", "--", *command], cwd=build, stderr=subprocess.PIPE, text=True
        )
        if done.returncode == 0:
            report = json.loads((build / "planted.report").read_text())
            said = "\n".join(faults_of(report, functions_of(report), {}))
        else:
            said = done.stderr
        found = expected in said
        print(f"{name}: {'found' if found else 'MISSED'}: {said.splitlines()[0] if said else '(nothing)'}")
        missed += [] if found else [name]
    return 1 if missed else 0


def main():
    if sys.argv[1:2] == ["--compile"]:
        return compile_and_report(sys.argv[sys.argv.index("--") + 1:])
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    return self_test(build) if arguments.self_test else check(build, arguments.jobs)


if __name__ == "__main__":
    sys.exit(main())
