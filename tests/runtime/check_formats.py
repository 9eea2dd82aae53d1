"""Reads, with the packages that define the formats, what formats_python_test.cpp wrote into the folder given."""

import json
import pathlib
import sys

import numpy
import torch
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationConfig
from safetensors.torch import load_file


def check_npy(folder):
    windows = numpy.load(folder / "windows.npy")
    assert windows.dtype == numpy.int32, windows.dtype
    numpy.testing.assert_array_equal(windows, 3 * numpy.arange(28).reshape(4, 7))


def check_plain(folder):
    tensors = load_file(folder / "plain.safetensors")
    assert set(tensors) == {"float32", "bfloat16", "float16"}, set(tensors)
    shapes = {"float32": (3, 5), "bfloat16": (5, 3), "float16": (15,)}
    for name, tensor in tensors.items():
        expected = (torch.arange(15) / 8 - 1).reshape(shapes[name]).to(getattr(torch, name))
        assert tensor.dtype == expected.dtype and torch.equal(tensor, expected), name


def check_packed(folder):
    tensors = load_file(folder / "packed.safetensors")
    config = QuantizationConfig(**json.loads((folder / "mixed.json").read_text()))
    assert config.format == "pack-quantized" and config.ignore == ["lm_head"], config
    schemes = {target: scheme for scheme in config.config_groups.values() for target in scheme.targets}
    assert len(schemes) == 16, schemes.keys()
    for module, scheme in schemes.items():
        state = {name.removeprefix(module + "."): tensor for name, tensor in tensors.items()
                 if name.startswith(module + ".")}
        expected = state.pop("expected")
        weight = PackedQuantizationCompressor.decompress(state, scheme)["weight"]
        # The package multiplies in the scales' type: our exact product, rounded once to it.
        assert torch.equal(weight, expected.to(weight.dtype)), (module, scheme)


def check_single(folder):
    config = QuantizationConfig(**json.loads((folder / "single.json").read_text()))
    (scheme,) = config.config_groups.values()
    assert scheme.targets == ["Linear"] and scheme.weights.num_bits == 2, scheme
    assert scheme.weights.group_size == 64 and scheme.weights.symmetric, scheme


if __name__ == "__main__":
    output = pathlib.Path(sys.argv[1])
    check_npy(output)
    check_plain(output)
    check_packed(output)
    check_single(output)
