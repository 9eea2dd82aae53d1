#!/usr/bin/env python3
"""Makes tests/golden/formats/few_bits.gguf and few_bits.f32: blocks of Q1_0 and Q2_0, by ggml's own functions.

usage: make_gguf_few_bits.py LLAMA_CPP     the folder vendor/llama.cpp of llama-cpp-python's source distribution 0.3.36;
                                           needs numpy and gcc

The package gguf 0.19 does not decode these types. So ggml-quants.c (MIT) is compiled here: its reference functions
quantize random weights, and its own dequantization says what the blocks stand for. The blocks of a third and a fourth
tensor are random bits under sane scales, so that every code occurs.
"""
import ctypes
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy as np

OUT = pathlib.Path(__file__).parent / "formats"
ROWS, WIDTH = 3, 512
TYPES = {"q1_0": (41, 128, 18), "q2_0": (42, 64, 18)}  # number, elements and bytes of a block (ggml.h, ggml-common.h)


# Other functions of the file call these.
MISSING = ("ggml_abort", "ggml_row_size", "ggml_type_name", "ggml_type_size")


def build(source, folder):
    library, stubs = pathlib.Path(folder) / "quants.so", pathlib.Path(folder) / "stubs.c"
    stubs.write_text("".join(f"void {name}(void) {{}}\n" for name in MISSING))
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", f"-I{source}/ggml/include", f"-I{source}/ggml/src", "-o", library,
                    f"{source}/ggml/src/ggml-quants.c", stubs, "-lm"], check=True)
    return ctypes.CDLL(str(library))


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def make(library, name, random):
    """(name, number, blocks, values) of two tensors."""
    number, elements, size = TYPES[name]
    count = ROWS * WIDTH
    weights = random.standard_normal(count).astype(np.float32)
    quantized = np.zeros((count // elements, size), np.uint8)
    getattr(library, f"quantize_row_{name}_ref")(pointer(weights), pointer(quantized), ctypes.c_int64(count))
    drawn = random.integers(0, 256, quantized.shape, dtype=np.uint8)
    drawn[:, :2] = random.normal(0, 0.1, (len(drawn), 1)).astype(np.float16).view(np.uint8)
    for kind, blocks in (("quantized", quantized), ("drawn", drawn)):
        values = np.zeros(count, np.float32)
        getattr(library, f"dequantize_row_{name}")(pointer(blocks), pointer(values), ctypes.c_int64(count))
        assert np.isfinite(values).all()
        yield f"{kind}.{name.upper()}", number, blocks.tobytes(), values


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def main(source):
    random = np.random.default_rng(41)
    with tempfile.TemporaryDirectory() as folder:
        library = build(source, folder)
        tensors = [tensor for name in TYPES for tensor in make(library, name, random)]
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 1)
    header += text("general.architecture") + struct.pack("<I", 8) + text("test")
    data = b""
    for name, number, blocks, _ in tensors:
        data += b"\0" * (-len(data) % 32)
        header += text(name) + struct.pack("<IQQIQ", 2, WIDTH, ROWS, number, len(data))
        data += blocks
    header += b"\0" * (-len(header) % 32)
    (OUT / "few_bits.gguf").write_bytes(header + data)
    np.concatenate([values for *_, values in tensors]).tofile(OUT / "few_bits.f32")


if __name__ == "__main__":
    main(sys.argv[1])
