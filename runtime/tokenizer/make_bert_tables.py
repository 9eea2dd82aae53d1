#!/usr/bin/env python3
"""Writes bert_tables.cpp: the classes of characters that the BERT normalizer and pre-tokenizer of the `tokenizers`
package tell apart, found by asking the package about every code point (its Unicode tables are of several versions).

    python3 runtime/tokenizer/make_bert_tables.py | clang-format --assume-filename=x.cpp >
    runtime/tokenizer/bert_tables.cpp
"""
import unicodedata

import tokenizers
from tokenizers import normalizers, pre_tokenizers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def bert(**on):
    options = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    return normalizers.BertNormalizer(**{**options, **on})


def ranges(code_points):
    out = []
    for c in code_points:
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


clean, chinese, strip, lower = (
    bert(clean_text=True),
    bert(handle_chinese_chars=True),
    bert(strip_accents=True),
    bert(lowercase=True),
)
split = pre_tokenizers.BertPreTokenizer()
removed = [c for c in CODE_POINTS if clean.normalize_str(chr(c)) == ""]
spaced = [c for c in CODE_POINTS if chinese.normalize_str(chr(c)) == f" {chr(c)} "]
# A mark that is part of a composition would hide behind it: after a digit nothing composes.
marks = [
    c
    for c in CODE_POINTS
    if unicodedata.normalize("NFD", chr(c)) == chr(c) and strip.normalize_str("1" + chr(c)) == "1"
]
punctuation = [c for c in CODE_POINTS if len(split.pre_tokenize_str("a" + chr(c) + "b")) == 3]
lowered = [(c, lower.normalize_str(chr(c))) for c in CODE_POINTS]
lowered = [(c, text) for c, text in lowered if text != chr(c)]

print(f"// Made by make_bert_tables.py from tokenizers {tokenizers.__version__}; do not edit.")
print('#include "runtime/tokenizer/bert_tables.h"\n\nnamespace pare::runtime::bert {\n')
for name, values in ("kRemoved", removed), ("kSpaced", spaced), ("kMarks", marks), ("kPunctuation", punctuation):
    print(
        f"const std::vector<Range> {name} = {{" + ",".join(f"{{0x{a:X},0x{b:X}}}" for a, b in ranges(values)) + "};\n"
    )
print("const std::vector<Lower> kLower = {")
print(",".join(f"{{0x{c:X},{{{','.join(f'0x{ord(x):X}' for x in text)}}}}}" for c, text in lowered) + "};\n")
print("}  // namespace pare::runtime::bert")
