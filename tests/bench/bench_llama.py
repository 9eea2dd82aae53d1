#!/usr/bin/env python3
"""Times decode and prefill beside llama.cpp on models of the same shape: bf16, 8 bits (Q8_0) and 4 bits (Q4_0).

usage: bench_llama.py PARE MODEL [--llama-bench PROGRAM] [--threads N] [--rounds N] [--tokens N] [--decode-tokens N]
                      [--folder FOLDER] [--text WINDOWS.npy]

MODEL is a dense checkpoint. Its quantized forms are made once in FOLDER (default models/bench-llama/NAME). Ours have
groups of 32 and heads of 8 bits, as llama.cpp's; W8A8 has a scale for each channel and token. The programs take turns
within a round, each with its own way to wait; the table has medians and bounds. A model without a tokenizer gets an
invented one, since llama.cpp wants a vocabulary. With --text, the table also has the perplexity of each of our modes,
since rounded inputs cost some.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

RECIPES = {
    "w8": "{bits: 8, group_size: 32, fit: false}",
    "w8a8": "{bits: 8, group_size: -1, fit: false, activations: int8}",
    "w4": "{bits: 4, group_size: 32, fit: false}",
}
HEAD = "head: {bits: 8, group_size: 32}\n"
# Title, llama.cpp's type, our artifact (none: the dense model), --activations.
ROWS = [
    ("bf16", "bf16", None, "exact"),
    ("bf16, --activations bf16", "bf16", None, "bf16"),
    ("8 bits", "q8_0", "w8", "exact"),
    ("8 bits, --activations int8", "q8_0", "w8", "int8"),
    ("8 bits, W8A8 by channel and token", "q8_0", "w8a8", "exact"),
    ("4 bits", "q4_0", "w4", "exact"),
    ("4 bits, --activations int8", "q4_0", "w4", "int8"),
    ("4 bits, --activations bf16", "q4_0", "w4", "bf16"),
]


def fail(message):
    sys.exit(f"bench_llama.py: {message}")


def run(command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        fail(f"'{' '.join(map(str, command))}' ended with status {done.returncode}:\n{done.stderr}{done.stdout}")
    return done.stdout


def invented_tokenizer(size):
    """A byte-level BPE tokenizer.json with that many tokens: the bytes, and joins of two in any order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = [chr(byte) for byte in printable] + [chr(256 + n) for n in range(len(others))]
    pairs = [(a, b) for a in letters for b in letters][: size - len(letters)]
    vocabulary = {token: id for id, token in enumerate(letters + [a + b for a, b in pairs])}
    split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": split,
        "post_processor": None,
        "decoder": split,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocabulary,
            "merges": [f"{a} {b}" for a, b in pairs],
        },
    }


def with_tokenizer(model, folder):
    """The model, or a folder with its files, weights by links, beside an invented tokenizer."""
    if (model / "tokenizer.json").exists():
        return model
    named = folder / "model"
    if not named.exists():
        made = folder / "model.new"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        for file in model.iterdir():
            # Other files that lie outside of a model's folder are refused, since results hold copies of them.
            if file.suffix == ".safetensors":
                (made / file.name).symlink_to(file.resolve())
            else:
                shutil.copy(file, made)
        size = json.loads((model / "config.json").read_text())["vocab_size"]
        (made / "tokenizer.json").write_text(json.dumps(invented_tokenizer(size)))
        made.rename(named)
    return named


