#!/usr/bin/env python3
"""Writes the corpora of tests/fuzz/corpus that are binary or built of several files; the others are kept as they are.

usage: make_corpus.py      a small file for each feature, always the same bytes
"""
import json
import pathlib
import random
import struct

CORPUS = pathlib.Path(__file__).parent / "corpus"
GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
V, D, F = 4, 8, 16


def write(folder, name, content):
    (CORPUS / folder).mkdir(parents=True, exist_ok=True)
    (CORPUS / folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


# --- GGUF ---

def gguf_string(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf_value(value):
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return struct.pack("<Ii", 5, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + gguf_string(value)
    items = [gguf_value(item) for item in value]
    return struct.pack("<I", 9) + items[0][:4] + struct.pack("<Q", len(items)) + b"".join(item[4:] for item in items)


def gguf(metadata, tensors):
    """tensors: name -> (shape, ggml type, bytes)"""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(gguf_string(key) + gguf_value(value) for key, value in metadata.items())
    data = b""
    for name, (shape, kind, content) in tensors.items():
        head += (
            gguf_string(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in reversed(shape))
        )
        head += struct.pack("<IQ", kind, len(data))
        data += content + b"\0" * (-len(content) % 32)
    return head + b"\0" * (-len(head) % 32) + data


SENTENCEPIECE = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "a", "\u2581", "\u2581a"],
    "tokenizer.ggml.token_type": [2, 1, 1, 1],
    "tokenizer.ggml.scores": [0.0, -2.0, -3.0, -1.0],
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.add_space_prefix": True,
}
BYTE_LEVEL = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "llama-bpe",
    "tokenizer.ggml.tokens": ["a", "b", "ab", "<s>"],
    "tokenizer.ggml.token_type": [1, 1, 1, 3],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 3,
    "tokenizer.chat_template": "{{ messages }}",
}


