#!/usr/bin/env python3
"""Writes nfc_tables.cpp, the data of Unicode normalization form C (UAX #15), from Python's unicodedata.

    python3 runtime/text/make_nfc_tables.py | clang-format --assume-filename=x.cpp >
    runtime/text/nfc_tables.cpp
"""
import unicodedata

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
HANGUL = range(0xAC00, 0xAC00 + 11172)  # decomposed and composed by arithmetic, not by table


def ranges(values):
    """[(first, last, value)] of consecutive code points with the same value; values is {code point: value}."""
    out = []
    for c in sorted(values):
        if out and out[-1][1] == c - 1 and out[-1][2] == values[c]:
            out[-1][1] = c
        else:
            out.append([c, c, values[c]])
    return out


classes = {c: unicodedata.combining(chr(c)) for c in CODE_POINTS if unicodedata.combining(chr(c))}

decompositions = {}  # full canonical decomposition
compositions = {}  # (first, second) -> composed
for c in CODE_POINTS:
    if c in HANGUL:
        continue
    full = unicodedata.normalize("NFD", chr(c))
    if full != chr(c):
        decompositions[c] = full
    step = unicodedata.decomposition(chr(c))
    if step and not step.startswith("<") and len(step.split()) == 2:
        if unicodedata.normalize("NFC", chr(c)) == chr(c):  # else excluded from composition
            compositions[tuple(int(x, 16) for x in step.split())] = c

# Code points before which a text cannot be cut: they can change, or combine with what stands before them (NFC_QC No or
# Maybe), or take part in reordering.
unsafe = {c: 1 for c in CODE_POINTS if unicodedata.normalize("NFC", chr(c)) != chr(c)}
unsafe.update({c: 1 for c in classes})
unsafe.update({second: 1 for _, second in compositions})
unsafe.update({c: 1 for c in list(range(0x1161, 0x1176)) + list(range(0x11A8, 0x11C3))})

pool = []
rows = []
for c in sorted(decompositions):
    text = [ord(x) for x in decompositions[c]]
    rows.append((c, len(pool), len(text)))
    pool += text

print(f"// Made by make_nfc_tables.py from the Unicode Character Database {unicodedata.unidata_version}; do not edit.")
print('#include "runtime/text/nfc_tables.h"\n\nnamespace pare::runtime::nfc {\n')
print("const std::vector<ClassRange> kCombiningClasses = {")
print(",".join(f"{{0x{a:X},0x{b:X},{v}}}" for a, b, v in ranges(classes)) + "};\n")
print("const std::vector<Range> kUnsafe = {")
print(",".join(f"{{0x{a:X},0x{b:X}}}" for a, b, _ in ranges(unsafe)) + "};\n")
print("const std::vector<Decomposition> kDecompositions = {")
print(",".join(f"{{0x{c:X},{at},{n}}}" for c, at, n in rows) + "};\n")
print("const std::vector<char32_t> kDecomposed = {" + ",".join(f"0x{x:X}" for x in pool) + "};\n")
print("const std::vector<Composition> kCompositions = {")
print(",".join(f"{{0x{a:X},0x{b:X},0x{c:X}}}" for (a, b), c in sorted(compositions.items())) + "};\n")
print("}  // namespace pare::runtime::nfc")
