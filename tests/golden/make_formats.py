"""Writes tests/golden/formats/: small files by the packages that define the formats pare reads and writes.

reference.safetensors     the `safetensors` package: every element type, a scalar, an empty tensor, names to escape
*.npy                     numpy: what pare reads (windows_*) and what it refuses (refused_*)
packed.safetensors        compressed-tensors' own compressor and decompressor, for all bits, strategies and symmetries
plain.safetensors         the same for its int-quantized and float-quantized formats, with input scales
quantization_config.json  compressed-tensors' own configuration objects as it writes them

Run: python tests/golden/make_formats.py (with the packages of tests/requirements.txt); the result is deterministic.
"""

import json
import pathlib

import numpy
import torch
from compressed_tensors.compressors.naive_quantized import FloatQuantizationCompressor, IntQuantizationCompressor
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from safetensors.torch import save_file

FOLDER = pathlib.Path(__file__).parent / "formats"


def write_safetensors():
    # Values that the test states in closed form: element i of a tensor is i / 4 - 2 (floats) or i - 3 (integers).
    def floats(*shape):
        return torch.arange(int(numpy.prod(shape))).reshape(shape) / 4 - 2

    def integers(*shape):
        return torch.arange(int(numpy.prod(shape))).reshape(shape) - 3

    tensors = {
        "b.f32": floats(2, 3),
        "a.f32": floats(5),
        "f16": floats(3, 2).to(torch.float16),
        "bf16": floats(2, 2, 2).to(torch.bfloat16),
        "f64": floats(3).to(torch.float64),
        "i8": integers(7).to(torch.int8),
        "u8": (integers(5) + 3).to(torch.uint8),
        "i16": integers(3).to(torch.int16),
        "i32": integers(4).to(torch.int32),
        "i64": integers(2).to(torch.int64),
        "bool": torch.tensor([True, False, True]),
        "scalar": torch.tensor(1.5),
        "empty": torch.zeros(0, 4),
        'quote " backslash \\ newline \n umlaut ü': floats(1),
    }
    save_file(tensors, FOLDER / "reference.safetensors", metadata={"format": "pt"})


def write_npy():
    windows = numpy.arange(15).reshape(3, 5) * 1000
    numpy.save(FOLDER / "windows_int32.npy", windows.astype("<i4"))
    numpy.save(FOLDER / "windows_int64.npy", windows.astype("<i8"))
    numpy.save(FOLDER / "windows_one_dimension.npy", windows.astype("<i4")[1])
    with open(FOLDER / "windows_version2.npy", "wb") as file:
        numpy.lib.format.write_array(file, windows.astype("<i4"), version=(2, 0))
    numpy.save(FOLDER / "refused_fortran_order.npy", numpy.asfortranarray(windows.astype("<i4")))
    numpy.save(FOLDER / "refused_big_endian.npy", windows.astype(">i4"))
    numpy.save(FOLDER / "refused_float32.npy", windows.astype("<f4"))
    numpy.save(FOLDER / "refused_structured.npy", numpy.zeros(3, dtype=[("a", "<i4"), ("b", "<i4")]))
    numpy.save(FOLDER / "refused_three_dimensions.npy", windows.astype("<i4")[None])
    numpy.save(FOLDER / "refused_scalar.npy", numpy.array(3, dtype="<i4"))
    numpy.save(FOLDER / "refused_negative.npy", -windows.astype("<i4"))
    numpy.save(FOLDER / "refused_large_id.npy", windows.astype("<i8") * 10**9)


