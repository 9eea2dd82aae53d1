#!/usr/bin/env python3
"""Makes tests/golden/gguf: small GGUF files written by the gguf package, and what it decodes them to.

usage: make_gguf.py     (from anywhere; needs gguf, numpy, safetensors, torch)

blocks.gguf, blocks.f32   one tensor per block type: random codes under sane scales; the package's own dequantization
NAME.gguf                 the checkpoints of tests/golden/families, renamed and permuted as llama.cpp's converter does
it
"""
import json
import pathlib

import gguf
import numpy as np
from safetensors.torch import load_file

HERE = pathlib.Path(__file__).parent
OUT = HERE / "gguf"
TYPES = [
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K", "IQ1_S",
    "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4",
    "NVFP4",
]
# Byte offsets of the fp16 scales in a block: random bytes there would be infinite or NaN.
SCALES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "IQ1_S": [0],
    "IQ1_M": [],  # in the highest bits of four words
    "IQ2_XXS": [0],
    "IQ2_XS": [0],
    "IQ2_S": [0],
    "IQ3_XXS": [0],
    "IQ3_S": [0],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
    "TQ1_0": [52],
    "TQ2_0": [64],
    "MXFP4": [],  # every exponent is sane but that of NaN
    "NVFP4": [],  # likewise, and that of NaN stands for 0
}
ROWS, WIDTH = 3, 512


def block_files(random):
    writer = gguf.GGUFWriter(OUT / "blocks.gguf", "test")
    decoded = []
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        if name == "F32":
            raw = random.standard_normal((ROWS, WIDTH)).astype(np.float32)
        elif name == "F16":
            raw = random.standard_normal((ROWS, WIDTH)).astype(np.float16)
        elif name == "BF16":
            raw = (
                (random.standard_normal((ROWS, WIDTH)).astype(np.float32).view(np.uint32) >> 16)
                .astype(np.uint16)
                .view(np.uint8)
                .reshape(ROWS, -1)
            )
        else:
            blocks = random.integers(0, 256, (ROWS * WIDTH // elements, size), dtype=np.uint8)
            for offset in SCALES[name]:
                blocks[:, offset : offset + 2] = (
                    random.normal(0, 0.1, (len(blocks), 1)).astype(np.float16).view(np.uint8)
                )
            if name == "IQ1_M":
                scales = random.normal(0, 0.1, len(blocks)).astype(np.float16).view(np.uint16)
                for word in range(4):
                    high = (scales >> np.uint16(4 * word) & np.uint16(15)).astype(np.uint8) << 4
                    blocks[:, 49 + 2 * word] = (blocks[:, 49 + 2 * word] & 15) | high
            if name == "MXFP4":
                blocks[:, 0] = random.integers(0, 140, len(blocks))
            raw = blocks.reshape(ROWS, -1)
        writer.add_tensor("weight." + name, raw, raw_dtype=kind)
        decoded.append(gguf.dequantize(raw, kind).astype(np.float32).reshape(-1))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    np.concatenate(decoded).tofile(OUT / "blocks.f32")


def permute(weight, heads):
    """llama.cpp's order: the two halves of each head's rows are interleaved."""
    rows = weight.shape[0]
    return weight.reshape(heads, 2, rows // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def byte_alphabet():
    """GPT-2's printable stand-ins for the 256 bytes."""
    printable = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, extra = {}, 0
    for byte in range(256):
        if byte in printable:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(256 + extra)
            extra += 1
    return table


def family_file(folder, architecture):
    config = json.loads((HERE / "families" / folder / "config.json").read_text())
    tensors = {
        name: t.float().numpy() for name, t in load_file(HERE / "families" / folder / "model.safetensors").items()
    }
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta")}
    rope = rope.get("full_attention", rope)
    writer = gguf.GGUFWriter(OUT / f"{folder}.gguf", architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(config["head_dim"]) if "head_dim" in config else None
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if architecture == "gemma3":
        writer.add_sliding_window(config["sliding_window"])
    alphabet = byte_alphabet()
    tokens = ["<s>", "</s>"] + [alphabet[b] for b in range(config["vocab_size"] - 3)] + ["hi"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (len(tokens) - 2))
    writer.add_token_merges([f"{alphabet[104]} {alphabet[105]}"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config["num_hidden_layers"])
    for name, values in sorted(tensors.items()):
        if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            values = permute(values, heads if ".q_proj." in name else kv_heads)
        if architecture == "gemma3" and name.endswith("norm.weight"):
            values = values + np.float32(1)
        suffix = name[name.rindex("."):]
        writer.add_tensor(names.get_name(name.removesuffix(suffix)) + suffix, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    block_files(np.random.default_rng(0))
    family_file("llama_gqa_untied", "llama")
    family_file("qwen2_biases_tied", "qwen2")
    family_file("qwen3_norms_bf16", "qwen3")
    family_file("gemma3_local_global", "gemma3")
