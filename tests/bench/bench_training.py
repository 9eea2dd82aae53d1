#!/usr/bin/env python3
"""Times distillation beside PyTorch + transformers doing the same: forward KL from a live teacher of the same
architecture, AdamW on linears and norms, gradients clipped, the same windows, batches and precision.

usage: bench_training.py PARE MODEL WINDOWS.npy [--tokens N] [--rounds N] [--micro-batch N] [--precision
    bfloat16|float32]

Each round runs both, in turn. Printed: tokens a second of the training itself (without loading, validation and saving)
and the peak of the memory held (RssAnon + RssShmem, sampled), by round and as medians, and their ratios.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time


def held_bytes(pid="self"):
    held = 0
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(("RssAnon:", "RssShmem:")):
            held += int(line.split()[1]) * 1024
    return held


def run_transformers(arguments):
    """The same steps as `pare run`; prints one JSON object. In a process of its own."""
    import numpy
    import torch
    import torch.nn.functional as F
    import transformers

    peak, stop = [0], threading.Event()

    def sample():
        while not stop.wait(0.01):
            peak[0] = max(peak[0], held_bytes())

    threading.Thread(target=sample, daemon=True).start()
    bfloat16 = arguments.precision == "bfloat16"
    load = lambda dtype: transformers.AutoModelForCausalLM.from_pretrained(arguments.model, dtype=dtype)
    teacher = load(torch.bfloat16 if bfloat16 else torch.float32).eval().requires_grad_(False)
    student = load(torch.float32).train()
    student.get_input_embeddings().weight.requires_grad_(False)
    student.get_output_embeddings().weight.requires_grad_(False)
    trained = [p for p in student.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, betas=(0.9, 0.95), weight_decay=0.0)
    ids = torch.from_numpy(numpy.load(arguments.windows).astype("int64"))
    num_tokens = ids.shape[1]
    num_steps = arguments.tokens // (arguments.batch * num_tokens)
    start = time.time()
    for step in range(num_steps):
        batch = ids[torch.arange(step * arguments.batch, (step + 1) * arguments.batch) % len(ids)]
        for part in batch.split(arguments.micro_batch):
            with torch.no_grad():
                target = teacher(part).logits[:, :-1].float().log_softmax(-1)
            with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                logits = student(part).logits[:, :-1]
            loss = F.kl_div(logits.float().log_softmax(-1), target, log_target=True, reduction="none").sum(-1).mean()
            (loss * len(part) / arguments.batch).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    seconds = time.time() - start
    stop.set()
    print(
        json.dumps(
            {"tokens_per_second": num_steps * arguments.batch * num_tokens / seconds, "peak_memory_bytes": peak[0]}
        )
    )


def run_pare(arguments):
    with tempfile.TemporaryDirectory() as folder:
        recipe = pathlib.Path(folder) / "recipe.yaml"
        recipe.write_text(
            f"model: {arguments.model}\noutput: {folder}/out\npasses:\n  - distill: {{text: {arguments.windows}, "
            f"total_tokens: {arguments.tokens}, batch: {arguments.batch}, micro_batch: {arguments.micro_batch}, "
            f"loss: forward_kl, learning_rate: 1e-5, validations: 1, validation_windows: 1, "
            f"precision: {arguments.precision}}}\n")
        report = json.loads(subprocess.run([arguments.pare, "run", str(recipe), "--json", "--quiet"], check=True,
                                           capture_output=True, text=True).stdout)
    return {
        "tokens_per_second": report["training"]["tokens_per_second"],
        "peak_memory_bytes": report["peak_memory_bytes"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pare")
    parser.add_argument("model")
    parser.add_argument("windows")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--transformers-only", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.transformers_only:
        return run_transformers(arguments)
    found = {"pare": [], "transformers": []}
    for number in range(arguments.rounds):
        found["pare"].append(run_pare(arguments))
        found["transformers"].append(
            json.loads(
                subprocess.run(
                    [sys.executable, *sys.argv, "--transformers-only"], check=True, capture_output=True, text=True
                ).stdout.splitlines()[-1]
            )
        )
        for name, runs in found.items():
            print(f"round {number + 1}  {name:13} {runs[-1]['tokens_per_second']:8.1f} tokens/s  "
                  f"{runs[-1]['peak_memory_bytes'] / 2**20:8.0f} MiB", flush=True)
    median = lambda name, key: statistics.median(run[key] for run in found[name])
    for key, what in (("tokens_per_second", "tokens/s"), ("peak_memory_bytes", "peak memory")):
        print(
            f"{what}: pare / transformers = {median('pare', key) / median('transformers', key):.3f} (medians of "
            f"{arguments.rounds})"
        )


if __name__ == "__main__":
    main()
