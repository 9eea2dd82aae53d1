#!/usr/bin/env python3
"""Writes python_case_tables.cpp: what Python's methods of texts say of each character, found by asking Python.

    python3 runtime/chat/make_python_case_tables.py | clang-format --assume-filename=x.cpp >
    runtime/chat/python_case_tables.cpp
"""
import unicodedata

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def ranges(has):
    """[first, last, step]: runs of characters, each one or two behind the one before it."""
    out = []
    for c in CODE_POINTS:
        if not has(chr(c)):
            continue
        last = out[-1] if out else None
        if last and (c - last[1] == last[2] or last[0] == last[1] and c - last[1] <= 2):
            last[2] = c - last[1]
            last[1] = c
        else:
            out.append([c, c, 1])
    return out


def steps(change):
    """[first, last, step, distance]: such runs whose characters change to others at the same distance."""
    out = []
    for c in CODE_POINTS:
        text = change(chr(c))
        if len(text) != 1 or text == chr(c):
            continue
        distance = ord(text) - c
        last = out[-1] if out else None
        if last and last[3] == distance and (c - last[1] == last[2] or last[0] == last[1] and c - last[1] <= 2):
            last[2] = c - last[1]
            last[1] = c
        else:
            out.append([c, c, 1, distance])
    return out


def is_ignored(c):
    """Case_Ignorable: what stands between a letter and a final sigma."""
    if c.islower() or c.isupper() or c.istitle():
        return (c + "\u03a3").lower()[-1] == "\u03c3"
    return ("a" + c + "\u03a3").lower()[-1] == "\u03c2"


def long_changes(change):
    return [(c, change(chr(c))) for c in CODE_POINTS if len(change(chr(c))) > 1]


print(f"// Made by make_python_case_tables.py from Unicode {unicodedata.unidata_version}; do not edit.")
print('#include "runtime/chat/python_case_tables.h"\n\nnamespace pare::runtime::python_case {\n')
PROPERTIES = {
    "kAlphabetic": str.isalpha, "kDecimal": str.isdecimal, "kDigit": str.isdigit, "kNumeric": str.isnumeric,
    "kLower": str.islower, "kUpper": str.isupper, "kPrintable": str.isprintable, "kCaseIgnorable": is_ignored,
    "kTitle": lambda c: c.istitle() and not c.isupper(),
}
for name, has in PROPERTIES.items():
    rows = ",".join(f"{{0x{a:X},0x{b:X},{s}}}" for a, b, s in ranges(has))
    print(f"const std::vector<Range> {name} = {{{rows}}};\n")
for name, change in {"kToLower": str.lower, "kToUpper": str.upper, "kToTitle": str.title}.items():
    rows = ",".join(f"{{0x{a:X},0x{b:X},{s},{d}}}" for a, b, s, d in steps(change))
    print(f"const std::vector<Step> {name} = {{{rows}}};\n")
    rows = ",".join(f"{{0x{c:X},{{{','.join(f'0x{ord(x):X}' for x in text)}}}}}" for c, text in long_changes(change))
    print(f"const std::vector<LongChange> {name}Long = {{{rows}}};\n")
print("}  // namespace pare::runtime::python_case")
