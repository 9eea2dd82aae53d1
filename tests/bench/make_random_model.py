#!/usr/bin/env python3
"""A Hugging Face checkpoint with random bf16 weights in the shape of TinyLlama 1.1B, for benchmarks: as large as a real one and not
to be downloaded. The same seed gives the same bytes. Tensors are written one by one; at most one is in memory.

usage: make_random_model.py OUT [--blocks 22] [--seed 0]
"""
import argparse
import json
import pathlib
import struct

import numpy

HIDDEN, HEADS, KV_HEADS, FEED_FORWARD, VOCABULARY = 2048, 32, 4, 5632, 32000
KV_WIDTH = HIDDEN // HEADS * KV_HEADS


def config(num_blocks):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_act": "silu",
            "hidden_size": HIDDEN, "intermediate_size": FEED_FORWARD, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
            "num_hidden_layers": num_blocks, "vocab_size": VOCABULARY, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2}


def shapes(num_blocks):
    """Names and shapes of all tensors, in the order in which they are written."""
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    for block in range(num_blocks):
        name = f"model.layers.{block}."
        yield name + "input_layernorm.weight", (HIDDEN,)
        for linear, width in (("q", HIDDEN), ("k", KV_WIDTH), ("v", KV_WIDTH), ("o", HIDDEN)):
            yield f"{name}self_attn.{linear}_proj.weight", (width, HIDDEN)
        yield name + "post_attention_layernorm.weight", (HIDDEN,)
        yield name + "mlp.gate_proj.weight", (FEED_FORWARD, HIDDEN)
        yield name + "mlp.up_proj.weight", (FEED_FORWARD, HIDDEN)
        yield name + "mlp.down_proj.weight", (HIDDEN, FEED_FORWARD)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCABULARY, HIDDEN)


def tensor(shape, random):
    """bf16 as its bits: norms are 1; of the others sign, mantissa and the exponent's last bit are random, so that magnitudes lie in
    [2^-7, 2^-5), near those of trained weights."""
    if len(shape) == 1:
        return numpy.full(shape, 0x3F80, numpy.uint16)
    return random.integers(0, 1 << 16, shape, numpy.uint16) & numpy.uint16(0x80FF) | numpy.uint16(0x3C00)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--blocks", type=int, default=22)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True)
    (arguments.out / "config.json").write_text(json.dumps(config(arguments.blocks), indent=2) + "\n")
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes(arguments.blocks):
        end = offset + 2 * int(numpy.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * ((56 - len(text)) % 64)  # tensors begin on a multiple of 64
    random = numpy.random.Generator(numpy.random.PCG64(arguments.seed))
    with open(arguments.out / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, shape in shapes(arguments.blocks):
            tensor(shape, random).tofile(file)


if __name__ == "__main__":
    main()