def prepare(pare, model, folder):
    """Makes what is missing. What is there must have been made of the same model by the same recipes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rule in RECIPES.items():
        recipe = folder / f"{name}.yaml"
        places = f"model: {model.resolve()}\noutput: {(folder / name).resolve()}\n"
        text = f"{places}passes:\n  - rtn: {rule}\n{HEAD}"
        if recipe.exists() and recipe.read_text() != text:
            fail(
                f"'{folder}' holds files of another model or of other recipes ('{recipe}'): remove it, or name another "
                "--folder"
            )
        recipe.write_text(text)
        if not (folder / name).exists():
            run([pare, "run", recipe, "--quiet"])
    for kind in {row[1] for row in ROWS}:
        if not (folder / f"{kind}.gguf").exists():
            run([pare, "export", model, folder / f"{kind}.gguf", "--format", kind, "--quiet"])


def llama_speeds(program, file, arguments):
    command = [program, "-m", file, "-t", arguments.threads, "-p", arguments.tokens, "-n", arguments.decode_tokens]
    waiting = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    found = json.loads(run([*command, "-r", "1", "-o", "json"], env=waiting))
    return {"prefill" if test["n_prompt"] else "decode": test["avg_ts"] for test in found}


def pare_speeds(pare, model, mode, arguments):
    command = [pare, "bench", model, "--threads", arguments.threads, "--prefill-tokens", arguments.tokens]
    command += ["--decode-tokens", arguments.decode_tokens, "--repetitions", "1", "--quiet", "--json"]
    found = json.loads(run(command + ([] if mode == "exact" else ["--activations", mode])))
    return {
        "prefill": found["prefill_tokens_per_second"],
        "decode": found["decode_tokens_per_second"],
        "prefill roof": found["prefill_share"],
        "read roof": found["decode_share"],
    }


def perplexity(pare, model, mode, arguments):
    command = [pare, "eval", model, "--text", arguments.text, "--threads", arguments.threads, "--windows", "8"]
    found = json.loads(run(command + ["--quiet", "--json"] + ([] if mode == "exact" else ["--activations", mode])))
    return found["perplexity"]


def measure(arguments, model, folder):
    """Speeds of llama.cpp's types and of our rows in every round, ascending."""
    theirs, ours = {}, {}
    for number in range(arguments.rounds):
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
        done = set()
        for row in ROWS:
            title, kind, artifact, mode = row
            if kind not in done:
                theirs.setdefault(kind, []).append(
                    llama_speeds(arguments.llama_bench, folder / f"{kind}.gguf", arguments)
                )
                done.add(kind)
            path = model if artifact is None else folder / artifact
            ours.setdefault(title, []).append(pare_speeds(arguments.pare, path, mode, arguments))
    values = lambda speeds: {what: sorted(speed[what] for speed in speeds) for what in speeds[0]}
    return {kind: values(all) for kind, all in theirs.items()}, {title: values(all) for title, all in ours.items()}


def speed_text(values):
    """The median, and what the rounds lay between: a host that moves the processors can double the memory's rate."""
    return f"{statistics.median(values):.1f} ({values[0]:.1f} to {values[-1]:.1f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pare", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--llama-bench", type=pathlib.Path, default=os.environ.get("PARE_LLAMA_BENCH"))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--decode-tokens", type=int, default=32)
    parser.add_argument("--folder", type=pathlib.Path)
    parser.add_argument("--text", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.llama_bench is None or not os.access(arguments.llama_bench, os.X_OK):
        fail(
            f"no llama-bench in '{arguments.llama_bench}': name the program with --llama-bench or PARE_LLAMA_BENCH, or "
            "build it with .ci/setup bench"
        )
    if not (arguments.model / "config.json").exists():
        fail(f"'{arguments.model}': expected the folder of a checkpoint, found no config.json in it")
    folder = arguments.folder or pathlib.Path("models/bench-llama") / arguments.model.name
    model = with_tokenizer(arguments.model, folder)
    prepare(arguments.pare, model, folder)
    theirs, ours = measure(arguments, model, folder)
    perplexities = {}
    if arguments.text is not None:
        for title, _, artifact, mode in ROWS:
            path = model if artifact is None else folder / artifact
            perplexities[title] = perplexity(arguments.pare, path, mode, arguments)
    print(f"{arguments.model.name}, {arguments.threads} threads, medians of {arguments.rounds} rounds, tokens/s\n")
    print("| | decode: llama.cpp | pare | ratio | of the read roof | "
          f"prefill of {arguments.tokens}: llama.cpp | pare | ratio | of its roof |"
          + (" perplexity |" if perplexities else ""))
    print("|---" * (10 if perplexities else 9) + "|")
    for title, kind, _, _ in ROWS:
        cells = []
        for what, roof in (("decode", "read roof"), ("prefill", "prefill roof")):
            peer, own = theirs[kind][what], ours[title]
            ratio = statistics.median(own[what]) / statistics.median(peer)
            cells += [speed_text(peer), speed_text(own[what]), f"{ratio:.2f}", f"{statistics.median(own[roof]):.2f}"]
        print(f"| {title} | " + " | ".join(cells) + " |" + (f" {perplexities[title]:.4f} |" if perplexities else ""))


if __name__ == "__main__":
    main()
