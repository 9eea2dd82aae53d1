"""Loads a checkpoint with transformers (and compressed-tensors, where it is compressed) and writes its logits.

usage: logits_with_transformers.py MODEL_DIR IDS.npy OUT.f32 DTYPE [as-loaded]   (logits as raw little-endian float32)

DTYPE is what the checkpoint is loaded and decompressed in. The forward pass is float32 on a plain model with the
weights that were read: what is compared is them, not the arithmetic of a 16-bit forward pass. With as-loaded it is the
loaded model's own, which rounds the inputs of its linears as its configuration says.
"""
import copy
import sys

import numpy as np
import torch
import transformers

transformers.logging.set_verbosity_error()
directory, ids_file, out_file, dtype, *mode = sys.argv[1:]
loaded = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).eval()
ids_NT = torch.from_numpy(np.load(ids_file)).long()
with torch.no_grad():
    # A window at a time: a range that is dynamic per tensor is that of one sequence.
    logits_NTV = torch.cat([loaded(ids_NT[n : n + 1]).logits for n in range(len(ids_NT))])
if mode == ["as-loaded"]:
    logits_NTV.float().numpy().astype("<f4").tofile(out_file)
    sys.exit()
assert not mode, mode
config = copy.deepcopy(loaded.config)
if hasattr(config, "quantization_config"):
    del config.quantization_config
model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
read = loaded.state_dict()
missing = [name for name in model.state_dict() if name not in read]
assert not missing, f"transformers has no {missing}"
model.load_state_dict({name: read[name].float() for name in model.state_dict()})
with torch.no_grad():
    logits_NTV = model(ids_NT).logits
logits_NTV.numpy().astype("<f4").tofile(out_file)
