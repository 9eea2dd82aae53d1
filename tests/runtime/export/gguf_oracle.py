#!/usr/bin/env python3
"""Reads GGUF files with the package gguf, and writes what it finds as JSON.

usage: gguf_oracle.py OUT.json FILE...

For each file: its keys with their values, and of each tensor the type, the shape (as numpy has it) and the SHA-256 of
its elements in float32, as the package decodes them.
"""
import hashlib
import json
import sys

import numpy
from gguf import GGUFReader, dequantize


def plain(value):
    if isinstance(value, numpy.generic):
        return value.item()
    if isinstance(value, (list, numpy.ndarray)):
        return [plain(item) for item in value]
    return value


def read(path):
    reader = GGUFReader(path)
    keys = {name: plain(field.contents()) for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    tensors = {}
    for tensor in reader.tensors:
        values = numpy.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=numpy.float32)
        tensors[tensor.name] = {"type": tensor.tensor_type.name, "shape": [int(n) for n in reversed(tensor.shape)],
                                "sha256": hashlib.sha256(values.tobytes()).hexdigest()}
    return {"keys": keys, "tensors": tensors}


def main():
    out, *files = sys.argv[1:]
    with open(out, "w", encoding="utf-8") as result:
        json.dump([read(file) for file in files], result)


main()
