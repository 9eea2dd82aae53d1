"""Writes what a model's quantized linears make of their inputs, and the logits, all in float32.

usage: linears_with_transformers.py MODEL_DIR IDS.npy OUT.f32

OUT is little-endian float32: for each quantized linear, in the order of the forward pass through the first window, T,
I, O, its input [T, I] before it is rounded and its output [T, O]; then 0 and the logits of all windows.

compressed-tensors expands 4-bit floats in bfloat16, whatever a model is loaded in. Here it expands them in float32, so
that what is compared is the rounding of inputs and the products.
"""
import sys

import numpy as np
import torch
import transformers
from compressed_tensors.compressors.nvfp4 import base

transformers.logging.set_verbosity_error()
directory, ids_file, out_file = sys.argv[1:]
unpack = base.unpack_fp4_from_uint8
base.unpack_fp4_from_uint8 = lambda packed, m, n: unpack(packed, m, n, dtype=torch.float32)
pieces = []


def note(module, inputs, output):
    x, y = inputs[0][0], output[0]
    pieces.extend([np.float32([*x.shape, y.shape[1]]), x.numpy(), y.numpy()])


model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
ids = torch.from_numpy(np.load(ids_file)).long()
with torch.no_grad():
    logits = torch.cat([model(row.unsqueeze(0)).logits for row in ids])  # the first call expands the weights
    hooks = [module.register_forward_hook(note) for module in model.modules() if hasattr(module, "quantization_scheme")]
    model(ids[:1])
assert hooks and all(parameter.dtype == torch.float32 for parameter in model.parameters()), "not all in float32"
pieces.extend([np.float32([0]), logits.numpy()])
np.concatenate([piece.ravel() for piece in pieces]).astype("<f4").tofile(out_file)
