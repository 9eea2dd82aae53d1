#!/usr/bin/env python3
"""Makes tests/golden/llama_quantize: a tiny llama in the types of llama.cpp's llama-quantize, and what llama.cpp reads.

usage: make_llama_quantize.py LLAMA_CPP PROGRAMS     (needs numpy)

LLAMA_CPP is a folder of llama.cpp's sources, whose package gguf is used, and PROGRAMS that of its llama-quantize,
llama-imatrix and llama-perplexity (made with those in the sources of llama-cpp-python 0.3.36, MIT).

NAME.gguf     the model of random weights, quantized by llama-quantize as FILES says. Inputs of attn_output and ffn_down
              fill superblocks of 256. Those of other matrices have 32 columns, for which it takes other types.
oracle.json   versions, the tokens of a text, and for each file the type of every tensor and the SHA-256 of its values
              in float32. llama-quantize itself has expanded them: its type F32 writes what a file stands for
logits.npy    float32 [files, rows, vocabulary]: log probabilities of llama-perplexity for the expanded files, in the
              order of oracle.json, behind each token of the text's second half but the last. It keeps them in 16
              bits, in steps that steps.npy has for each row

The package gguf expands all types but Q1_0 and Q2_0 to the same values, which is checked here.
"""
import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

if __name__ == "__main__":
    sys.path[:0] = [str(pathlib.Path(sys.argv[1]) / "gguf-py")]

import gguf  # noqa: E402
from make_gguf import byte_alphabet  # noqa: E402

