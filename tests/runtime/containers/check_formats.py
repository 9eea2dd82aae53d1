"""Reads, with the packages that define the formats, what formats_python_test.cpp wrote into the folder given."""

import json
import pathlib
import sys

import numpy
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.entrypoints.convert.converters import AutoAWQConverter
from compressed_tensors.quantization import QuantizationConfig, preset_name_to_scheme
from safetensors.torch import load_file
from transformers import AwqConfig, BitsAndBytesConfig


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


def state_of(tensors, module):
    return {
        name.removeprefix(module + "."): tensor for name, tensor in tensors.items() if name.startswith(module + ".")
    }


def check_containers(folder):
    tensors = load_file(folder / "containers.safetensors")
    config = QuantizationConfig(**json.loads((folder / "containers.json").read_text()))
    assert config.format == "mixed-precision", config
    schemes = {target: scheme for scheme in config.config_groups.values() for target in scheme.targets}
    assert len(schemes) == 10, schemes.keys()
    formats = set()
    for module, scheme in schemes.items():
        state = state_of(tensors, module)
        expected = state.pop("expected")
        formats.add(scheme.format)
        compressor = BaseCompressor.get_value_from_registry(scheme.format)
        weight = compressor.decompress(state, scheme)["weight"]
        # The package multiplies in the scales' type: our exact product, rounded once to it.
        assert torch.equal(weight, expected.to(weight.dtype)), (module, scheme)
        activations = scheme.input_activations
        if activations is None:
            assert not any("input" in name for name in state), (module, state.keys())
            continue
        assert ("input_global_scale" in state) == (activations.dynamic == "local"), (module, state.keys())
        if activations.dynamic == "local":
            preset = preset_name_to_scheme("NVFP4", []).input_activations
            assert activations == preset.model_copy(update={"observer": None}), activations
            assert state["input_global_scale"].dtype == torch.float32 and state["input_global_scale"].tolist() == [0.25]
        assert ("input_scale" in state) == (not activations.dynamic), (module, state.keys())
        assert ("input_zero_point" in state) == (not activations.dynamic and not activations.symmetric), module
        if "input_scale" in state:
            assert state["input_scale"].item() == 0.25 and state["input_scale"].shape == (1,), module
        if "input_zero_point" in state:
            assert state["input_zero_point"].item() == -7, module
    expected = {"pack-quantized", "int-quantized", "float-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized"}
    assert formats == expected, formats


def check_awq(folder):
    """compressed-tensors' converter from AutoAWQ's GEMM files, and its decompressor of the result."""
    config = json.loads((folder / "awq.json").read_text())
    known = AwqConfig.from_dict(dict(config))
    assert known.bits == 4 and known.group_size == 64 and known.zero_point and known.format == "gemm", known
    assert known.modules_to_not_convert == ["lm_head"], known
    converter = AutoAWQConverter.from_autoawq_config(config)
    tensors = load_file(folder / "awq.safetensors")
    converter.validate(tensors)
    (scheme,) = converter.update_config(None).config_groups.values()
    converted = converter.process(dict(tensors))
    for module in ("symmetric", "asymmetric"):
        state = state_of(converted, module)
        expected = state.pop("expected")
        weight = PackedQuantizationCompressor.decompress(state, scheme)["weight"]
        assert weight.dtype == torch.float16 and torch.equal(weight, expected.to(torch.float16)), module


def check_int8(folder):
    """A reader written here from the published layout; bitsandbytes itself made tests/golden/formats/int8.safetensors.
    """
    config = BitsAndBytesConfig.from_dict(json.loads((folder / "int8.json").read_text()))
    assert config.load_in_8bit and not config.load_in_4bit, config
    assert config.llm_int8_threshold == 6.0 and config.llm_int8_skip_modules == ["lm_head"], config
    tensors = load_file(folder / "int8.safetensors")
    assert set(tensors) == {"m.weight", "m.SCB", "m.weight_format", "m.expected"}, set(tensors)
    assert tensors["m.weight_format"].item() == 0 and tensors["m.weight_format"].shape == ()
    dense = tensors["m.weight"].double() * tensors["m.SCB"].double()[:, None] / 127
    torch.testing.assert_close(dense.float(), tensors["m.expected"], rtol=2 * 2.0**-24, atol=0)