def gguf_model(architecture, vocabulary, kind=0, extra=()):
    size = {0: lambda n: 4 * n, 1: lambda n: 2 * n, 8: lambda n: n // 32 * 34}[kind]
    width = 32 if kind == 8 else D
    metadata = {"general.architecture": architecture}
    for key, value in (("block_count", 1), ("attention.head_count", 2), ("embedding_length", width),
                       ("feed_forward_length", 32 if kind == 8 else F), ("context_length", 16),
                       ("attention.layer_norm_rms_epsilon", 1e-5), *extra):
        metadata[f"{architecture}.{key}"] = value
    tensors = {}

    def add(name, *shape, of=kind):
        count = 1
        for n in shape:
            count *= n
        tensors[name] = (shape, of, b"\0" * (size(count) if of == kind else 4 * count))

    inner = 32 if kind == 8 else F
    add("token_embd.weight", V, width)
    add("output_norm.weight", width, of=0)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        add(f"blk.0.{name}.weight", width, width)
        if architecture == "qwen2" and name != "attn_output":
            add(f"blk.0.{name}.bias", width, of=0)
    norms = ["attn_norm", "ffn_norm"] + (["post_attention_norm", "post_ffw_norm"] if architecture == "gemma3" else [])
    for name in norms:
        add(f"blk.0.{name}.weight", width, of=0)
    if architecture in ("qwen3", "gemma3"):
        for name in ("attn_q_norm", "attn_k_norm"):
            add(f"blk.0.{name}.weight", width // 2, of=0)
    add("blk.0.ffn_gate.weight", inner, width)
    add("blk.0.ffn_up.weight", inner, width)
    add("blk.0.ffn_down.weight", width, inner)
    return gguf(metadata | vocabulary, tensors)


# Not of one shape with the others: q, k and v in one tensor, biases, LayerNorms; latents, experts, later tokens.
def gguf_of(architecture, keys, shapes):
    metadata = {"general.architecture": architecture} | {f"{architecture}.{key}": value for key, value in keys.items()}
    tensors = {}
    for name, shape in shapes.items():
        count = 1
        for n in shape:
            count *= n
        tensors[name] = (shape, 0, b"\0" * (4 * count))
    return gguf(metadata | BYTE_LEVEL, tensors)


def bloom():
    keys = {"block_count": 1, "attention.head_count": 2, "embedding_length": D, "feed_forward_length": 4 * D,
            "context_length": 16, "attention.layer_norm_epsilon": 1e-5}
    shapes = {"token_embd.weight": (V, D)}
    linears = {"attn_qkv": (3 * D, D), "attn_output": (D, D), "ffn_up": (4 * D, D), "ffn_down": (D, 4 * D)}
    for name, shape in linears.items():
        shapes |= {f"blk.0.{name}.weight": shape, f"blk.0.{name}.bias": shape[:1]}
    for name in ("token_embd_norm", "output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        shapes |= {f"{name}.weight": (D,), f"{name}.bias": (D,)}
    return gguf_of("bloom", keys, shapes)


def deepseek():
    experts, inner, latent, rotated = 4, 2, 3, 2
    keys = {"block_count": 2, "attention.head_count": 2, "attention.head_count_kv": 1, "embedding_length": D,
            "feed_forward_length": F, "context_length": 16, "attention.layer_norm_rms_epsilon": 1e-5,
            "attention.q_lora_rank": latent, "attention.kv_lora_rank": latent, "attention.key_length_mla": 4,
            "attention.value_length_mla": 2, "rope.dimension_count": rotated, "expert_count": experts,
            "expert_used_count": 2, "expert_feed_forward_length": inner, "expert_shared_count": 1,
            "expert_group_count": 2, "expert_group_used_count": 1, "expert_weights_norm": True,
            "expert_weights_scale": 2.5, "expert_gating_func": 2, "nextn_predict_layers": 1,
            "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 4,
            "rope.scaling.yarn_log_multiplier": 0.1}
    shapes = {"token_embd.weight": (V, D), "output_norm.weight": (D,)}
    for b in range(2):
        block = {"attn_norm": (D,), "ffn_norm": (D,), "attn_q_a": (latent, D), "attn_q_a_norm": (latent,),
                 "attn_q_b": (8, latent), "attn_kv_a_mqa": (latent + rotated, D), "attn_kv_a_norm": (latent,),
                 "attn_k_b": (2, latent, 2), "attn_v_b": (2, 2, latent), "attn_output": (D, 4),
                 "ffn_gate_inp": (experts, D), "ffn_gate_exps": (experts, inner, D),
                 "ffn_up_exps": (experts, inner, D), "ffn_down_exps": (experts, D, inner),
                 "ffn_gate_shexp": (inner, D), "ffn_up_shexp": (inner, D), "ffn_down_shexp": (D, inner)}
        shapes |= {f"blk.{b}.{name}.weight": shape for name, shape in block.items()}
        shapes[f"blk.{b}.exp_probs_b.bias"] = (experts,)
    shapes["blk.1.nextn.eh_proj.weight"] = (D, 2 * D)
    return gguf_of("deepseek2", keys, shapes)


def make_gguf():
    write("import_gguf", "bloom.gguf", bloom())
    write("import_gguf", "deepseek2.gguf", deepseek())
    write("import_gguf", "llama.gguf", gguf_model("llama", SENTENCEPIECE, extra=[("rope.dimension_count", D // 2)]))
    write("import_gguf", "llama_q8.gguf", gguf_model("llama", BYTE_LEVEL, kind=8))
    write("import_gguf", "qwen2_f16.gguf", gguf_model("qwen2", BYTE_LEVEL | {"tokenizer.ggml.pre": "qwen2"}, kind=1))
    write("import_gguf", "qwen3.gguf", gguf_model("qwen3", BYTE_LEVEL, extra=[("attention.key_length", D // 2)]))
    write("import_gguf", "gemma3.gguf", gguf_model("gemma3", SENTENCEPIECE, extra=[
        ("attention.key_length", D // 2), ("attention.sliding_window", 8), ("rope.freq_base", 1e6)]))


# --- llama2.c ---

def make_llama2c():
    tokens = [b"<unk>", b"\n<s>\n", b"\n</s>\n"] + [b"<0x%02X>" % i for i in range(256)] + [b" ", b"a", b" a"]
    vocabulary = struct.pack("<i", 8) + b"".join(
        struct.pack("<fi", -float(i), len(t)) + t for i, t in enumerate(tokens)
    )
    for name, tied in (("tied", True), ("untied", False)):
        width, inner, count = 4, 4, len(tokens)
        floats = 2 * count * width if not tied else count * width
        floats += 4 * width * width + 2 * width + 3 * width * inner + width + width // 2 * 8
        model = struct.pack("<7i", width, inner, 1, 2, 2, count if tied else -count, 8) + b"\0" * (4 * floats)
        write("import_llama2c", name, struct.pack("<H", len(vocabulary)) + vocabulary + model)


# --- checkpoints: files one behind another, as fuzz_checkpoint.cpp reads them ---

NAMES = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "pare.json",
         "1_Pooling/config.json", "sentence_bert_config.json", "model.safetensors.index.json",
         "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
BYTES = {"F32": 4, "BF16": 2, "F16": 2, "I8": 1, "U8": 1, "F8_E4M3": 1, "I32": 4, "U32": 4, "I64": 8}


def safetensors(tensors):
    """tensors: name -> (dtype, shape) of zeros, or (dtype, shape, bytes)"""
    header, data = {}, b""
    for name, (dtype, shape, *content) in tensors.items():
        size = BYTES[dtype]
        for n in shape:
            size *= n
        part = content[0] if content else b"\0" * size
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def checkpoint(name, files):
    content = b""
    for file, data in files.items():
        data = (
            data if isinstance(data, bytes) else data.encode() if isinstance(data, str) else json.dumps(data).encode()
        )
        content += bytes([NAMES.index(file)]) + struct.pack("<I", len(data))[:3] + data
    write("checkpoint", name, content)


LINEARS = {"self_attn.q_proj": (D, D), "self_attn.k_proj": (D, D), "self_attn.v_proj": (D, D),
           "self_attn.o_proj": (D, D), "mlp.gate_proj": (F, D), "mlp.up_proj": (F, D), "mlp.down_proj": (D, F)}
LLAMA = {"model_type": "llama", "hidden_size": D, "intermediate_size": F, "num_hidden_layers": 1,
         "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": V, "max_position_embeddings": 16,
         "tie_word_embeddings": True, "torch_dtype": "float32"}


def llama_tensors(linear, times=1):
    """linear(module, rows, columns) -> its tensors; all widths are `times` as large"""
    width = times * D
    tensors = {"model.embed_tokens.weight": ("F32", [V, width]), "model.norm.weight": ("F32", [width])}
    for norm in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"model.layers.0.{norm}.weight"] = ("F32", [width])
    for module, (rows, columns) in LINEARS.items():
        tensors |= linear("model.layers.0." + module, times * rows, times * columns)
    return tensors


def dense(module, rows, columns):
    return {module + ".weight": ("F32", [rows, columns])}


def int8(module, rows, columns):
    return {module + ".weight": ("I8", [rows, columns]), module + ".SCB": ("F32", [rows])}


def awq(module, rows, columns):
    return {module + ".qweight": ("I32", [columns, rows // 8]), module + ".qzeros": ("I32", [columns // 8, rows // 8]),
            module + ".scales": ("F16", [columns // 8, rows])}


def gptq(module, rows, columns):
    return {module + ".qweight": ("I32", [columns // 8, rows]), module + ".qzeros": ("I32", [columns // 8, rows // 8]),
            module + ".scales": ("F16", [columns // 8, rows]), module + ".g_idx": ("I32", [columns])}


def packed(module, rows, columns):
    return {
        module + ".weight_packed": ("I32", [rows, columns // 8]),
        module + ".weight_scale": ("F32", [rows, columns // 8]),
        module + ".weight_shape": ("I64", [2], struct.pack("<2q", rows, columns)),
    }


def nvfp4(module, rows, columns):
    return {
        module + ".weight_packed": ("U8", [rows, columns // 2]),
        module + ".weight_scale": ("F8_E4M3", [rows, columns // 16]),
        module + ".weight_global_scale": ("F32", [1], struct.pack("<f", 3.5)),
    }


def nvfp4_inputs(module, rows, columns):
    factor = struct.pack("<f", 448.0)
    return nvfp4(module, rows, columns) | {module + ".input_global_scale": ("F32", [1], factor)}


def mlx(module, rows, columns, bias=-8.0):
    groups = rows * columns // 8
    return {module + ".weight": ("U32", [rows, columns // 8]),
            module + ".scales": ("F16", [rows, columns // 8], struct.pack("<e", 1.0) * groups),
            module + ".biases": ("F16", [rows, columns // 8], struct.pack("<e", bias) * groups)}


def mlx_free(module, rows, columns):
    return mlx(module, rows, columns, bias=-8.25)


def make_checkpoints():
    tokenizer = (CORPUS / "tokenizer" / "sentencepiece.json").read_text()
    manifest = {"outputs": {"config.json": "0" * 64},
                "layers": [{"name": "model.layers.0.mlp.up_proj", "sparsity": 0.5, "pattern": "2:4"}]}
    whole = llama_tensors(dense)
    checkpoint("dense", {"config.json": LLAMA, "model.safetensors": safetensors(whole), "tokenizer.json": tokenizer,
                         "tokenizer_config.json": {"add_bos_token": True, "bos_token": "<s>"}, "pare.json": manifest})
    names = sorted(whole)
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    checkpoint("sharded", {
        "config.json": LLAMA,
        "model.safetensors.index.json": {"weight_map": {n: first if i < 5 else second for i, n in enumerate(names)}},
        first: safetensors({n: whole[n] for n in names[:5]}), second: safetensors({n: whole[n] for n in names[5:]})})
    containers = {
        "bitsandbytes": (
            int8,
            {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_skip_modules": ["lm_head"]},
        ),
        "awq": (awq, {"quant_method": "awq", "version": "gemm", "bits": 4, "group_size": 8, "zero_point": True}),
        "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 8, "sym": False, "desc_act": True,
                        "dynamic": {"-:lm_head": {}, "+:.*up_proj": {"group_size": 8}}}),
        "mlx": (mlx, {"bits": 4, "group_size": 8, "model.embed_tokens": False}),
        "mlx_free": (mlx_free, {"bits": 4, "group_size": 8, "mode": "affine", "model.embed_tokens": False}),
        "packed": (
            packed,
            {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "quantization_status": "compressed",
                "ignore": ["re:.*lm_head"],
                "config_groups": {
                    "group_0": {
                        "targets": ["Linear"],
                        "weights": {
                            "num_bits": 4,
                            "type": "int",
                            "symmetric": True,
                            "strategy": "group",
                            "group_size": 8,
                        },
                    }
                },
            },
        ),
    }
    for name, (linear, config) in containers.items():
        checkpoint(name, {"config.json": LLAMA | {"quantization_config": config},
                          "model.safetensors": safetensors(llama_tensors(linear))})
    fp4 = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "ignore": ["lm_head"],
           "config_groups": {"group_0": {
               "targets": ["Linear"], "format": "nvfp4-pack-quantized",
               "weights": {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group",
                           "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"}}}}
    wide = LLAMA | {"hidden_size": 2 * D, "intermediate_size": 2 * F}
    checkpoint("nvfp4", {"config.json": wide | {"quantization_config": fp4},
                         "model.safetensors": safetensors(llama_tensors(nvfp4, times=2))})
    experts = {k: v for k, v in whole.items() if ".mlp." not in k}
    experts["model.layers.0.mlp.gate.weight"] = ("F32", [2, D])
    experts["model.layers.0.mlp.experts.gate_up_proj"] = ("F32", [2, 2 * F, D])
    experts["model.layers.0.mlp.experts.down_proj"] = ("F32", [2, D, F])
    mixtral = LLAMA | {"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 1}
    checkpoint("mixture", {"config.json": mixtral, "model.safetensors": safetensors(experts)})
    bert = {"model_type": "bert", "hidden_size": D, "intermediate_size": F, "num_attention_heads": 2, "vocab_size": V,
            "max_position_embeddings": 8, "type_vocab_size": 2, "num_hidden_layers": 1, "torch_dtype": "float32"}
    tensors = {}
    for table, rows in (("word", V), ("token_type", 2), ("position", 8)):
        tensors[f"embeddings.{table}_embeddings.weight"] = ("F32", [rows, D])
    layer = "encoder.layer.0."
    for norm in ("embeddings", layer + "attention.output", layer + "output"):
        tensors |= {f"{norm}.LayerNorm.{part}": ("F32", [D]) for part in ("weight", "bias")}
    for linear, rows, columns in (
        ("attention.self.query", D, D),
        ("attention.self.key", D, D),
        ("attention.self.value", D, D),
        ("attention.output.dense", D, D),
        ("intermediate.dense", F, D),
        ("output.dense", D, F),
    ):
        tensors |= {f"{layer}{linear}.weight": ("F32", [rows, columns]), f"{layer}{linear}.bias": ("F32", [rows])}
    checkpoint("encoder", {"config.json": bert, "model.safetensors": safetensors(tensors),
                           "1_Pooling/config.json": {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True},
                           "sentence_bert_config.json": {"max_seq_length": 8},
                           "tokenizer.json": (CORPUS / "tokenizer" / "word_piece.json").read_text()})
    group = fp4["config_groups"]["group_0"]
    inputs = group["weights"] | {"dynamic": "local"}
    fp4 = fp4 | {"config_groups": {"group_0": group | {"input_activations": inputs}}}
    write("config", "quantization_fp4_inputs.json", json.dumps(fp4))
    module = "model.layers.0.mlp.down_proj"
    write("config", "quantization_mlx.json",
          json.dumps({"bits": 4, "group_size": 64, "mode": "affine", "lm_head": False,
                      module: {"bits": 8, "group_size": 32}}))
    write("config", "quantization_auto_round_mlx.json",
          json.dumps({"quant_method": "auto-round", "packing_format": "mlx", "bits": 5, "group_size": 32, "sym": False,
                      "data_type": "int", "extra_config": {module: {"bits": 3}}}))
    checkpoint("nvfp4_inputs", {"config.json": wide | {"quantization_config": fp4},
                                "model.safetensors": safetensors(llama_tensors(nvfp4_inputs, times=2))})


# --- programs and choices: bytes that the fuzzers read as such ---

def make_choices():
    dice = random.Random(1)
    for folder, count, size in (("container", 24, 400), ("vocabulary", 12, 300)):
        for i in range(count):
            write(folder, f"{i:02}", dice.randbytes(size))
    for i in range(24):  # each reader of fuzz_large.cpp with a few short and long runs
        write("large", f"{i:02}", bytes([i % 8]) + dice.randbytes(2 + 2 * (i // 8) * 3))
    write("large", "deep", bytes([0, 4, 144, 5, 145]))


def make_texts():
    write("texts", "lines", '{"text": "one"}\n\n{"text": "two \\u00e9", "id": 1}\n')
    write("texts", "prompts", '{"prompt": "Say a."}\n{"prompt": "Say b."}\n')
    write("texts", "instructions", json.dumps([{"instruction": "Add.", "input": "1 1", "output": ["2", "two"]}]))
    write("texts", "instruction_lines", '{"instruction": "Add.", "input": "", "output": "2"}\n')
    write("texts", "plain", "First line.\nSecond line.\n")
    write("json", "values", '{"a":[1,-2,3.5e-7,true,false,null],"b":{"":"\\u00e9\\ud83d\\ude00"}}')
    write("json", "large_numbers", "[18446744073709551615,-9223372036854775808,1000000000000000019884624838656]")
    write("json", "twice", '{"a":1,"a":2}')
    write("json", "nested", "[" * 65 + "]" * 65)


def make_chats():
    chats = {
        "loop": "{% for m in messages %}<|{{ m.role }}|>{{ m['content'] | trim }}{{ loop.index }}{% endfor %}",
        "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
                     "{{ ns.n }}",
        "macro": "{% macro f(x, y=1) %}{{ x }}{{ y }}{{ caller() }}{% endmacro %}{% call f(2) %}a{% endcall %}",
        "filters": "{{ messages | selectattr('role', 'eq', 'user') | map(attribute='content') | join('-') | upper }}",
        "json": "{{ tools | tojson(indent=2) }}{{ [1.5, none, 'a\\n'] | string }}{{ {'b': 1, 'a': 2} | dictsort }}",
        "slices": "{{ messages[::-1][0].role[1:-1] }}{{ 'a,b'.split(',')[-1] }}{{ range(3) | list }}",
        "recursive": "{% for x in [[1]] recursive %}{% if x is iterable %}{{ loop(x) }}{% endif %}{% endfor %}",
        "space": "  {%- if tools is not none +%}\n {# c #}{% raw %}{{ }}{% endraw %}{%- endif -%} \n",
        "numbers": "{{ -7 // 2 ~ 2 ** 10 ~ 7.5 % 2 ~ 1e3 < 2 and not false or 1 in [1] }}{{ '%s %d' % ('a', 1) }}",
        "refused": "{{ raise_exception('no') }}",
        "chat": '{"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}]}',
    }
    for name, text in chats.items():
        write("chat", name, text)
    chat = {"messages": [{"role": "user", "content": "a"}], "tools": [], "chat_template_kwargs": {}}
    write("texts", "chats", json.dumps(chat) + "\n")


if __name__ == "__main__":
    make_gguf()
    make_llama2c()
    make_checkpoints()
    make_choices()
    make_texts()
    make_chats()
