"""Writes minmax.json: codes and scales that compressed-tensors itself gives bf16 and fp16 weights with min-max scales.

usage: make_minmax.py [OUT.json]       (default: minmax.json beside this script; needs compressed-tensors 0.19)

Symmetric groups of 32: the largest weight of a group lies exactly between two codes, so that these weights show how
ties are broken. Weights are stored as the integers of their bits.
"""

import json
import pathlib
import sys

import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import quantize
from compressed_tensors.quantization.utils import calculate_qparams

OUT, IN, GROUP = 12, 128, 32
cases = []
for seed, (name, dtype) in enumerate({"BF16": torch.bfloat16, "F16": torch.float16}.items()):
    torch.manual_seed(seed)
    weight = (torch.randn(OUT, IN) * 0.05).to(dtype)
    groups = weight.view(OUT, IN // GROUP, GROUP)
    for bits in (2, 3, 4):
        args = QuantizationArgs(num_bits=bits, type="int", symmetric=True, strategy="group", group_size=GROUP)
        scales, zeros = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
        codes = quantize(weight, scales, zeros, args, dtype=torch.int8)
        cases.append({"dtype": name, "bits": bits, "weight": weight.view(torch.int16).flatten().tolist(),
                      "scales": scales.float().flatten().tolist(),
                      "codes": (codes.int() + 2 ** (bits - 1)).flatten().tolist()})
out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).with_name("minmax.json")
out.write_text(
    json.dumps({"num_out": OUT, "num_in": IN, "group_size": GROUP, "cases": cases}, separators=(",", ":")) + "\n"
)
