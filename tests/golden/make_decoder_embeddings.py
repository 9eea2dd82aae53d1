#!/usr/bin/env python3
"""Makes tests/golden/decoder_embeddings.json: embeddings of texts by a decoder, as sentence-transformers pools them.

usage: make_decoder_embeddings.py     (needs torch, transformers, numpy)

The decoder is tests/golden/families/qwen3_norms_bf16, the texts are the beginnings of its ids.npy with these lengths. A
text's embedding is its last state, or the mean of its states, after the last norm, divided by its length.
"""
import json
import pathlib

import numpy as np
import torch
from transformers import AutoModel

HERE = pathlib.Path(__file__).parent
FAMILY = "qwen3_norms_bf16"
TEXTS = [(0, 20), (1, 64), (0, 1)]  # row, tokens


if __name__ == "__main__":
    model = AutoModel.from_pretrained(HERE / "families" / FAMILY, dtype=torch.float32, attn_implementation="eager")
    ids = np.load(HERE / "families" / FAMILY / "ids.npy")
    texts, last, mean = [], [], []
    for row, count in TEXTS:
        text = ids[row, :count]
        with torch.no_grad():
            hidden = model(torch.tensor(text[None].astype(np.int64))).last_hidden_state[0].double()
        texts.append(text.tolist())
        last.append(torch.nn.functional.normalize(hidden[-1], dim=0).tolist())
        mean.append(torch.nn.functional.normalize(hidden.mean(0), dim=0).tolist())
    content = {"family": FAMILY, "texts": texts, "last_token": last, "mean": mean}
    (HERE / "decoder_embeddings.json").write_text(json.dumps(content) + "\n")
