#!/usr/bin/env python3
"""Plants outlier channels in a Hugging Face decoder without changing what it computes.

    plant_outliers.py MODEL OUT [--channels 4] [--factor 64] [--seed 0]

In each block a few channels of both norms' gains are multiplied by a power of two, and the columns of the linears that
read them (q, k, v; gate, up) divided by it. Powers of two change exponents alone, so the model's logits stay the same
bits in exact arithmetic, while the inputs of those linears get the few huge channels that large models have by
themselves (LLM.int8, arXiv 2208.07339, section 4; SmoothQuant, arXiv 2211.10438, section 4).
"""
import argparse
import json
import pathlib
import random
import shutil

import torch
from safetensors.torch import load_file, save_file

CONSUMERS = {
    "input_layernorm": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "post_attention_layernorm": ["mlp.gate_proj", "mlp.up_proj"],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--channels", type=int, default=4)
    parser.add_argument("--factor", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.factor < 1 or arguments.factor & (arguments.factor - 1):
        parser.error(f"--factor: expected a power of two, found {arguments.factor}")

    config = json.loads((arguments.model / "config.json").read_text())
    tensors = load_file(arguments.model / "model.safetensors")
    # The same channels in every block, as in large models, where outliers live in fixed channels of the residual
    # stream.
    channels = sorted(random.Random(arguments.seed).sample(range(config["hidden_size"]), arguments.channels))
    for block in range(config["num_hidden_layers"]):
        for norm, linears in CONSUMERS.items():
            gain = tensors[f"model.layers.{block}.{norm}.weight"]
            gain[channels] *= arguments.factor
            for linear in linears:
                weight = tensors[f"model.layers.{block}.{linear}.weight"]
                before = weight[:, channels].clone()
                weight[:, channels] /= arguments.factor
                if not torch.equal(weight[:, channels] * arguments.factor, before):
                    raise SystemExit(f"{linear} of block {block}: a weight is too small to be divided exactly")
    arguments.out.mkdir(parents=True)
    for file in arguments.model.iterdir():
        if file.is_file() and file.name != "model.safetensors":
            shutil.copy(file, arguments.out)
    save_file(tensors, arguments.out / "model.safetensors", metadata={"format": "pt"})
    print(f"{arguments.out}: channels {channels} of every norm's output times {arguments.factor}")


if __name__ == "__main__":
    main()
