#!/usr/bin/env python3
"""What other software says about texts, for tokenizer_test.cpp and its neighbours.

    tokenizers_oracle.py encode TOKENIZER.json TEXTS.json OUT.json   the `tokenizers` package: ids, and text of the ids
    tokenizers_oracle.py ids TOKENIZER.json TEXTS.json OUT.json      the ids without special tokens alone
    tokenizers_oracle.py nfc TEXTS.json OUT.json                     unicodedata: normalization form C

TOKENIZER.json may also be a vocabulary as GGUF files have it (keys of tokenizer.ggml); the tokenizer of Llama 2 or
SmolLM2 is then put together here.

TEXTS.json is an array of strings; OUT.json has an array with one entry each.
"""
import json
import sys
import unicodedata


def encode(tokenizer, texts):
    results = []
    for text in texts:
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        special = tokenizer.encode(text, add_special_tokens=True).ids
        results.append({
            "ids": plain,
            "ids_with_special": special,
            "text": tokenizer.decode(special, skip_special_tokens=False),
            "text_without_special": tokenizer.decode(special, skip_special_tokens=True),
        })
    return results


def put_together(vocabulary):
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    tokens = vocabulary["tokens"]
    ids = {token: id for id, token in enumerate(tokens)}
    if vocabulary["model"] == "llama":
        from transformers.convert_slow_tokenizer import generate_merges

        merges = generate_merges(ids, list(zip(tokens, vocabulary["scores"])))
        tokenizer = Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    else:  # SmolLM2's own tokenizer.json: single digits, then GPT-2's expression
        merges = [tuple(merge.split(" ")) for merge in vocabulary["merges"]]
        tokenizer = Tokenizer(models.BPE(ids, merges))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
        tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, vocabulary["token_type"]) if kind in (2, 3)]
    tokenizer.add_special_tokens(special)
    return tokenizer


def main():
    mode, *names, out = sys.argv[1:]
    files = [open(name, encoding="utf-8").read() for name in names]
    texts = json.loads(files[-1])
    if mode == "nfc":
        results = [unicodedata.normalize("NFC", text) for text in texts]
    else:
        from tokenizers import Tokenizer

        content = json.loads(files[0])
        tokenizer = put_together(content) if "tokens" in content else Tokenizer.from_str(files[0])
        if mode == "ids":
            results = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        else:
            results = encode(tokenizer, texts)
    with open(out, "w", encoding="utf-8") as file:
        json.dump(results, file)


main()
