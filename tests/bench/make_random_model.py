#!/usr/bin/env python3
"""A Hugging Face checkpoint with random bf16 weights in the shape of a real one, for benchmarks and for comparing
devices: as large and not to be downloaded. The same shape and seed give the same bytes everywhere (PCG64's raw words).
         Tensors are written one by one; at most one is
in memory.

usage: make_random_model.py OUT [--shape tinyllama|smollm2|opt-1.3b|llama2-7b] [--blocks N] [--seed 0]
"""
import argparse
import json
import pathlib
import struct

import numpy

# Norms are 1; of the other weights sign, mantissa and the exponent's last bit are random. exponent: the other bits of
# it.
SHAPES = {
    # TinyLlama 1.1B; magnitudes in [2^-7, 2^-5), near those of trained weights.
    "tinyllama": {
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "exponent": 0x3C00,
    },
    # SmolLM2-135M; magnitudes in [2^-5, 2^-3), so that attention and logits are far from uniform.
    "smollm2": {
        "hidden_size": 576,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
        "exponent": 0x3D00,
    },
    # Llama 2 7B, 13.5 GB: for plans (--dry-run).
    "llama2-7b": {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "exponent": 0x3C00,
    },
    # OPT 1.3B; magnitudes in [2^-7, 2^-5). Biases are 0.
    "opt-1.3b": {
        "model_type": "opt",
        "hidden_size": 2048,
        "word_embed_proj_dim": 2048,
        "num_attention_heads": 32,
        "ffn_dim": 8192,
        "num_hidden_layers": 24,
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
        "do_layer_norm_before": True,
        "activation_function": "relu",
        "tie_word_embeddings": True,
        "exponent": 0x3C00,
    },
}


def config(shape):
    if shape.get("model_type") == "opt":
        fixed = {"architectures": ["OPTForCausalLM"], "torch_dtype": "bfloat16", "bos_token_id": 2, "eos_token_id": 2}
        return fixed | {key: value for key, value in shape.items() if key != "exponent"}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 2,
    } | {key: value for key, value in shape.items() if key != "exponent"}


def tensors_of_opt(shape):
    hidden, feed_forward = shape["hidden_size"], shape["ffn_dim"]
    yield "model.decoder.embed_tokens.weight", (shape["vocab_size"], hidden)
    yield "model.decoder.embed_positions.weight", (shape["max_position_embeddings"] + 2, hidden)
    for block in range(shape["num_hidden_layers"]):
        name = f"model.decoder.layers.{block}."
        linears = [(f"self_attn.{linear}", hidden, hidden) for linear in ("q_proj", "k_proj", "v_proj", "out_proj")]
        linears += [("fc1", feed_forward, hidden), ("fc2", hidden, feed_forward)]
        for linear, num_out, num_in in linears:
            yield f"{name}{linear}.weight", (num_out, num_in)
            yield f"{name}{linear}.bias", (num_out,)
        for norm in ("self_attn_layer_norm", "final_layer_norm"):
            yield f"{name}{norm}.weight", (hidden,)
            yield f"{name}{norm}.bias", (hidden,)
    yield "model.decoder.final_layer_norm.weight", (hidden,)
    yield "model.decoder.final_layer_norm.bias", (hidden,)


def tensors(shape):
    """Names and shapes of all tensors, in the order in which they are written."""
    if shape.get("model_type") == "opt":
        yield from tensors_of_opt(shape)
        return
    hidden, feed_forward, vocabulary = shape["hidden_size"], shape["intermediate_size"], shape["vocab_size"]
    kv_width = hidden // shape["num_attention_heads"] * shape["num_key_value_heads"]
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    for block in range(shape["num_hidden_layers"]):
        name = f"model.layers.{block}."
        yield name + "input_layernorm.weight", (hidden,)
        for linear, width in (("q", hidden), ("k", kv_width), ("v", kv_width), ("o", hidden)):
            yield f"{name}self_attn.{linear}_proj.weight", (width, hidden)
        yield name + "post_attention_layernorm.weight", (hidden,)
        yield name + "mlp.gate_proj.weight", (feed_forward, hidden)
        yield name + "mlp.up_proj.weight", (feed_forward, hidden)
        yield name + "mlp.down_proj.weight", (hidden, feed_forward)
    yield "model.norm.weight", (hidden,)
    if not shape["tie_word_embeddings"]:
        yield "lm_head.weight", (vocabulary, hidden)


def random_bits(name, size, exponent, random):
    """bf16 as its bits."""
    if name.endswith(".bias"):
        return numpy.zeros(size, numpy.uint16)
    if len(size) == 1:
        return numpy.full(size, 0x3F80, numpy.uint16)
    num = int(numpy.prod(size))
    words = random.random_raw((num + 3) // 4).astype("<u8").view("<u2")[:num].reshape(size)
    return words & numpy.uint16(0x80FF) | numpy.uint16(exponent)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--shape", choices=SHAPES, default="tinyllama")
    parser.add_argument("--blocks", type=int, help="default: as many as the shape has")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    shape = SHAPES[arguments.shape] | ({"num_hidden_layers": arguments.blocks} if arguments.blocks else {})
    arguments.out.mkdir(parents=True)
    (arguments.out / "config.json").write_text(json.dumps(config(shape), indent=2) + "\n")
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, size in tensors(shape):
        end = offset + 2 * int(numpy.prod(size))
        header[name] = {"dtype": "BF16", "shape": list(size), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * ((56 - len(text)) % 64)  # tensors begin on a multiple of 64
    random = numpy.random.PCG64(arguments.seed)
    with open(arguments.out / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, size in tensors(shape):
            random_bits(name, size, shape["exponent"], random).tofile(file)


if __name__ == "__main__":
    main()
