"""Makes tests/golden/fp8: tiny random checkpoints with E4M3 codes and a scale for each block of 128 x 128 weights, as
Qwen3-FP8 and DeepSeek-V3 are published, one of the first in compressed-tensors' words, and a mixture whose experts lie
in stacks, as transformers 5 holds them, with blocks of 64 x 128.

Each folder holds config.json, model.safetensors, ids.npy (int32 [2, 48]), weights.safetensors (what some linears stand
for, float32), logits.npy (float32 [2, 48, V], with inputs rounded as engines round them) and plain_logits.npy (with
inputs as they are).

- Codes and scales are those of transformers' Fp8Quantize, of weights that are filled up with zeros to whole blocks.
- What they stand for is what transformers' Fp8Dequantize gives, cut to size.
- Inputs are rounded by compressed-tensors, in groups of 128 that are filled up with zeros.
- The forward pass is transformers', in float32, with its eager attention.

    python tests/golden/make_fp8.py [MODEL]   # with the packages of tests/requirements.txt and accelerate;
                                              # deterministic
"""

import json
import pathlib
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp
from make_families import BASE, randomize, rope
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, FineGrainedFP8Config
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

OUT = pathlib.Path(__file__).resolve().parent / "fp8"
BLOCK = 128
SIZES = {**BASE, "vocab_size": 64, "max_position_embeddings": 64}

MODELS = {
    # Inputs are whole blocks, and some outputs less than one. Scales in bfloat16.
    "qwen3": dict(model_type="qwen3", tie_word_embeddings=False, **rope(10000.0),
                  **{**SIZES, "hidden_size": 128, "head_dim": 32, "intermediate_size": 256, "num_hidden_layers": 1}),
    # Edges in both directions, a dense block and a mixture with a shared expert.
    "deepseek_v3": dict(model_type="deepseek_v3", q_lora_rank=24, kv_lora_rank=20, qk_nope_head_dim=24,
                        qk_rope_head_dim=10, v_head_dim=34, n_routed_experts=4, num_experts_per_tok=2,
                        moe_intermediate_size=16, n_shared_experts=1, n_group=2, topk_group=1,
                        routed_scaling_factor=1.5, first_k_dense_replace=1, norm_topk_prob=True,
                        tie_word_embeddings=False, **rope(10000.0),
                        **{k: v for k, v in SIZES.items() if k != "head_dim"} |
                        {"hidden_size": 136, "num_key_value_heads": 4, "intermediate_size": 144}),
    # Gates and ups of all experts in one tensor. The last block of down_proj's columns has half its width.
    "qwen3_moe_stacks": dict(model_type="qwen3_moe", num_experts=3, num_experts_per_tok=2, moe_intermediate_size=64,
                             norm_topk_prob=True, tie_word_embeddings=True, **rope(10000.0),
                             **{**SIZES, "hidden_size": 128, "head_dim": 32, "num_hidden_layers": 1}),
}
BLOCKS = {"qwen3_moe_stacks": (64, 128)}  # of other rows
# Of each model: linears whose values are stored.
CHECKED = {"qwen3": ["model.layers.0.self_attn.k_proj", "model.layers.0.mlp.down_proj"],
           "deepseek_v3": ["model.layers.0.mlp.gate_proj", "model.layers.0.self_attn.o_proj",
                           "model.layers.1.mlp.experts.3.down_proj"],
           "qwen3_moe_stacks": ["model.layers.0.mlp.experts.2.up_proj", "model.layers.0.mlp.experts.0.gate_proj",
                                "model.layers.0.mlp.experts.1.down_proj", "model.layers.0.self_attn.o_proj"]}


def is_quantized(name):
    return name.endswith(("proj.weight", "proj_with_mqa.weight", "experts.gate_up_proj", "experts.down_proj"))


def scale_name(name):
    return name.removesuffix("weight") + "weight_scale_inv" if name.endswith(".weight") else name + "_scale_inv"


def quantized(weight, scale_dtype, block):
    quantizer = SimpleNamespace(quantization_config=FineGrainedFP8Config(weight_block_size=block))
    rows, columns = weight.shape[-2:]
    whole = torch.nn.functional.pad(weight, (0, -columns % block[1], 0, -rows % block[0]))
    made = Fp8Quantize(quantizer).convert({"x.weight": whole})
    codes, scales = made["x.weight"], made["x.weight_scale_inv"].to(scale_dtype)
    decoded = Fp8Dequantize(quantizer)._dequantize_one(codes, scales, output_dtype=torch.float32)
    return codes[..., :rows, :columns].contiguous(), scales, decoded[..., :rows, :columns].contiguous()


def rounded(x):
    width = x.shape[-1]
    padded = torch.nn.functional.pad(x, (0, -width % BLOCK)).reshape(1, -1, width + -width % BLOCK)
    args = QuantizationArgs(num_bits=8, type="float", strategy="group", group_size=BLOCK, dynamic=True)
    scale, zero = compute_dynamic_scales_and_zp(padded, args, SimpleNamespace())
    return fake_quantize(padded, scale, zero, args)[..., :width].reshape(x.shape)


