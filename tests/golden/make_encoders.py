"""Makes tests/golden/encoders: a tiny random BERT with a WordPiece tokenizer of its own, and transformers' results.

    python tests/golden/make_encoders.py        # needs torch, transformers, tokenizers, safetensors, numpy

bert_tiny/ holds a Hugging Face checkpoint with tokenizer.json; texts.json the texts and their ids (from the
`tokenizers` package); hidden.npy float32 [R, D], the last hidden states of all tokens, text after text; embeddings.npy
float32 [N, D], their means, normalized. All in float32 with eager attention. The weights come from NumPy's PCG64, large
enough that attention is far from uniform; gains and biases are random too, so that forgetting one of them changes the
results.
"""

import json
import pathlib
import shutil
import string

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

OUT = pathlib.Path(__file__).resolve().parent / "encoders" / "bert_tiny"
WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "mat",
    "dog",
    "ran",
    "a",
    "is",
    "of",
    "and",
    "house",
    "##ing",
    "##ed",
    "##er",
    "##s",
]
TEXTS = [
    "The cat sat on the mat.",
    "A dog ran into the house, and the cat followed!",
    "",
    "x",
    "Numbers: 3.14159, 2718; caf\u00e9 na\u00efve \u00c5ngstr\u00f6m.",
    "running runners ran",
    "The house of the cat is the house of the dog.",
    "\u4e2d\u6587 unknown characters become [UNK] tokens \U0001f600",
    "the of and a is on mat sat cat dog ran house the of and a is on mat sat cat dog ran house the of and a is on mat "
    "sat cat dog ran house the of and a is on mat sat cat dog ran house",
    "zzzz",
]


def make_tokenizer():
    characters = string.ascii_lowercase + string.digits
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.punctuation, *characters]
    tokens += ["##" + c for c in characters] + WORDS
    vocabulary = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return tokenizer


def randomize(model):
    """Linears N(0, 0.15^2), embeddings N(0, 0.5^2), gains in [0.5, 1.5], biases N(0, 0.3^2)."""
    rng = np.random.default_rng(7)
    for name, parameter in sorted(model.named_parameters()):
        shape = tuple(parameter.shape)
        if name.endswith("LayerNorm.weight"):
            values = rng.uniform(0.5, 1.5, shape)
        elif name.endswith(".bias"):
            values = rng.normal(0.0, 0.3, shape)
        elif "embeddings" in name:
            values = rng.normal(0.0, 0.5, shape)
        else:
            values = rng.normal(0.0, 0.15, shape)
        parameter.data.copy_(torch.from_numpy(values.astype(np.float32)))


def main():
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    shutil.rmtree(OUT, ignore_errors=True)
    tokenizer = make_tokenizer()
    config = transformers.BertConfig(vocab_size=tokenizer.get_vocab_size(), hidden_size=64, num_hidden_layers=2,
                                     num_attention_heads=4, intermediate_size=96, max_position_embeddings=64)
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    randomize(model)
    model.save_pretrained(OUT)
    for file in OUT.glob("*.safetensors"):
        file.chmod(0o644)
    tokenizer.save(str(OUT / "tokenizer.json"))

    model = transformers.AutoModel.from_pretrained(OUT, dtype=torch.float32, attn_implementation="eager").eval()
    ids = [tokenizer.encode(text).ids for text in TEXTS]
    hidden, embeddings = [], []
    with torch.no_grad():
        for text_ids in ids:
            states = model(torch.tensor([text_ids])).last_hidden_state[0]
            hidden.append(states.numpy())
            embeddings.append(torch.nn.functional.normalize(states.mean(0), dim=0).numpy())
    (OUT / "texts.json").write_text(json.dumps([{"text": t, "ids": i} for t, i in zip(TEXTS, ids)], indent=1) + "\n")
    np.save(OUT / "hidden.npy", np.concatenate(hidden))
    np.save(OUT / "embeddings.npy", np.stack(embeddings))
    print([len(i) for i in ids], sum(f.stat().st_size for f in OUT.iterdir()))


if __name__ == "__main__":
    main()
