"""Writes tests/golden/formats/int8.safetensors: what bitsandbytes' own Linear8bitLt stores for random weights on a CPU.

For each of two modules its state dict (weight, SCB, weight_format) and `dense`, the library's own dequantization of it.

Run: python tests/golden/make_bitsandbytes.py, with the packages of tests/requirements.txt and bitsandbytes==0.50.2
(which no test needs); the result is deterministic.
"""

import pathlib

import torch
from bitsandbytes.functional import int8_vectorwise_dequant
from bitsandbytes.nn import Linear8bitLt
from safetensors.torch import save_file

FOLDER = pathlib.Path(__file__).parent / "formats"


def main():
    generator = torch.Generator().manual_seed(9)
    tensors = {}
    for name, num_out, num_in in (("square", 16, 16), ("wide", 5, 77)):
        weight = torch.randn(num_out, num_in, generator=generator).half() * torch.rand(num_out, 1, generator=generator).half()
        layer = Linear8bitLt(num_in, num_out, bias=False, has_fp16_weights=False, threshold=6.0)
        layer.load_state_dict({"weight": weight})
        state = layer.to("cpu").state_dict()
        assert set(state) == {"weight", "SCB", "weight_format"}, set(state)
        tensors |= {f"{name}.{key}": value.clone().contiguous() for key, value in state.items()}
        tensors[f"{name}.dense"] = int8_vectorwise_dequant(state["weight"], state["SCB"])
    save_file(tensors, FOLDER / "int8.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