def round_experts(experts):
    """The same forward pass as the class's own, with both inputs of each expert rounded."""

    def forward(hidden_states, top_k_index, top_k_weights):
        result = torch.zeros_like(hidden_states)
        for token, row in enumerate(hidden_states):
            for expert, weight in zip(top_k_index[token], top_k_weights[token]):
                x = rounded(row.unsqueeze(0)) if experts.rounds_inputs else row.unsqueeze(0)
                gate, up = torch.nn.functional.linear(x, experts.gate_up_proj[expert]).chunk(2, dim=-1)
                inner = experts.act_fn(gate) * up
                inner = rounded(inner) if experts.rounds_inputs else inner
                result[token] += torch.nn.functional.linear(inner, experts.down_proj[expert])[0] * weight
        return result

    experts.rounds_inputs = False
    experts.forward = forward


def logits_of(folder, ids):
    """The logits with inputs rounded, and as they are."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                 experts_implementation="eager").eval()
    plain = model(ids).logits
    experts = [module for name, module in model.named_modules() if name.endswith(".experts")]
    for module in experts:
        round_experts(module)
    torch.testing.assert_close(model(ids).logits, plain)  # the experts' forward pass is the class's own
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and is_quantized(name + ".weight"):
            module.register_forward_pre_hook(lambda _, arguments: (rounded(arguments[0]),))
    for module in experts:
        module.rounds_inputs = True
    return model(ids).logits, plain


def write_compressed_tensors(source, folder):
    """The same codes as llm-compressor's preset FP8_BLOCK has them."""
    tensors = load_file(source / "model.safetensors")
    save_file({name.replace("weight_scale_inv", "weight_scale"): tensor for name, tensor in tensors.items()},
              folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    common = dict(num_bits=8, type="float", symmetric=True, observer=None, observer_kwargs={}, actorder=None)
    config["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {
            "targets": ["Linear"], "output_activations": None,
            "weights": {**common, "strategy": "block", "block_structure": [BLOCK, BLOCK], "group_size": None,
                        "dynamic": False},
            "input_activations": {**common, "strategy": "group", "group_size": BLOCK, "block_structure": None,
                                  "dynamic": True}}}}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def weight_of(decoded, linear):
    """The weight of a linear, also of an expert in a stack."""
    if linear + ".weight" in decoded:
        return decoded[linear + ".weight"]
    module, expert, part = linear.rsplit(".", 2)
    if part == "down_proj":
        return decoded[module + ".down_proj"][int(expert)].clone()
    return decoded[module + ".gate_up_proj"][int(expert)].chunk(2)[part == "up_proj"].clone()


def make_model(name, settings, seed):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings), attn_implementation="eager").eval()
    randomize(model, seed)
    model.save_pretrained(folder, save_original_format="stacks" not in name)
    (folder / "generation_config.json").unlink(missing_ok=True)
    tensors = load_file(folder / "model.safetensors")
    decoded, stored = {}, {}
    for key, tensor in tensors.items():
        if is_quantized(key):
            codes, scales, values = quantized(tensor, torch.bfloat16 if name == "qwen3" else torch.float32,
                                              BLOCKS.get(name, (BLOCK, BLOCK)))
            stored |= {key: codes, scale_name(key): scales}
            decoded[key] = values
        else:
            stored[key] = decoded[key] = tensor
    save_file(decoded, folder / "model.safetensors", metadata={"format": "pt"})
    ids = np.random.default_rng(seed).integers(0, settings["vocab_size"], (2, 48), dtype=np.int32)
    with torch.no_grad():
        logits, plain = logits_of(folder, torch.from_numpy(ids).long())
    save_file({key + ".weight": weight_of(decoded, key) for key in CHECKED[name]}, folder / "weights.safetensors")
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
                                     "weight_block_size": list(BLOCKS.get(name, (BLOCK, BLOCK)))}
    if name == "qwen3":
        config["quantization_config"]["modules_to_not_convert"] = ["lm_head", "model.layers.0.input_layernorm"]
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    if name != "deepseek_v3":  # the edges of others transformers reads: of less than one block
        own = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
        # Without a GPU it leaves out the scales of stacks.
        assert all(torch.equal(own[key], decoded[key]) for key in decoded if "experts" not in key), name
    np.save(folder / "ids.npy", ids)
    np.save(folder / "logits.npy", logits.numpy())
    np.save(folder / "plain_logits.npy", plain.numpy())
    print(f"{name}: logits std {plain.std():.3f}, rounding of inputs rms {(logits - plain).square().mean().sqrt():.4f}")


def main():
    for seed, (name, settings) in enumerate(MODELS.items()):
        if name in sys.argv[1:] or len(sys.argv) == 1:
            make_model(name, settings, seed)
    folder = OUT / "qwen3_compressed_tensors"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    write_compressed_tensors(OUT / "qwen3", folder)
    for path in OUT.rglob("*.safetensors"):
        path.chmod(0o644)


if __name__ == "__main__":
    main()
