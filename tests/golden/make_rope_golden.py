"""Writes rope.json: cos and sin of the rotary tables of transformers (LlamaRotaryEmbedding) at a few positions.

Run with a Python that has torch and transformers; the values do not depend on a model's weights.
"""

import json
import pathlib

import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

POSITIONS = [0, 1, 17, 511, 2047, 4095, 8191]
CASES = [(64, 10000.0, {"rope_type": "default"}), (8, 10000.0, {"rope_type": "default"}),
         (128, 1000000.0, {"rope_type": "default"}),
         (16, 10000.0, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048})]


def main():
    cases = []
    for head_size, theta, scaling in CASES:
        config = transformers.LlamaConfig(hidden_size=head_size, num_attention_heads=1, head_dim=head_size,
                                          max_position_embeddings=8192,
                                          rope_parameters={"rope_theta": theta, **scaling})
        rope = LlamaRotaryEmbedding(config)
        cos, sin = rope(torch.zeros(1, len(POSITIONS), 1), torch.tensor([POSITIONS]))
        half = head_size // 2
        cases.append({"head_size": head_size, "inverse_frequencies": rope.inv_freq.tolist(),
                      "attention_factor": float(rope.attention_scaling), "positions": POSITIONS,
                      "cos": cos[0, :, :half].tolist(), "sin": sin[0, :, :half].tolist()})
    path = pathlib.Path(__file__).with_name("rope.json")
    path.write_text(json.dumps({"source": "transformers " + transformers.__version__, "cases": cases}) + "\n")


if __name__ == "__main__":
    main()
