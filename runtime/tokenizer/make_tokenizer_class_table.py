#!/usr/bin/env python3
"""Writes tokenizer_class_table.cpp: which tokenizer class AutoTokenizer of the installed transformers takes for a
model_type, and for which types this goes before the class that a folder names.

    python3 runtime/tokenizer/make_tokenizer_class_table.py | clang-format --assume-filename=x.cpp >
    runtime/tokenizer/tokenizer_class_table.cpp
"""
import transformers
from transformers.models.auto import tokenization_auto as auto

GENERIC = ("TokenizersBackend", "PythonBackend", "PreTrainedTokenizerFast", "MistralCommonBackend")
print(f"// Made by make_tokenizer_class_table.py from transformers {transformers.__version__}; do not edit.")
print('#include <array>\n\n#include "runtime/tokenizer/tokenizer_class.h"\n\nnamespace pare::runtime {\nnamespace {\n')
rows = []
for model_type, name in sorted(auto.TOKENIZER_MAPPING_NAMES.items()):
    if name is None:
        continue
    name = name.removesuffix("Fast")
    name = "TokenizersBackend" if name in GENERIC else name
    decides = model_type in auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS
    rows.append(f'{{"{model_type}", "{name}", {"true" if decides else "false"}}}')
print(f"constexpr std::array<ModelTypeClass, {len(rows)}> kRows = {{{{" + ",\n".join(rows) + "}};\n")
print("}  // namespace\n\nconst std::span<const ModelTypeClass> kModelTypeClasses = kRows;\n")
print("}  // namespace pare::runtime")
