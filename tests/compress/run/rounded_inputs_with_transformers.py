"""Writes what the inputs of a model's linears are, and what compressed-tensors makes of them, for one window.

usage: rounded_inputs_with_transformers.py MODEL_DIR IDS.npy OUT.f32

OUT is little-endian float32: for each linear whose input is rounded T, I, the input [T, I] and the rounded input [T,
I].
"""
import sys

import numpy as np
import torch
import transformers
from compressed_tensors.quantization.lifecycle import forward

transformers.logging.set_verbosity_error()
directory, ids_file, out_file = sys.argv[1:]
forward_quantize = forward.forward_quantize
pieces = []


def noting(module, value, base_name, args):
    rounded = forward_quantize(module, value, base_name, args)
    if base_name == "input":
        pieces.extend([np.float32(value[0].shape), value[0].numpy(), rounded[0].numpy()])
    return rounded


forward.forward_quantize = noting
model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
ids = torch.from_numpy(np.load(ids_file)).long()[:1]
with torch.no_grad():
    try:
        model(ids)
    except RuntimeError:  # 4-bit floats are expanded to bfloat16 by the first call, and inputs here are float32
        torch.nn.Module.float(model)
        pieces.clear()
        model(ids)
assert pieces, "no input was rounded"
np.concatenate([piece.ravel() for piece in pieces]).astype("<f4").tofile(out_file)
