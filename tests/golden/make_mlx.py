"""Makes tests/golden/mlx: tiny random checkpoints with the rounding of mlx-lm, written out in numpy.

Each folder holds config.json, model.safetensors and dense.safetensors: the weights W = scale * code + bias of some
quantized modules, [O, I], in float32, as mlx.core.dequantize documents them.

    w4      4 bits in groups of 64, scales and biases in float16; embedding and head too; a layer of 8 bits
    w6      6 bits in groups of 32, scales and biases in bfloat16; head and k_proj are not quantized
    mixed   4 bits in groups of 32, float16; q_proj has biases that are multiples of its scales, as AutoRound has them

mlx.core.quantize takes the edge of a group that is furthest from 0 as the bias, and makes the scale a divisor of it:
so 0 has a code. Scale and bias are rounded to the weight's type after that, each by itself.

    python tests/golden/make_mlx.py      # needs numpy alone; deterministic
"""

import json
import pathlib
import struct

import numpy as np

OUT = pathlib.Path(__file__).resolve().parent / "mlx"
WIDTH, INNER, HEADS, KV_HEADS, TOKENS = 64, 128, 4, 2, 64
BLOCK = "model.layers.0."
SHAPES = {
    "model.embed_tokens": (TOKENS, WIDTH),
    BLOCK + "self_attn.q_proj": (WIDTH, WIDTH),
    BLOCK + "self_attn.k_proj": (WIDTH // 2, WIDTH),
    BLOCK + "self_attn.v_proj": (WIDTH // 2, WIDTH),
    BLOCK + "self_attn.o_proj": (WIDTH, WIDTH),
    BLOCK + "mlp.gate_proj": (INNER, WIDTH),
    BLOCK + "mlp.up_proj": (INNER, WIDTH),
    BLOCK + "mlp.down_proj": (WIDTH, INNER),
    "lm_head": (TOKENS, WIDTH),
}
CHECKED = ["model.embed_tokens", BLOCK + "self_attn.q_proj", BLOCK + "mlp.down_proj"]
NORMS = ["model.norm", BLOCK + "input_layernorm", BLOCK + "post_attention_layernorm"]
MODELS = {
    "w4": dict(bits=4, group_size=64, dtype="F16", own={BLOCK + "mlp.down_proj": {"bits": 8, "group_size": 64}}),
    "w6": dict(bits=6, group_size=32, dtype="BF16", own={"lm_head": False, BLOCK + "self_attn.k_proj": False}),
    "mixed": dict(bits=4, group_size=32, dtype="F16", own={"model.embed_tokens": False, "lm_head": False},
                  whole=[BLOCK + "self_attn.q_proj"]),
}


def rounded(values, dtype):
    """float32 values that the type holds, to nearest even."""
    values = np.asarray(values, np.float32)
    if dtype == "F16":
        return values.astype(np.float16).astype(np.float32)
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def stored(values, dtype):
    if dtype == "F32":
        return np.asarray(values, np.float32).tobytes()
    values = rounded(values, dtype)
    if dtype == "F16":
        return values.astype(np.float16).tobytes()
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def quantize(weight, bits, group_size, dtype, whole):
    groups = weight.reshape(weight.shape[0], -1, group_size)
    low, high = groups.min(-1), groups.max(-1)
    top = 2**bits - 1
    is_low = np.abs(low) > np.abs(high)
    scale = np.maximum((high - low) / np.float32(top), np.float32(1e-7))
    scale = np.where(is_low, scale, -scale)
    edge = np.where(is_low, low, high)
    zero = np.rint(edge / scale)
    scale = rounded(np.where(zero != 0, edge / np.where(zero != 0, zero, 1), scale), dtype)
    bias = rounded(scale * zero if whole else np.where(zero != 0, edge, 0), dtype)
    codes = np.clip(np.rint((groups - bias[..., None]) / scale[..., None]), 0, top).astype(np.uint32)
    values = scale[..., None] * codes.astype(np.float32) + bias[..., None]
    return codes.reshape(weight.shape), scale, bias, values.astype(np.float32).reshape(weight.shape)


def packed(codes, bits):
    """Each row is one stream of bits, the lowest first, in words of 32."""
    shifts = np.arange(bits, dtype=np.uint32)
    stream = ((codes[..., None] >> shifts) & 1).reshape(codes.shape[0], -1, 32).astype(np.uint32)
    return (stream << np.arange(32, dtype=np.uint32)).sum(-1, dtype=np.uint32)


def save(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, part) in sorted(tensors.items()):
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def make(name, model, generator):
    dtype = model["dtype"]
    base = {"group_size": model["group_size"], "bits": model["bits"]}
    tensors, dense = {}, {}
    for module, shape in SHAPES.items():
        weight = rounded(generator.standard_normal(shape).astype(np.float32) * np.float32(0.05), dtype)
        entry = model["own"].get(module, base)
        if entry is False:
            tensors[module + ".weight"] = (dtype, shape, stored(weight, dtype))
            continue
        codes, scale, bias, values = quantize(weight, entry["bits"], entry["group_size"], dtype,
                                              module in model.get("whole", []))
        words = packed(codes, entry["bits"])
        tensors[module + ".weight"] = ("U32", words.shape, words.tobytes())
        tensors[module + ".scales"] = (dtype, scale.shape, stored(scale, dtype))
        tensors[module + ".biases"] = (dtype, bias.shape, stored(bias, dtype))
        if module in CHECKED:
            dense[module + ".weight"] = ("F32", shape, stored(values, "F32"))
    for norm in NORMS:
        tensors[norm + ".weight"] = (dtype, (WIDTH,), stored(np.ones(WIDTH), dtype))
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH,
        "intermediate_size": INNER, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": 16,
        "num_hidden_layers": 1, "vocab_size": TOKENS, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu", "bos_token_id": 1,
        "eos_token_id": 2, "torch_dtype": {"F16": "float16", "BF16": "bfloat16"}[dtype],
    }
    quantization = base | model["own"]
    config |= {"quantization": quantization, "quantization_config": quantization}
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save(folder / "model.safetensors", tensors)
    save(folder / "dense.safetensors", dense)


for seed, (name, model) in enumerate(MODELS.items()):
    make(name, model, np.random.default_rng(seed))