def write_packed():
    generator = torch.Generator().manual_seed(7)
    dtypes = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    tensors = {}
    for index, bits in enumerate((2, 3, 4, 8)):
        for strategy in ("group", "channel"):
            for symmetric in (True, False):
                # No dimension is a multiple of a word's codes where the strategy allows it.
                num_out, num_in = (10, 96) if strategy == "group" else (13, 77)
                groups = num_in // 32 if strategy == "group" else 1
                dtype_name = list(dtypes)[(index + symmetric) % 3]
                half = 2 ** (bits - 1)
                codes = torch.randint(-half, half, (num_out, num_in), generator=generator)
                zeros = torch.randint(-half, half, (num_out, groups), generator=generator).to(torch.int8)
                if symmetric:
                    zeros.zero_()
                scale = (torch.rand(num_out, groups, generator=generator) + 0.5).to(dtypes[dtype_name])
                expanded = lambda t: t.float().repeat_interleave(num_in // groups, dim=1)
                scheme = QuantizationScheme(
                    targets=["Linear"],
                    weights=QuantizationArgs(
                        num_bits=bits,
                        symmetric=symmetric,
                        strategy=strategy,
                        group_size=32 if strategy == "group" else None,
                    ),
                )
                state = {
                    "weight": (codes - expanded(zeros)) * expanded(scale),
                    "weight_scale": scale,
                    "weight_zero_point": zeros,
                }
                packed = PackedQuantizationCompressor.compress(state, scheme)
                dense = PackedQuantizationCompressor.decompress(packed, scheme)["weight"]
                name = f"w{bits}.{strategy}.{'symmetric' if symmetric else 'asymmetric'}.{dtype_name}"
                tensors |= {f"{name}.{key}": value.contiguous() for key, value in packed.items()}
                tensors[f"{name}.codes"] = (codes + half).to(torch.uint8)
                tensors[f"{name}.zeros"] = (zeros.int() + half).to(torch.uint8)
                tensors[f"{name}.dense"] = dense
    save_file(tensors, FOLDER / "packed.safetensors", metadata={"format": "pt"})


def write_plain():
    generator = torch.Generator().manual_seed(8)
    tensors = {}
    for bits, kind, strategy, symmetric, dtype in (
        (8, "int", "channel", True, torch.bfloat16),
        (8, "int", "tensor", True, torch.float16),
        (8, "int", "channel", False, torch.float32),
        (8, "int", "tensor", False, torch.bfloat16),
        (4, "int", "group", True, torch.float16),
        (4, "int", "group", False, torch.bfloat16),
        (8, "float", "channel", True, torch.bfloat16),
        (8, "float", "tensor", True, torch.float32),
    ):
        num_out, num_in = 10, 96
        shape = {"channel": (num_out, 1), "tensor": (1,), "group": (num_out, num_in // 32)}[strategy]
        scale = (torch.rand(shape, generator=generator) + 0.5).to(dtype)
        half = 2 ** (bits - 1)
        zeros = torch.randint(-half, half, shape, generator=generator).to(torch.int8)
        if symmetric:
            zeros.zero_()
        expanded = lambda t: t.float().repeat_interleave(32, dim=1) if strategy == "group" else t.float()
        if kind == "int":
            codes = torch.randint(-half, half, (num_out, num_in), generator=generator).to(torch.int8)
            weight = (codes.float() - expanded(zeros)) * expanded(scale)
        else:
            codes = torch.randint(0, 256, (num_out, num_in), generator=generator).to(torch.uint8)
            codes[(codes & 0x7F) % 0x7F == 0] = 0x7E  # no NaN; the compressor adds 0, which turns -0 into 0
            codes = codes.view(torch.float8_e4m3fn)
            weight = codes.float() * expanded(scale)
        scheme = QuantizationScheme(
            targets=["Linear"],
            weights=QuantizationArgs(
                num_bits=bits,
                type=kind,
                symmetric=symmetric,
                strategy=strategy,
                group_size=32 if strategy == "group" else None,
            ),
            input_activations=QuantizationArgs(num_bits=8, type=kind, symmetric=symmetric, strategy="tensor"),
        )
        state = {
            "weight": weight,
            "weight_scale": scale,
            "weight_zero_point": zeros,
            "input_scale": torch.tensor([0.125], dtype=dtype),
            "input_zero_point": torch.tensor([-3], dtype=torch.int8),
        }
        compressor = IntQuantizationCompressor if kind == "int" else FloatQuantizationCompressor
        plain = compressor.compress(state, scheme)
        assert torch.equal(plain["weight"].view(torch.int8), codes.view(torch.int8))
        dense = compressor.decompress(plain, scheme)["weight"]
        name = f"{kind}{bits}.{strategy}.{'symmetric' if symmetric else 'asymmetric'}"
        tensors |= {f"{name}.{key}": value.contiguous() for key, value in plain.items()}
        tensors[f"{name}.dense"] = dense
    save_file(tensors, FOLDER / "plain.safetensors", metadata={"format": "pt"})


def write_quantization_config():
    def scheme(targets, **weights):
        return QuantizationScheme(targets=targets, weights=QuantizationArgs(**weights), format="pack-quantized")

    config = QuantizationConfig(
        config_groups={
            "group_0": scheme(["Linear"], num_bits=4, strategy="group", group_size=128, actorder="weight"),
            "group_1": scheme(["re:.*down_proj$", "model.layers.1.mlp.up_proj"], num_bits=8, strategy="channel"),
            "group_2": scheme(["Embedding"], num_bits=3, strategy="group", group_size=64, symmetric=False),
        },
        format="pack-quantized",
        quantization_status="compressed",
        ignore=["lm_head", "re:.*\\.gate$"],
    )
    text = json.dumps(config.model_dump(mode="json"), indent=1)
    (FOLDER / "quantization_config.json").write_text(text + "\n")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    write_safetensors()
    write_npy()
    write_packed()
    write_plain()
    write_quantization_config()
