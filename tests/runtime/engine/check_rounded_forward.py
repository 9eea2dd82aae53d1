"""Runs transformers with the weights that rounded_transformer_test.cpp rounded, every linear's input rounded by
compressed-tensors (or, for LLM.int8, as its paper and bitsandbytes have it), and compares the logits."""

import json
import pathlib
import sys
from types import SimpleNamespace

import numpy
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM


def in_blocks(x, factor):
    args = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16, dynamic="local",
                            scale_dtype=torch.float8_e4m3fn)
    scale, zero = compute_dynamic_scales_and_zp(x, args, SimpleNamespace(), global_scale=factor)
    return fake_quantize(x, scale, zero, args, global_scale=factor)


def in_fp8_blocks(x):
    """The package's groups of 128 must divide a row. So the last block is filled up with zeros, which change no
    range."""
    width = x.shape[-1]
    padded = torch.nn.functional.pad(x, (0, -width % 128))
    args = QuantizationArgs(num_bits=8, type="float", strategy="group", group_size=128, dynamic=True)
    scale, zero = compute_dynamic_scales_and_zp(padded, args, SimpleNamespace())
    return fake_quantize(padded, scale, zero, args)[..., :width]


def in_fp8_blocks_of_powers(x):
    """DeepSeek's act_quant with scale_fmt "ue8m0", in torch. Zeros fill the last block."""
    width = x.shape[-1]
    padded = torch.nn.functional.pad(x, (0, -width % 128)).unflatten(-1, (-1, 128))
    scale = torch.exp2(torch.ceil(torch.log2(padded.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448)))
    kept = (padded / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale
    return kept.flatten(-2)[..., :width]


def by_package(x, plan, ranging=None):
    """x on the grid that the package finds for `ranging`, which is x itself where not given."""
    if plan["has_blocks"]:
        return in_blocks(x, torch.tensor([plan["scale"]]))
    if plan["strategy"] == "block":
        return in_fp8_blocks(x)
    if plan["strategy"] == "block_of_powers":
        return in_fp8_blocks_of_powers(x)
    args = QuantizationArgs(num_bits=8, type=plan["type"], symmetric=plan["symmetric"], dynamic=plan["dynamic"],
                            strategy=plan["strategy"])
    if plan["dynamic"]:
        scale, zero = compute_dynamic_scales_and_zp(x if ranging is None else ranging, args, SimpleNamespace())
    else:
        scale, zero = torch.tensor([plan["scale"]]), torch.tensor([plan["zero"]], dtype=args.zp_dtype)
    return fake_quantize(x, scale, zero, args)


def llm_int8(x, plan):
    outliers = x.abs() >= plan["outlier_threshold"] * x.double().square().mean().sqrt()
    columns = outliers.any(dim=1, keepdim=True)
    others = x.masked_fill(outliers, 0)
    if not plan["symmetric"]:
        return torch.where(columns, x, by_package(x, plan, others))
    largest = others.abs().amax(dim=-1, keepdim=True)
    codes = torch.round(x * (127 / largest)).clamp(-127, 127)
    return torch.where(columns, x, codes * (largest / 127))


def forward(model, ids, plan, weights):
    for name, module in model.named_modules():
        if name + ".weight" in weights:
            module.weight.data = weights[name + ".weight"]
    hooks = []

    def round_input(module, arguments):
        x = arguments[0]
        return (llm_int8(x, plan) if plan["outlier_threshold"] > 0 else by_package(x, plan),)

    for name, module in model.named_modules():
        if name + ".weight" in weights and plan["type"] is not None:
            hooks.append(module.register_forward_pre_hook(round_input))
    # One sequence at a time: ranges are of sequences, never of a batch.
    logits = torch.cat([model(row.unsqueeze(0)).logits for row in ids])
    for hook in hooks:
        hook.remove()
    return logits


def rms(x):
    return x.double().square().mean().sqrt().item()


@torch.no_grad()
def check(family, folder, flips):
    ids = torch.from_numpy(numpy.load(family / "ids.npy")).long()
    tensors = load_file(folder / "rounded.safetensors")
    model = AutoModelForCausalLM.from_pretrained(family, dtype=torch.float32, attn_implementation="eager")
    original = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for plan in json.loads((folder / "plan.json").read_text()):
        prefix = plan["name"] + "/"
        weights = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        ours = weights.pop("logits")
        assert len(weights) == 7 * model.config.num_hidden_layers, weights.keys()
        theirs = forward(model, ids, plan, weights)
        exact = forward(model, ids, {"type": None}, {name: original[name] for name in weights})
        difference, rounding_error = rms(ours - theirs), rms(theirs - exact)
        print(plan["name"], difference, rounding_error)
        assert difference <= flips * rounding_error, plan["name"]


if __name__ == "__main__":
    check(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), float(sys.argv[3]))
