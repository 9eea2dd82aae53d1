"""Writes tests/golden/formats/gptq.safetensors: what GPTQModel's own layer packs for random weights on a CPU.

For each of several schemes the layer's tensors (qweight, qzeros, scales, g_idx) and `dense`, the library's own
dequantization of them, float16 [O, I]. Names say what a module is: w4_g32_v1, w4_g32_asym_v2, w4_g32_order_v1.

Run: python tests/golden/make_gptq.py, with the packages of tests/requirements.txt and gptqmodel==7.7.0 (which no test
needs); the result is deterministic.
"""

import pathlib

import torch
from gptqmodel.nn_modules.qlinear.torch import TorchLinear
from gptqmodel.quantization import QuantizeConfig
from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module
from safetensors.torch import save_file

FOLDER = pathlib.Path(__file__).parent / "formats"
NUM_OUT, NUM_IN = 32, 64


def make(name, bits, group_size, sym, desc_act, first_version):
    generator = torch.Generator().manual_seed(bits + group_size)
    num_groups = 1 if group_size == -1 else NUM_IN // group_size
    columns = torch.arange(NUM_IN) // (NUM_IN if group_size == -1 else group_size)
    groups = columns[torch.randperm(NUM_IN, generator=generator)] if desc_act else columns
    codes = torch.randint(0, 2**bits, (NUM_OUT, NUM_IN), generator=generator)
    zeros = torch.full((NUM_OUT, num_groups), 2 ** (bits - 1))
    if not sym:
        zeros = torch.randint(0, 2**bits, (NUM_OUT, num_groups), generator=generator)
    scales = (torch.rand(NUM_OUT, num_groups, generator=generator) / 16 + 2**-8).half()
    linear = torch.nn.Linear(NUM_IN, NUM_OUT, bias=False)
    linear.weight.data = scales.float()[:, groups] * (codes - zeros[:, groups])
    layer = TorchLinear(bits=bits, group_size=group_size, sym=sym, desc_act=desc_act, in_features=NUM_IN,
                        out_features=NUM_OUT, bias=False)
    layer.pack_original(linear, scales.float(), zeros, groups.to(torch.int32))
    layer.post_init()
    dense = layer.dequantize_weight().T.contiguous()
    if first_version:
        convert_gptq_v2_to_v1_format_module(layer, QuantizeConfig(bits=bits, group_size=group_size, sym=sym))
    tensors = {f"{name}.{key}": getattr(layer, key).clone().contiguous()
               for key in ("qweight", "qzeros", "scales", "g_idx")}
    tensors[f"{name}.scales"] = tensors[f"{name}.scales"].half()
    assert torch.equal(tensors[f"{name}.scales"], scales.T.contiguous()), name
    expected = scales.float()[:, groups] * (codes - zeros[:, groups])
    torch.testing.assert_close(dense.float(), expected, rtol=2.0**-10, atol=0)
    return tensors | {f"{name}.dense": dense.half()}


def main():
    tensors = {}
    for bits in (2, 3, 4, 8):
        tensors |= make(f"w{bits}_g32_v1", bits, 32, True, False, True)
        tensors |= make(f"w{bits}_g32_v2", bits, 32, True, False, False)
        tensors |= make(f"w{bits}_channel_asym_v2", bits, -1, False, False, False)
    tensors |= make("w4_g16_asym_v2", 4, 16, False, False, False)
    tensors |= make("w4_g16_order_v1", 4, 16, True, True, True)
    save_file(tensors, FOLDER / "gptq.safetensors")


if __name__ == "__main__":
    main()
