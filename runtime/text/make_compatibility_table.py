#!/usr/bin/env python3
"""Writes compatibility_table.cpp: what normalization forms KC and KD make of a character beyond its canonical
decomposition, and which characters are marks, found by asking the `tokenizers` package about every code point (its
Unicode tables are of several versions).

    python3 runtime/text/make_compatibility_table.py | clang-format --assume-filename=x.cpp >
    runtime/text/compatibility_table.cpp
"""
import tokenizers
from tokenizers import normalizers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
nfd, nfkd, strip = normalizers.NFD(), normalizers.NFKD(), normalizers.StripAccents()

pool, rows = [], []
for c in CODE_POINTS:
    full = nfkd.normalize_str(chr(c))
    if full != nfd.normalize_str(chr(c)):
        rows.append((c, len(pool), len(full)))
        pool += [ord(x) for x in full]
marks = []
for c in CODE_POINTS:
    if strip.normalize_str(chr(c)) == "":
        if marks and marks[-1][1] == c - 1:
            marks[-1][1] = c
        else:
            marks.append([c, c])

print(f"// Made by make_compatibility_table.py from tokenizers {tokenizers.__version__}; do not edit.")
print('#include "runtime/text/nfc_tables.h"\n\nnamespace pare::runtime::nfc {\n')
print("const std::vector<Decomposition> kCompatibility = {")
print(",".join(f"{{0x{c:X},{at},{n}}}" for c, at, n in rows) + "};\n")
print("const std::vector<char32_t> kCompatible = {" + ",".join(f"0x{x:X}" for x in pool) + "};\n")
print("const std::vector<Range> kMarks = {" + ",".join(f"{{0x{a:X},0x{b:X}}}" for a, b in marks) + "};\n")
print("}  // namespace pare::runtime::nfc")
