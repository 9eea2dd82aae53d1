"""Loads a whole model of texts and images and the one that it was made of, and writes the first one's logits of a text.

usage: whole_with_transformers.py MODEL_DIR SOURCE_DIR IDS.npy OUT.f32   (logits as raw little-endian float32)

Fails unless transformers finds every weight that it needs and knows every one that is there, and unless the other parts
are those of the source, bit for bit.
"""
import sys

import numpy as np
import torch
import transformers
from transformers import AutoModelForImageTextToText

transformers.logging.set_verbosity_error()
directory, source, ids_file, out_file = sys.argv[1:]


def load(folder):
    model, told = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not told.get(key), f"{folder}: {key}: {sorted(told[key])[:5]}"
    for weight in [*model.parameters(), *model.buffers()]:  # scales that it left in bfloat16 become the same floats
        weight.data = weight.data.float() if weight.is_floating_point() else weight.data
    return model.eval()


model, original = load(directory), load(source)
with torch.no_grad():
    logits_NTV = model(input_ids=torch.from_numpy(np.load(ids_file)).long()).logits
logits_NTV.float().numpy().astype("<f4").tofile(out_file)
others = [name for name in original.state_dict() if "language_model" not in name and not name.startswith("lm_head")]
assert others
read = model.state_dict()
for name in others:
    assert torch.equal(read[name], original.state_dict()[name]), f"{name} is not what it was"
