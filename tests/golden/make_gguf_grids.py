#!/usr/bin/env python3
"""Makes runtime/blocks/gguf_grids.cpp: the grids of ggml's IQ formats, as the gguf package holds them.

usage: make_gguf_grids.py > runtime/blocks/gguf_grids.cpp     (needs gguf 0.19.0)
"""
import gguf.quants as quants

GRIDS = [  # name, class, bits of a level
    ("kIq2Xxs", quants.IQ2_XXS, 2),
    ("kIq2Xs", quants.IQ2_XS, 2),
    ("kIq2S", quants.IQ2_S, 2),
    ("kIq1S", quants.IQ1_S, 2),
    ("kIq3Xxs", quants.IQ3_XXS, 3),
    ("kIq3S", quants.IQ3_S, 3),
]

HEAD = """\
// Made by tests/golden/make_gguf_grids.py from the gguf package 0.19.0. The numbers are those of ggml (ggml-common.h),
// MIT licence, Copyright (c) 2023-2024 The ggml authors: see THIRD_PARTY.md.
#include "runtime/blocks/gguf_grids.h"

namespace pare::runtime {
"""


def words(grid_class, bits):
    grid_class.init_grid()
    grid = grid_class.grid.reshape(grid_class.grid_shape)
    levels = {float(value): index for index, value in enumerate(grid_class.grid_map)}
    for row in grid:
        yield sum(levels[float(value)] << (bits * place) for place, value in enumerate(row))


if __name__ == "__main__":
    print(HEAD)
    for name, grid_class, bits in GRIDS:
        numbers = [str(word) for word in words(grid_class, bits)]
        print(f"const std::array<uint16_t, {len(numbers)}> {name} = {{")
        line = "   "
        for number in numbers:
            if len(line) + len(number) + 2 > 119:
                print(line)
                line = "   "
            line += f" {number},"
        print(line)
        print("};\n")
    print("}  // namespace pare::runtime")
