"""Writes tests/golden/formats/int8.safetensors and nf4.safetensors: what bitsandbytes' own layers store for random
weights on a CPU.

Of Linear8bitLt for each of two modules its state dict (weight, SCB, weight_format) and `dense`, the library's own
dequantization of it; `x`, rows of a float32 model that float16 holds exactly, some columns of which reach the
threshold, and what the library makes of them: `y` with the threshold 6 and `y_no_outliers` with the threshold 0.

Of Linear4bit with NF4 for each of two modules its state dict and `dense` as above, and of `plain` also `source`, the
float32 weight, of which one row is 0. The scales of `nested` are quantized themselves.

Run: python tests/golden/make_bitsandbytes.py, with the packages of tests/requirements.txt and bitsandbytes==0.50.2
(which no test needs); the result is deterministic.
"""

import pathlib

import torch
from bitsandbytes.functional import dequantize_4bit, int8_vectorwise_dequant
from bitsandbytes.nn import Linear4bit, Linear8bitLt
from safetensors.torch import save_file

FOLDER = pathlib.Path(__file__).parent / "formats"


def write_int8():
    generator = torch.Generator().manual_seed(9)
    tensors = {}
    for name, num_out, num_in in (("square", 16, 16), ("wide", 5, 77)):
        weight = (
            torch.randn(num_out, num_in, generator=generator).half()
            * torch.rand(num_out, 1, generator=generator).half()
        )
        layer = Linear8bitLt(num_in, num_out, bias=False, has_fp16_weights=False, threshold=6.0)
        layer.load_state_dict({"weight": weight})
        state = layer.to("cpu").state_dict()
        assert set(state) == {"weight", "SCB", "weight_format"}, set(state)
        tensors |= {f"{name}.{key}": value.clone().contiguous() for key, value in state.items()}
        tensors[f"{name}.dense"] = int8_vectorwise_dequant(state["weight"], state["SCB"])
        inputs = torch.Generator().manual_seed(num_in)
        x = torch.randn(7, num_in, generator=inputs)
        x[:, 3] *= 9
        x[2:5, num_in - 2] *= 12
        x = x.half().float()
        assert (x.abs() >= 6).any(0).sum() in range(2, 5)
        tensors[f"{name}.x"] = x
        layer.eval()  # in training mode it multiplies dequantized weights
        for key, threshold in (("y", 6.0), ("y_no_outliers", 0.0)):
            layer.state.threshold = threshold
            tensors[f"{name}.{key}"] = layer(x).detach().contiguous()
            assert tensors[f"{name}.{key}"].dtype == torch.float32
    save_file(tensors, FOLDER / "int8.safetensors", metadata={"format": "pt"})


def write_nf4():
    generator = torch.Generator().manual_seed(10)
    tensors = {}
    for name, num_out, num_in, nested in (("plain", 6, 128, False), ("nested", 40, 512, True)):
        weight = torch.randn(num_out, num_in, generator=generator) * torch.rand(num_out, 1, generator=generator)
        if not nested:
            weight[2] = 0
        layer = Linear4bit(
            num_in, num_out, bias=False, compute_dtype=torch.float32, compress_statistics=nested, quant_type="nf4"
        )
        layer.load_state_dict({"weight": weight})
        layer = layer.to("cpu")
        for key, value in layer.state_dict().items():
            tensors[f"{name}.{key}"] = value.clone().contiguous()
        if not nested:
            tensors[f"{name}.source"] = weight
        tensors[f"{name}.dense"] = dequantize_4bit(layer.weight.data, layer.weight.quant_state).contiguous()
        assert tensors[f"{name}.dense"].shape == weight.shape and tensors[f"{name}.dense"].dtype == torch.float32
    save_file(tensors, FOLDER / "nf4.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    write_int8()
    write_nf4()
