"""Makes tests/golden/encoders: tiny random encoders with a WordPiece tokenizer of their own, and transformers' results.

    python tests/golden/make_encoders.py [NAME...]        # needs torch, transformers, tokenizers, safetensors, numpy

Each folder holds a Hugging Face checkpoint with tokenizer.json; texts.json the texts and their ids (from the
`tokenizers` package); hidden.npy float32 [R, D], the last hidden states of all tokens, text after text; embeddings.npy
float32 [N, D], their means, normalized. All in float32 with eager attention. The weights come from NumPy's PCG64, large
enough that attention is far from uniform; gains and biases are random too, so that forgetting one of them changes the
results.
"""

import json
import pathlib
import shutil
import string
import sys

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

ENCODERS = pathlib.Path(__file__).resolve().parent / "encoders"
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
# Longer than every distance that MPNet tells apart. The encoders with 64 positions do not read it.
LONG_TEXT = " ".join(WORDS[(5 * i + i // 7) % 12] for i in range(150))
LONG = ("mpnet_tiny", "modernbert_tiny", "modernbert_bias_tiny")


# The class of MPNet's tokenizer gives tokens with these names their work.
MPNET_TOKENS = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]


def make_tokenizer(special=("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), begin="[CLS]", end="[SEP]"):
    characters = string.ascii_lowercase + string.digits
    tokens = [*special, *string.punctuation, *characters]
    tokens += ["##" + c for c in characters] + WORDS
    vocabulary = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(list(special))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}", pair=f"{begin} $A {end} $B:1 {end}:1",
        special_tokens=[(begin, vocabulary[begin]), (end, vocabulary[end])])
    return tokenizer


def randomize(model):
    """Linears N(0, 0.15^2), embeddings N(0, 0.5^2), gains in [0.5, 1.5], biases N(0, 0.3^2)."""
    rng = np.random.default_rng(7)
    for name, parameter in sorted(model.named_parameters()):
        shape = tuple(parameter.shape)
        if name.lower().replace("_", "").endswith("norm.weight"):
            values = rng.uniform(0.5, 1.5, shape)
        elif name.endswith(".bias"):
            values = rng.normal(0.0, 0.3, shape)
        elif "embeddings" in name:
            values = rng.normal(0.0, 0.5, shape)
        else:
            values = rng.normal(0.0, 0.15, shape)
        parameter.data.copy_(torch.from_numpy(values.astype(np.float32)))


def config_of(name, vocabulary):
    """The padding token of roberta is one that texts hold: [UNK], whose positions are not counted."""
    if name == "bert_tiny":
        return transformers.BertConfig(vocab_size=vocabulary, hidden_size=64, num_hidden_layers=2,
                                       num_attention_heads=4, intermediate_size=96, max_position_embeddings=64)
    if name == "roberta_tiny":
        return transformers.RobertaConfig(vocab_size=vocabulary, hidden_size=32, num_hidden_layers=2,
                                          num_attention_heads=2, intermediate_size=48, max_position_embeddings=66,
                                          type_vocab_size=1, pad_token_id=1, layer_norm_eps=1e-5)
    if name == "mpnet_tiny":
        return transformers.MPNetConfig(vocab_size=vocabulary, hidden_size=32, num_hidden_layers=2,
                                        num_attention_heads=4, intermediate_size=48, max_position_embeddings=180,
                                        pad_token_id=1)
    if name == "modernbert_tiny":
        return transformers.ModernBertConfig(vocab_size=vocabulary, hidden_size=32, num_hidden_layers=4,
                                             num_attention_heads=2, intermediate_size=40, local_attention=10,
                                             max_position_embeddings=200, pad_token_id=0, bos_token_id=2,
                                             eos_token_id=3, cls_token_id=2, sep_token_id=3)
    if name == "modernbert_bias_tiny":
        # Every bias there is, windows as listed, and a scaling of each type of layers.
        return transformers.ModernBertConfig(
            vocab_size=vocabulary, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=24,
            local_attention=7, max_position_embeddings=200, pad_token_id=0, bos_token_id=2, eos_token_id=3,
            cls_token_id=2, sep_token_id=3, norm_bias=True, attention_bias=True, mlp_bias=True,
            hidden_activation="gelu_pytorch_tanh",
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters={"full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0},
                             "sliding_attention": {"rope_type": "default", "rope_theta": 300.0}})
    return transformers.DistilBertConfig(vocab_size=vocabulary, dim=32, n_layers=2, n_heads=4, hidden_dim=40,
                                         max_position_embeddings=64)


def make(name):
    out = ENCODERS / name
    shutil.rmtree(out, ignore_errors=True)
    tokenizer = make_tokenizer(MPNET_TOKENS, "<s>", "</s>") if name == "mpnet_tiny" else make_tokenizer()
    config = config_of(name, tokenizer.get_vocab_size())
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    randomize(model)
    model.save_pretrained(out)
    for file in out.glob("*.safetensors"):
        file.chmod(0o644)
    tokenizer.save(str(out / "tokenizer.json"))

    model = transformers.AutoModel.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()
    texts = TEXTS + [LONG_TEXT] * (name in LONG)
    ids = [tokenizer.encode(text).ids for text in texts]
    hidden, embeddings = [], []
    with torch.no_grad():
        for text_ids in ids:
            # All tokens are seen: without a mask, roberta would not see its padding token.
            mask = torch.ones(1, len(text_ids), dtype=torch.long)
            states = model(torch.tensor([text_ids]), attention_mask=mask).last_hidden_state[0]
            hidden.append(states.numpy())
            embeddings.append(torch.nn.functional.normalize(states.mean(0), dim=0).numpy())
    (out / "texts.json").write_text(json.dumps([{"text": t, "ids": i} for t, i in zip(texts, ids)], indent=1) + "\n")
    np.save(out / "hidden.npy", np.concatenate(hidden))
    np.save(out / "embeddings.npy", np.stack(embeddings))
    print(name, [len(i) for i in ids], sum(f.stat().st_size for f in out.iterdir()))


def main():
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    for name in sys.argv[1:] or ("bert_tiny", "roberta_tiny", "distilbert_tiny", *LONG):
        make(name)


if __name__ == "__main__":
    main()