OUT = pathlib.Path(__file__).resolve().parent / "llama_quantize"
WIDTH, INNER, HEADS, HEAD_SIZE, VOCABULARY = 32, 256, 8, 32, 64
CONTEXT = 32
# Name, type, whether an importance matrix weighs, and types of single matrices. The program's mixtures lack some types.
FILES = [
    ("q4_0", "Q4_0", False, {}),
    ("q4_1", "Q4_1", False, {}),
    ("q5_0", "Q5_0", False, {}),
    ("q5_1", "Q5_1", False, {}),
    ("q8_0", "Q8_0", False, {}),
    ("iq4_nl", "IQ4_NL", False, {}),
    ("iq4_xs", "IQ4_XS", False, {}),
    ("q2_k", "Q2_K", False, {}),
    ("q2_k_s", "Q2_K_S", True, {}),
    ("q3_k_m", "Q3_K_M", False, {}),
    ("q4_k_m", "Q4_K_M", True, {}),
    ("q5_k_m", "Q5_K_M", False, {}),
    ("q6_k", "Q6_K", False, {}),
    ("iq1_s", "IQ1_S", True, {}),
    ("iq2_xs", "IQ2_XS", True, {}),
    ("iq3_xxs", "IQ3_XXS", True, {}),
    ("tq1_0", "TQ1_0", False, {}),
    ("tq2_0", "TQ2_0", False, {}),
    ("iq1_m_iq2_xxs", "IQ4_NL", True, {"attn_output": "iq1_m", "ffn_down": "iq2_xxs"}),
    ("iq2_s_iq3_s", "IQ4_NL", True, {"attn_output": "iq2_s", "ffn_down": "iq3_s"}),
    ("q1_0_q2_0", "Q8_0", False, {"attn_output": "q1_0", "ffn_down": "q2_0"}),
    ("mxfp4_nvfp4", "Q4_0", False, {"ffn_up": "mxfp4", "attn_output": "mxfp4", "ffn_down": "nvfp4"}),
]


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        sys.exit(f"'{' '.join(map(str, command))}' ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def write_model(path, random):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(VOCABULARY)
    writer.add_context_length(2 * CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)
    writer.add_key_length(HEAD_SIZE)
    writer.add_value_length(HEAD_SIZE)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    alphabet = byte_alphabet()
    tokens = ["<s>", "</s>", "h", "i", "hi"] + [alphabet[byte] for byte in range(256) if chr(byte) not in "hi"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens[:VOCABULARY])
    writer.add_token_types([gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (VOCABULARY - 2))
    writer.add_token_merges(["h i"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)

    def matrix(rows, columns):
        return random.standard_normal((rows, columns)) * columns**-0.5

    tensors = {
        "token_embd": random.standard_normal((VOCABULARY, WIDTH)),
        "output": 2 * matrix(VOCABULARY, WIDTH),
        "blk.0.attn_q": 2 * matrix(HEADS * HEAD_SIZE, WIDTH),
        "blk.0.attn_k": 2 * matrix(HEAD_SIZE, WIDTH),
        "blk.0.attn_v": matrix(HEAD_SIZE, WIDTH),
        "blk.0.attn_output": 2 * matrix(WIDTH, HEADS * HEAD_SIZE),
        "blk.0.ffn_gate": matrix(INNER, WIDTH),
        "blk.0.ffn_up": matrix(INNER, WIDTH),
        "blk.0.ffn_down": 2 * matrix(WIDTH, INNER),
    }
    # Zeros, values whose scale is no normal float16, one that dwarfs the others, and such as have one sign.
    for name in ("blk.0.attn_output", "blk.0.ffn_down"):
        tensors[name][0] = 0
        tensors[name][1] *= 1e-5
        tensors[name][2, 17] *= 50
        tensors[name][3] = abs(tensors[name][3])
        tensors[name][4] = -abs(tensors[name][4])
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        tensors[name] = 1 + 0.2 * random.standard_normal(WIDTH)
    for name, values in tensors.items():
        writer.add_tensor(name + ".weight", values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def expanded_tensors(file, whole):
    """The type and SHA-256 of each tensor. `whole` is the file in F32."""
    values = {tensor.name: np.array(tensor.data, np.float32) for tensor in gguf.GGUFReader(whole).tensors}
    found = {}
    for tensor in gguf.GGUFReader(file).tensors:
        expected = values[tensor.name]
        kind = tensor.tensor_type.name
        if kind not in ("Q1_0", "Q2_0"):  # which the package does not decode
            np.testing.assert_array_equal(gguf.dequantize(tensor.data, tensor.tensor_type), expected, tensor.name)
        found[tensor.name] = {"type": kind, "sha256": hashlib.sha256(expected.tobytes()).hexdigest()}
    return found


def read_logits(path):
    """Tokens [CONTEXT], and log probabilities [rows, VOCABULARY] with the step of each row."""
    data = path.read_bytes()
    magic, (context, size, chunks) = data[:8], np.frombuffer(data, np.int32, 3, 8)
    assert (magic, context, size, chunks) == (b"_logits_", CONTEXT, VOCABULARY, 1)
    tokens = np.frombuffer(data, np.int32, CONTEXT, 20)
    rows = CONTEXT - 1 - CONTEXT // 2
    words = np.frombuffer(data, np.uint16, offset=20 + 4 * len(tokens)).reshape(rows, VOCABULARY + 4)
    head = np.ascontiguousarray(words[..., :4]).view(np.float32)
    step, least = head[..., :1], head[..., 1:]
    assert step.max() < 16 / 65535  # no logit was cut off
    return tokens.tolist(), (least + step * words[..., 4:]).astype(np.float32), step[..., 0]


def main(programs):
    OUT.mkdir(exist_ok=True)
    random = np.random.default_rng(36)
    oracle, logits, steps = {}, [], []
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        write_model(folder / "f32.gguf", random)
        # Names are relative: the files say which matrix was used.
        for name, size in (("text", 2 * CONTEXT), ("imatrix.txt", 4000)):
            (folder / name).write_text("".join(random.choice([*"0123456789+-*/. "], size)))
        run(programs / "llama-imatrix", "-m", "f32.gguf", "-f", "imatrix.txt", "-o", "imatrix.gguf", "-c", CONTEXT,
            "-b", CONTEXT, "-t", 1, cwd=folder)
        for name, kind, is_weighed, types in FILES:
            options = ["--imatrix", "imatrix.gguf"] if is_weighed else []
            for matrix, other in types.items():
                options += ["--tensor-type", f"{matrix}={other}"]
            (folder / "whole.gguf").unlink(missing_ok=True)
            run(programs / "llama-quantize", *options, "f32.gguf", OUT / f"{name}.gguf", kind, 1, cwd=folder)
            run(programs / "llama-quantize", "--allow-requantize", OUT / f"{name}.gguf", "whole.gguf", "F32", 1,
                cwd=folder)
            run(programs / "llama-perplexity", "-m", "whole.gguf", "-f", "text", "--chunks", 1, "-c", CONTEXT, "-b",
                CONTEXT, "-t", 1, "-ctk", "f32", "-ctv", "f32", "-fa", "off", "--kl-divergence-base", "logits",
                cwd=folder)
            tokens, values, step = read_logits(folder / "logits")
            oracle[name] = expanded_tensors(OUT / f"{name}.gguf", folder / "whole.gguf")
            logits.append(values)
            steps.append(step)
            print(name, (OUT / f"{name}.gguf").stat().st_size, float(values.max() - values.min()), flush=True)
        version = run(programs / "llama-perplexity", "--version").strip().splitlines()
    seen = {tensor["type"] for tensors in oracle.values() for tensor in tensors.values()}
    print("types:", " ".join(sorted(seen)))
    whole = {"program": "llama.cpp of llama-cpp-python 0.3.36", "version": version[0], "numpy": np.__version__,
             "order": [name for name, *_ in FILES], "tokens": tokens, "files": oracle}
    (OUT / "oracle.json").write_text(json.dumps(whole, indent=1) + "\n")
    np.save(OUT / "logits.npy", np.stack(logits))
    np.save(OUT / "steps.npy", np.stack(steps))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[2]).resolve())
