"""Loads an encoder with transformers (and compressed-tensors, where it is compressed) and writes its embeddings.

usage: embeddings_with_transformers.py TEXTS.json MODEL_DIR OUT.f32 [MODEL_DIR OUT.f32 ...]   (little-endian float32 [N,
    D])

TEXTS.json is a list of objects with the key ids. One text at a time, so that no padding is in play: the mean of the
last hidden states, divided by its length. The forward pass is the loaded model's own, which rounds the inputs of its
linears as its configuration says.
"""
import json
import sys

import numpy as np
import torch
import transformers

transformers.logging.set_verbosity_error()
texts_file, *models = sys.argv[1:]
texts = json.load(open(texts_file, encoding="utf-8"))
for directory, out_file in zip(models[::2], models[1::2], strict=True):
    model = transformers.AutoModel.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    embeddings = []
    with torch.no_grad():
        for text in texts:
            hidden_TD = model(torch.tensor([text["ids"]])).last_hidden_state[0]
            embeddings.append(torch.nn.functional.normalize(hidden_TD.mean(0), dim=0).numpy())
    np.stack(embeddings).astype("<f4").tofile(out_file)
