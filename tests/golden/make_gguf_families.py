#!/usr/bin/env python3
"""Makes tests/golden/gguf/NAME.gguf of checkpoints in tests/golden/families, by llama.cpp's own converter.

usage: make_gguf_families.py LLAMA_CPP [NAME...]

LLAMA_CPP is a folder of llama.cpp's sources (made with those in the sources of llama-cpp-python 0.3.36, MIT). Of the
converter only the vocabulary is replaced, by one of bytes: the checkpoints have no tokenizer. Matrices stay in the
checkpoint's type. Without names all of FAMILIES are made.

The converter reads what published models have in config.json. Where transformers 5 writes other keys, OLDER_KEYS has
what it looks for. Of a chatglm it writes no size of heads: HEAD_SIZES has it, where it is not that of published models.
It knows no dense blocks of Qwen 2 MoE, so BLOCKS has those that stay of a checkpoint. The block of GLM 4.5 that
predicts a later token, which no checkpoint here has, is a copy of its last one, with a projection made of q and a head
of the embedding (next_token_block).

A checkpoint in OLDER_LATENTS is written as before 2025-04, with what makes keys and values in one tensor. Those in
FUSED have q, k and v in one tensor.
"""
import argparse
import json
import logging
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
FAMILIES = [
    "bloom_distances", "cohere2_parallel_windows", "cohere_parallel", "deepseek_v2_moe_groups",
    "deepseek_v2_moe_lite_bf16", "deepseek_v3_moe_groups", "dots1_moe_windows_bf16", "ernie4_5_moe_range",
    "exaone4_unrotated", "gemma2_caps", "gemma_wide_heads", "glm4_four_norms", "glm4_moe_groups", "glm_neighbours",
    "gpt2_transposed", "gpt_neox_parallel", "gpt_neox_sequential_bf16", "gpt_oss_moe_mxfp4_bf16",
    "gpt_oss_moe_stacks", "granite_factors", "minicpm_factors", "mistral_window", "mixtral_experts",
    "mpt_distances_bf16", "olmo2_norms_after", "olmo3_windows_yarn", "olmoe_experts", "phi3_longrope_partial",
    "phi3_stacks", "qwen2_moe_shared_bf16", "seed_oss_biases", "smollm3_unrotated", "starcoder2_plain_network",
]
OLDER_KEYS = {
    "cohere2_parallel_windows": {"rotary_pct": 1.0},
    "deepseek_v2_moe_groups": {"scoring_func": "softmax"},
    "deepseek_v3_moe_groups": {"scoring_func": "sigmoid"},
    "dots1_moe_windows_bf16": {"scoring_func": "sigmoid"},
    "glm_neighbours": {"attention_dim": 16, "seq_length": 128},
    "gpt2_transposed": {"n_ctx": 128},
    "gpt_neox_parallel": {"rotary_pct": 0.5},
    "gpt_neox_sequential_bf16": {"rotary_pct": 0.25},
    "mistral_window": {"architectures": ["Mistral3ForConditionalGeneration"]},
    "mpt_distances_bf16": {"architectures": ["MPTForCausalLM"]},
}
BLOCKS = {"qwen2_moe_shared_bf16": [0, 2]}
OLDER_LATENTS = ["deepseek_v2_moe_lite_bf16"]
FUSED = ["glm_neighbours", "mistral_window", "qwen2_moe_shared_bf16"]
HEAD_SIZES = {"glm_neighbours": 16}


def kept_blocks(tensors, kept):
    moved = {}
    for name, tensor in tensors.items():
        parts = name.split(".")
        if parts[1] == "layers":
            if int(parts[2]) not in kept:
                continue
            parts[2] = str(kept.index(int(parts[2])))
        moved[".".join(parts)] = tensor
    return moved


def next_token_block(tensors, num_blocks):
    import torch

    last, added = f"model.layers.{num_blocks - 1}.", f"model.layers.{num_blocks}."
    block = {added + name[len(last):]: tensor for name, tensor in tensors.items() if name.startswith(last)}
    q = tensors[last + "self_attn.q_proj.weight"]
    block[added + "eh_proj.weight"] = torch.cat([q, -q], dim=1)
    block[added + "enorm.weight"] = tensors[last + "input_layernorm.weight"]
    block[added + "hnorm.weight"] = tensors[last + "post_attention_layernorm.weight"]
    block[added + "shared_head.norm.weight"] = tensors["model.norm.weight"]
    block[added + "embed_tokens.weight"] = tensors["model.embed_tokens.weight"]
    block[added + "shared_head.head.weight"] = tensors["lm_head.weight"]
    return {**tensors, **block}


