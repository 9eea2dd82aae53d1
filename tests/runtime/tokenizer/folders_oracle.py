#!/usr/bin/env python3
"""Makes folders with tokenizers at random, and what AutoTokenizer of transformers says of texts, for
tokenizer_folder_test.cpp.

    folders_oracle.py COUNT SEED OUT     writes OUT/0, OUT/1 ... and OUT/expected.json, an array with an entry each:
                                         {"texts": [...], "ids": [[...]], "text": [...], "plain": [...],
                                         "special": {name: token}} (plain: without special tokens; special: those
                                         with names); null where transformers refuses the folder
"""
import json
import os
import pathlib
import random
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import transformers  # noqa: E402
from tokenizers import pre_tokenizers  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

transformers.logging.set_verbosity_error()
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<pad>", "<|user|>", "[CLS]", "[SEP]",
           "[UNK]", "[PAD]", "[MASK]", "<bos>", "<eos>", "<mask>"]
CLASSES = {
    "bytes": ["PreTrainedTokenizerFast", "TokenizersBackend", "GPT2Tokenizer", "GPT2TokenizerFast", "Qwen2Tokenizer",
              "Qwen2TokenizerFast", "GPTNeoXTokenizer", "GPTNeoXTokenizerFast", "CohereTokenizerFast",
              "Qwen3_5Tokenizer", "NoSuchTokenizer", "BloomTokenizerFast", "RobertaTokenizer",
              "RobertaTokenizerFast", None],
    "sentencepiece": ["LlamaTokenizer", "LlamaTokenizer", "LlamaTokenizerFast", "GemmaTokenizer", "GemmaTokenizerFast",
                      "PreTrainedTokenizerFast", "CodeLlamaTokenizer", "CodeLlamaTokenizerFast", None],
    "wordpiece": ["BertTokenizer", "BertTokenizerFast", "PreTrainedTokenizerFast", "MPNetTokenizer", None],
    "unigram": ["T5Tokenizer", "T5TokenizerFast", "XLMRobertaTokenizer", "XLMRobertaTokenizerFast", "AlbertTokenizer",
                "PreTrainedTokenizerFast", None],
}
MODEL_TYPES = {
    "bytes": [None, "llama", "qwen2", "qwen3", "gpt2", "gpt_neox", "mistral", "opt", "phi3", "cohere", "olmo2"],
    "sentencepiece": [None, "llama", "mistral", "gemma", "phi3", "mixtral"],
    "wordpiece": [None, "bert", "distilbert", "mpnet"],
    "unigram": [None, "t5", "xlm-roberta", "albert"],
}


