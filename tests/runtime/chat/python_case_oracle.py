#!/usr/bin/env python3
"""Writes what Python says of every character, for python_case_test.cpp.

    python_case_oracle.py OUT     Unicode's version, then a line for each code point of the planes in use: properties as
                                  bits, and lower, upper, capitalize and title of texts with the character, each as hex
                                  digits of its UTF-8
"""
import sys
import unicodedata

SIGMA = "\u03a3"
PROPERTIES = [
    str.isalpha, str.isdecimal, str.isdigit, str.isnumeric, str.islower, str.isupper,
    lambda c: c.istitle() and not c.isupper(), str.isprintable, str.isspace, str.isalnum,
]

with open(sys.argv[1], "w", encoding="ascii") as out:
    out.write(unicodedata.unidata_version + "\n")
    for code_point in [*range(0x33000), *range(0xE0000, 0xE1000)]:
        if 0xD800 <= code_point < 0xE000:
            continue
        c = chr(code_point)
        words = [str(sum(has(c) << i for i, has in enumerate(PROPERTIES)))]
        for text in (c, "a" + c + SIGMA, c + SIGMA, SIGMA + c + "A"):
            words += [t.encode().hex() for t in (text.lower(), text.upper(), text.capitalize(), text.title())]
        out.write(" ".join(words) + "\n")
