"""The models and texts that cases of compare_builds.py need and the repository does not hold, and safetensors files."""
import array
import json
import random
import shutil
import string
import struct

from compare_case import FAMILIES, STORIES, family


def read_safetensors(path):
    """{name: (dtype, shape, bytes)} and the metadata, in the file's order."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    metadata = header.pop("__metadata__", None)
    start = 8 + length
    return {name: (item["dtype"], item["shape"], data[start + item["data_offsets"][0]:start + item["data_offsets"][1]])
            for name, item in header.items()}, metadata


def write_safetensors(path, tensors, metadata=None):
    header, end = {"__metadata__": metadata} if metadata else {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def write_ids(path, generator, num_windows, num_tokens, vocabulary):
    header = f"{{'descr': '<i4', 'fortran_order': False, 'shape': ({num_windows}, {num_tokens}), }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    # Low ids more often, as words have it: experts and channels are not used alike.
    ids = array.array("i", (int(vocabulary * generator.random() ** 2) for _ in range(num_windows * num_tokens)))
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + ids.tobytes())


def write_wide(folder, root, generator, dtype):
    """Two llama blocks of width 256 and 384: groups of 128, several tiles and GPTQ blocks; three outlier channels and a
    dead one."""
    width, inner, keys, vocabulary = 256, 384, 128, 512
    config = json.loads((root / family("llama_gqa_untied") / "config.json").read_text())
    config |= {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "vocab_size": vocabulary,
        "max_position_embeddings": 512,
        "dtype": {"F32": "float32", "BF16": "bfloat16"}[dtype],
    }
    tensors = {}

    def add(name, shape, values):
        numbers = array.array("f", values)
        data = numbers.tobytes() if dtype == "F32" else array.array("H", numbers.tobytes())[1::2].tobytes()
        tensors[name] = (dtype, shape, data)

    def matrix(name, num_out, num_in, scale):
        add(
            name,
            [num_out, num_in],
            (scale * (generator.random() + generator.random() - 1) for _ in range(num_out * num_in)),
        )

    def norm(name, dead=()):
        add(
            name,
            [width],
            (
                0.0 if i in dead else (16.0 if i in (5, 77, 130) else 1.0) * (0.8 + 0.4 * generator.random())
                for i in range(width)
            ),
        )

    matrix("model.embed_tokens.weight", vocabulary, width, 1.0)
    for block in ("model.layers.0.", "model.layers.1."):
        norm(block + "input_layernorm.weight")
        for name, num_out in (("q", width), ("k", keys), ("v", keys), ("o", width)):
            matrix(f"{block}self_attn.{name}_proj.weight", num_out, width, 2.0 / width ** 0.5)
        norm(block + "post_attention_layernorm.weight", dead=(9,) if block.endswith("1.") else ())
        for name in ("gate", "up"):
            matrix(f"{block}mlp.{name}_proj.weight", inner, width, 2.0 / width ** 0.5)
        matrix(block + "mlp.down_proj.weight", width, inner, 2.0 / inner ** 0.5)
    norm("model.norm.weight")
    matrix("lm_head.weight", vocabulary, width, 2.0 / width ** 0.5)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    write_safetensors(folder / "model.safetensors", tensors)


def write_speaking(folder, root):
    """The families' models, which have 128 tokens, with a tokenizer of as many: those of ChatML, characters, and the
    first merges of stories260k."""
    tokenizer = json.loads((root / STORIES / "tokenizer.json").read_text())
    characters = "\u2581" + string.ascii_letters + string.digits + ".,!?'\":;-()\n"
    special = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    tokens, merges = [*special, *characters], []
    for left, right in tokenizer["model"]["merges"]:
        if len(tokens) < 128 and left in tokens and right in tokens and left + right not in tokens:
            merges.append([left, right])
            tokens.append(left + right)
    tokenizer["model"] |= {"vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges,
                           "byte_fallback": False}
    token = tokenizer["added_tokens"][0]
    tokenizer["added_tokens"] = [token | {"id": i, "content": special[i]} for i in range(len(special))]
    folder.mkdir()
    for name in FAMILIES:
        shutil.copytree(root / family(name), folder / name, ignore=shutil.ignore_patterns("*.npy"))
        (folder / name / "tokenizer.json").write_text(json.dumps(tokenizer))
        shutil.copy(root / STORIES / "tokenizer_config.json", folder / name)


def write_data(folder, root):
    """The same bytes each time."""
    generator = random.Random(20240607)
    write_wide(folder / "wide", root, generator, "F32")
    write_wide(folder / "wide_bf16", root, generator, "BF16")
    write_ids(folder / "wide.npy", generator, 6, 256, 512)
    write_ids(folder / "long.npy", generator, 18, 256, 512)
    write_ids(folder / "many.npy", generator, 128, 256, 512)
    write_ids(folder / "small.npy", generator, 24, 64, 128)
    write_speaking(folder / "speaking", root)

    # One expert for each token; the fourth has the first one's router row, and the lower index is taken: it sees
    # nothing.
    source = root / family("mixtral_experts")
    config = json.loads((source / "config.json").read_text()) | {"num_experts_per_tok": 1}
    tensors, _ = read_safetensors(source / "model.safetensors")
    dtype, shape, router = tensors["model.layers.0.block_sparse_moe.gate.weight"]
    row = len(router) // shape[0]
    tensors["model.layers.0.block_sparse_moe.gate.weight"] = (dtype, shape, router[:-row] + router[:row])
    (folder / "starved").mkdir()
    (folder / "starved" / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "starved" / "model.safetensors", tensors)

    words = ["the", "cat", "sat", "on", "mat", "dog", "ran", "a", "is", "of", "house"]

    def sentence():
        return (
            " ".join(generator.choices(words, k=generator.randint(3, 14)))
            + " "
            + generator.choice("abcdefghijklmnopqrstuvwxyz")
            + "."
        )

    (folder / "texts.txt").write_text("".join(sentence() + "\n" for _ in range(60)))
    (folder / "pairs.tsv").write_text("".join(f"{sentence()}\t{sentence()}\t{i % 5}\n" for i in range(20)))