def template(*around):
    before, after = around
    piece = lambda token: {"SpecialToken": {"id": token[0], "type_id": 0}}  # noqa: E731
    single = [*map(piece, before), {"Sequence": {"id": "A", "type_id": 0}}, *map(piece, after)]
    return {"type": "TemplateProcessing", "single": single,
            "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in [*before, *after]}}


class Maker:
    def __init__(self, rng):
        self.rng = rng

    def some(self, values, most):
        return self.rng.sample(values, self.rng.randint(0, min(most, len(values))))

    def vocabulary(self, kind):
        """Tokens and merges, or scored pieces."""
        rng, special = self.rng, self.rng.sample(SPECIAL, rng_count := self.rng.randint(9, len(SPECIAL)))
        special = [t for t in SPECIAL if t in special or rng.random() < 0.4 and rng_count]
        if kind == "bytes":
            base = sorted(pre_tokenizers.ByteLevel.alphabet())
            pairs = [("a", "b"), ("Ġ", "a"), ("h", "i"), ("Ġ", "Ġ"), ("1", "2"), ("Ġ", "1"), ("hi", "hi")]
        elif kind == "sentencepiece":
            base = [f"<0x{i:02X}>" for i in range(256)] + list("▁abhiABHI12.,!é-'\"")
            pairs = [("▁", "a"), ("a", "b"), ("h", "i"), ("▁", "hi"), ("▁", "▁"), ("1", "2"), ("▁a", "b")]
        elif kind == "wordpiece":
            base = list("abhiABHI12.,!é-'\"<>|/s") + ["##a", "##b", "##h", "##i", "##1", "##2", "ab", "hi", "##hi"]
            pairs = []
        else:
            base = ["▁"] + list("abhiABHI12.,!é-'\"<>|/s") + ["▁a", "ab", "hi", "▁hi", "12", "▁ab", "▁1"]
            pairs = []
        if kind in ("wordpiece", "unigram"):  # their models need their unknown token
            special = SPECIAL[:]
        tokens = [*special, *base] if rng.random() < 0.7 or kind == "unigram" else [*base, *special]
        for left, right in pairs:
            if left in tokens and right in tokens and left + right not in tokens:
                tokens.append(left + right)
        return tokens, [list(p) for p in pairs if "".join(p) in tokens]

    def model(self, kind):
        tokens, merges = self.vocabulary(kind)
        vocab = {t: i for i, t in enumerate(tokens)}
        if kind == "unigram":
            pieces = [[t, 0.0 if t in SPECIAL else -1.0 - self.rng.random() * 8] for t in tokens]
            return vocab, {"type": "Unigram", "unk_id": vocab["<unk>"], "vocab": pieces, "byte_fallback": False}
        if kind == "wordpiece":
            return vocab, {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                           "max_input_chars_per_word": 100, "vocab": vocab}
        spm = kind == "sentencepiece"
        unk = "<unk>" if spm and "<unk>" in vocab else None
        return vocab, {"type": "BPE", "dropout": None, "unk_token": unk, "continuing_subword_prefix": None,
                       "end_of_word_suffix": None, "fuse_unk": spm, "byte_fallback": spm,
                       "ignore_merges": self.rng.random() < 0.2, "vocab": vocab, "merges": merges}

    def flags(self, special):
        rng = self.rng
        return {"single_word": rng.random() < 0.15, "lstrip": rng.random() < 0.25, "rstrip": rng.random() < 0.25,
                "normalized": rng.random() < (0.1 if special else 0.6), "special": special}

    def tokenizer_json(self, kind):
        rng = self.rng
        vocab, model = self.model(kind)
        added = []
        new = len(vocab)
        for token in self.some([t for t in vocab if t in SPECIAL] + ["<new>", "<newer>"], 8):
            if token not in vocab:
                added.append({"id": new, "content": token, **self.flags(rng.random() < 0.7)})
                new += 1
            else:
                added.append({"id": vocab[token], "content": token, **self.flags(rng.random() < 0.8)})
        level = {"type": "ByteLevel", "add_prefix_space": rng.random() < 0.3, "trim_offsets": True, "use_regex": True}
        marks = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
        if kind == "bytes":
            digits = {"type": "Digits", "individual_digits": True}
            normalizer = rng.choice([None, {"type": "NFC"}])
            pre = rng.choice([level, {"type": "Sequence", "pretokenizers": [digits, level]}])
            decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
        elif kind == "sentencepiece":
            spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
            normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, spaces]}
            pre, decoder = None, None
            if rng.random() < 0.4:
                scheme = rng.choice(["first", "always", "never"])
                normalizer, pre = None, {**marks, "prepend_scheme": scheme, "split": False}
        elif kind == "wordpiece":
            normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                          "strip_accents": rng.choice([None, True, False]), "lowercase": rng.random() < 0.5}
            pre, decoder = {"type": "BertPreTokenizer"}, {"type": "WordPiece", "prefix": "##", "cleanup": True}
        else:
            normalizer = rng.choice([None, {"type": "NFKC"}])
            pre, decoder = marks, marks
        names = [(t, i) for t, i in vocab.items() if t in SPECIAL]
        post = rng.choice([None, template(self.some(names, 1), self.some(names, 1))])
        file = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer,
                "pre_tokenizer": pre, "post_processor": post, "decoder": decoder, "model": model}
        return vocab, file

    def named(self, token, kind="config"):
        """A token as these files write one."""
        if self.rng.random() < 0.6:
            return token
        flags = self.flags(True)
        if self.rng.random() < 0.5:
            flags.pop("normalized")
        flags.pop("special")
        return {**({"__type": "AddedToken"} if kind == "config" else {}), "content": token, **flags}

    def config(self, kind, vocab):
        rng, config = self.rng, {}
        names = [t for t in vocab if t in SPECIAL] + ["<fresh>", "<image>"]
        name = rng.choice(CLASSES[kind])
        if name:
            config["tokenizer_class"] = name
        for key in self.some(["bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token"], 5):
            drop = key not in ("cls_token", "sep_token") and rng.random() < 0.1
            config[key] = None if drop else self.named(rng.choice(names))
        if rng.random() < 0.5:
            config["add_bos_token"] = rng.random() < 0.5
        if rng.random() < 0.3:
            config["add_eos_token"] = rng.random() < 0.5
        if rng.random() < 0.4:
            key = rng.choice(["additional_special_tokens", "extra_special_tokens"])
            config[key] = [self.named(t) for t in self.some(names, 3)]
        elif rng.random() < 0.2:
            config["extra_special_tokens"] = {f"{n}_token": rng.choice(names) for n in ("image", "audio")}
        if rng.random() < 0.2:
            config["image_token"] = rng.choice(names)
        if rng.random() < 0.3:
            config["added_tokens_decoder"] = {
                str(vocab.get(t, len(vocab) + 1)): {"content": t, **self.flags(rng.random() < 0.7)}
                for t in self.some(names, 6)
            }
        for key, values in {"legacy": [True, False, None], "add_prefix_space": [True, False],
                            "do_lower_case": [True, False], "strip_accents": [True, False, None],
                            "split_special_tokens": [True, False]}.items():
            if rng.random() < 0.25:
                config[key] = rng.choice(values)
        if rng.random() < 0.2:
            config["model_specific_special_tokens"] = {f"{n}_token": self.named(rng.choice(names))
                                                       for n in ("boi", "image")}
        return config

    def folder(self, folder):
        rng = self.rng
        kind = rng.choice(list(CLASSES))
        vocab, tokenizer = self.tokenizer_json(kind)
        names = [t for t in vocab if t in SPECIAL] + ["<fresh>"]
        files = {"tokenizer.json": tokenizer, "tokenizer_config.json": self.config(kind, vocab)}
        if rng.random() < 0.4:
            keys = self.some(["bos_token", "eos_token", "unk_token", "pad_token", "image_token"], 4)
            files["special_tokens_map.json"] = {key: self.named(rng.choice(names), "map") for key in keys}
            if rng.random() < 0.4:
                files["special_tokens_map.json"]["additional_special_tokens"] = self.some(names, 3)
        if rng.random() < 0.3:
            files["added_tokens.json"] = {t: vocab.get(t, len(vocab)) for t in self.some(names, 3)}
        model_type = rng.choice(MODEL_TYPES[kind])
        if model_type:
            files["config.json"] = {"model_type": model_type, "vocab_size": 512}
        folder.mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
        pieces = [*names, "<new>", "<newer>", "<fresh>", "<image>", " ", "  ", "a", "b", "ab", "hi", "hihi", "Hi", "12",
                  " 12", ".", "é", "E\u0301", "\n", "世", "ﬁ", "\u00a0", "x"]
        return ["".join(rng.choices(pieces, k=rng.randint(0, 9))) for _ in range(12)]


def main():
    count, seed, out = int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])
    maker, expected = Maker(random.Random(seed)), []
    for number in range(count):
        texts = maker.folder(out / str(number))
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(out / str(number)))
            ids = [tokenizer(text)["input_ids"] for text in texts]
            backend = tokenizer.backend_tokenizer
            expected.append({
                "class": type(tokenizer).__name__, "texts": texts, "ids": ids,
                "plain": [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts],
                "text": [backend.decode(row, skip_special_tokens=True) for row in ids],
                "special": tokenizer.special_tokens_map,
            })
        except BaseException as error:  # the package's panics are no Exceptions
            print(number, repr(error)[:200], file=sys.stderr)
            expected.append(None)
    (out / "expected.json").write_text(json.dumps(expected), encoding="utf-8")


main()
