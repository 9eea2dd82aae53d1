"""Compares, bit by bit, what input_format_test.cpp rounded with what compressed-tensors and torch make of it."""

import sys
from types import SimpleNamespace

import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp
from safetensors.torch import load_file


def rounded_in_blocks(x, factor):
    args = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16, dynamic="local",
                            scale_dtype=torch.float8_e4m3fn)
    batch, factor = x.unsqueeze(0), torch.tensor([factor])
    scale, zero = compute_dynamic_scales_and_zp(batch, args, SimpleNamespace(), global_scale=factor)
    return fake_quantize(batch, scale, zero, args, global_scale=factor).squeeze(0)


def rounded(x, name):
    kind, strategy, symmetry = name.split("_")
    if kind == "nvfp4":
        return rounded_in_blocks(x, float(strategy))
    static = strategy == "static"
    args = QuantizationArgs(num_bits=8, type=kind, symmetric=symmetry == "symmetric", dynamic=not static,
                            strategy="tensor" if static else strategy,
                            group_size=128 if strategy == "group" else None)
    if static:
        scale = torch.tensor([0.037])
        zero = torch.tensor([-19 if symmetry == "asymmetric" else 0], dtype=args.zp_dtype)
    else:
        # The package sees a batch of sequences [B, T, I]; ours is one.
        scale, zero = compute_dynamic_scales_and_zp(x.unsqueeze(0), args, SimpleNamespace())
    return fake_quantize(x.unsqueeze(0), scale, zero, args).squeeze(0)


def check(tensors):
    x = tensors.pop("x")
    codes, values = tensors.pop("fp8_codes"), tensors.pop("fp8_in")
    expected = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    assert torch.equal(codes.isnan(), expected.isnan()) and torch.equal(codes.nan_to_num(), expected.nan_to_num())
    found = tensors.pop("fp8_out")
    assert torch.equal(found, values.to(torch.float8_e4m3fn).view(torch.uint8)), "fp8 codes"
    assert len(tensors) == 13, tensors.keys()
    for name, ours in tensors.items():
        theirs = rounded(x, name)
        # The signs of zeros of nvfp4 as well.
        with_signs = name.startswith("nvfp4")
        differ = ours.view(torch.int32) != theirs.view(torch.int32) if with_signs else ours != theirs
        wrong = differ.nonzero()
        assert (
            len(wrong) == 0
        ), f"{name}: {len(wrong)} differ, first {wrong[0]}: {ours[tuple(wrong[0])]} {theirs[tuple(wrong[0])]}"


if __name__ == "__main__":
    check(load_file(sys.argv[1]))