def prepare(name, folder):
    """Writes what the converter reads into a folder."""
    from safetensors.torch import load_file, save_file

    config = json.loads((HERE / "families" / name / "config.json").read_text())
    tensors = load_file(HERE / "families" / name / "model.safetensors")
    config.update(OLDER_KEYS.get(name, {}))
    if name in BLOCKS:
        tensors = kept_blocks(tensors, BLOCKS[name])
        config.update(num_hidden_layers=len(BLOCKS[name]), layer_types=["full_attention"] * len(BLOCKS[name]))
    if config.get("num_nextn_predict_layers") == 1:
        tensors = next_token_block(tensors, config["num_hidden_layers"])
    (folder / "config.json").write_text(json.dumps(config))
    save_file({key: tensor.contiguous().clone() for key, tensor in tensors.items()}, folder / "model.safetensors")


def use_older_latents(model):
    from conversion import ModelBase

    writer, hparams, newer = model.gguf_writer, model.hparams, model.modify_tensors
    key, value = hparams["qk_nope_head_dim"] + hparams["qk_rope_head_dim"], hparams["v_head_dim"]
    of_file = {"key_length": key, "value_length": value, "head_count_kv": hparams["num_attention_heads"]}
    for name, size in of_file.items():
        setattr(writer, "add_" + name, lambda _, add=getattr(writer, "add_" + name), size=size: add(size))
    writer.add_key_length_mla = writer.add_value_length_mla = lambda _: None

    def modify_tensors(tensor, name, block):
        if name.endswith("kv_b_proj.weight"):
            return ModelBase.modify_tensors(model, tensor, name, block)
        return newer(tensor, name, block)

    model.modify_tensors = modify_tensors


def write_bytes_vocabulary(model):
    from make_gguf import byte_alphabet

    alphabet = byte_alphabet()
    others = [alphabet[byte] for byte in range(256) if chr(byte) not in "hi"]
    tokens = ["<s>", "</s>", "h", "i", "hi"] + others
    tokens = tokens[:model.hparams["vocab_size"]]
    model.gguf_writer.add_tokenizer_model("gpt2")
    model.gguf_writer.add_tokenizer_pre("gpt-2")
    model.gguf_writer.add_token_list(tokens)
    model.gguf_writer.add_token_types([3, 3] + [1] * (len(tokens) - 2))
    model.gguf_writer.add_token_merges(["h i"])
    model.gguf_writer.add_bos_token_id(0)
    model.gguf_writer.add_eos_token_id(1)


def convert(name, out):
    import gguf
    import torch
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    with tempfile.TemporaryDirectory() as place, torch.inference_mode():
        folder = pathlib.Path(place) / name  # the model's name in the file
        folder.mkdir()
        prepare(name, folder)
        hparams = {**ModelBase.load_hparams(folder, False), **OLDER_KEYS.get(name, {})}
        model_class = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
        model_class.set_vocab = write_bytes_vocabulary
        is_bf16 = hparams.get("dtype", hparams.get("torch_dtype")) == "bfloat16"
        ftype = gguf.LlamaFileType.MOSTLY_BF16 if is_bf16 else gguf.LlamaFileType.ALL_F32
        model = model_class(folder, ftype, out / f"{name}.gguf", eager=True, hparams=hparams, fuse_qkv=name in FUSED)
        if hasattr(model, "impl"):  # which writes the file
            type(model.impl).set_vocab = write_bytes_vocabulary
        if name in HEAD_SIZES:
            model.gguf_writer.add_key_length(HEAD_SIZES[name])
        if name in OLDER_LATENTS:
            use_older_latents(model)
        model.write()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_cpp", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    sys.path[:0] = [str(arguments.llama_cpp), str(arguments.llama_cpp / "gguf-py")]
    for family in arguments.names or FAMILIES:
        convert(family, HERE / "gguf")