def stream(words, bits, count):
    """`count` numbers of `bits` bits of each row of int32 words: a stream of docs/formats.md."""
    rows = words.reshape(-1, words.shape[-1]).astype("<u4").view(numpy.uint8)
    every = numpy.unpackbits(rows, axis=1, bitorder="little")
    used = every[:, : count * bits].reshape(len(rows), count, bits)
    assert not every[:, count * bits :].any()
    return (used.astype(numpy.int64) << numpy.arange(bits)).sum(axis=2)


def decode_sparse24(state, group, num_out, num_in):
    """docs/formats.md, "The bytes of pare-sparse24", in numpy."""
    weights = group["weights"]
    num_kept = num_in // 2 if group["pattern"] else num_in
    values = state["weight_values"]
    scale = zero = None
    if weights is None:
        values = values.float().numpy()
        dense = numpy.zeros((num_out, num_in), numpy.float32)
    else:
        bits, size = weights["bits"], weights["group_size"] or num_in
        groups = num_in // size
        values = stream(values.numpy(), bits, num_kept)
        shape = (1, 1) if weights["per_tensor"] else (num_out, groups)
        scale = state["weight_scale"].float().numpy().reshape(shape)
        if weights["symmetric"]:
            zero = numpy.full(shape, 1 << (bits - 1))
        else:
            zero = stream(state["weight_zero_point"].numpy().reshape(1, -1), bits, shape[0] * shape[1]).reshape(shape)
        scale, zero = (numpy.broadcast_to(a, (num_out, groups)).repeat(size, axis=1) for a in (scale, zero))
        dense = zero.copy()
    if group["pattern"]:
        positions = stream(state["weight_positions"].numpy(), 2, num_kept)
        assert (positions[:, 0::2] < positions[:, 1::2]).all()
        columns = numpy.arange(num_kept) // 2 * 4 + positions
        numpy.put_along_axis(dense, columns, values.astype(dense.dtype), axis=1)
    else:
        dense = values
    return dense if weights is None else scale * (dense - zero).astype(numpy.float32)


def check_sparse24(folder):
    config = json.loads((folder / "sparse24.json").read_text())
    assert config["quant_method"] == "pare-sparse24" and config["ignore"] == ["lm_head"], config
    tensors = load_file(folder / "sparse24.safetensors")
    modules = [(module, group) for group in config["groups"] for module in group["modules"]]
    assert len(modules) == 3 * (1 + 4 * 2 * 3) + 1, len(modules)
    for module, group in modules:
        state = state_of(tensors, module)
        expected = state.pop("expected").numpy()
        static = group["inputs"] is not None
        if static:
            assert group["inputs"] == {"type": "int8", "range": "static", "symmetric": False}, group
            assert state.pop("input_scale").item() == 0.25 and state.pop("input_zero_point").item() == -7
        numpy.testing.assert_array_equal(decode_sparse24(state, group, *expected.shape), expected, err_msg=module)
        if group["pattern"]:
            kept = (expected != 0).reshape(len(expected), -1, 4).sum(axis=2)
            assert group["pattern"] == "2:4" and kept.max() <= 2 and kept.min() < 2, module
        expected_names = {"weight_values"} | ({"weight_positions"} if group["pattern"] else set())
        if group["weights"] is not None:
            expected_names |= {"weight_scale"} | (set() if group["weights"]["symmetric"] else {"weight_zero_point"})
        assert set(state) == expected_names, (module, set(state))


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
    check_containers(output)
    check_awq(output)
    check_int8(output)
    check_sparse24(output)
