"""Writes what two models give in float64: the trained calibration_data/stories260k, and random weights in the shape of
SmolLM2-135M.

    python tests/cuda/goldens/make_goldens.py [stories260k] [random_smollm2]      # needs torch, transformers, numpy

Each folder holds ids.npy (int32 [N, T]), nll.npy (float32 [N, T - 1], nats), rows.npy (int32, places in N x T),
logits.npy (float32, one row for each of those) and golden.json: the SHA-256 of the weights, which the test compares,
and how far transformers in float32 is from these values. The forward pass is plain, in float64 from the embedding to
the loss; angles of the rotations are float32, as transformers defines them.
"""

import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import safetensors.torch
import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]


def rms_norm(x, gain, epsilon):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + epsilon) * gain


def forward(config, weights, ids_T):
    """Logits [T, V] of one window, float64."""
    def weight(name):
        return weights[name].double()

    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    num_tokens, size = len(ids_T), config["hidden_size"] // heads
    frequencies = 1.0 / config["rope_theta"] ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    angles_TJ = torch.arange(num_tokens, dtype=torch.float32)[:, None] * frequencies
    cosine, sine = (torch.cat([part(angles_TJ)] * 2, -1).double() for part in (torch.cos, torch.sin))
    is_hidden = torch.ones(num_tokens, num_tokens, dtype=torch.bool).triu(1)

    def rotated(x_HTK):
        low, high = x_HTK.chunk(2, -1)
        return x_HTK * cosine + torch.cat([-high, low], -1) * sine

    hidden_TD = weight("model.embed_tokens.weight")[ids_T]
    for block in range(config["num_hidden_layers"]):
        name = f"model.layers.{block}."
        x = rms_norm(hidden_TD, weight(name + "input_layernorm.weight"), config["rms_norm_eps"])
        q, k, v = (
            (x @ weight(f"{name}self_attn.{part}_proj.weight").T).view(num_tokens, -1, size).transpose(0, 1)
            for part in "qkv"
        )
        k, v = (part.repeat_interleave(heads // kv_heads, 0) for part in (rotated(k), v))
        scores = rotated(q) @ k.transpose(1, 2) / size ** 0.5
        x = torch.softmax(scores.masked_fill(is_hidden, -torch.inf), -1) @ v
        hidden_TD = hidden_TD + x.transpose(0, 1).reshape(num_tokens, -1) @ weight(name + "self_attn.o_proj.weight").T
        x = rms_norm(hidden_TD, weight(name + "post_attention_layernorm.weight"), config["rms_norm_eps"])
        gate, up = (x @ weight(f"{name}mlp.{part}_proj.weight").T for part in ("gate", "up"))
        hidden_TD = hidden_TD + (torch.nn.functional.silu(gate) * up) @ weight(name + "mlp.down_proj.weight").T
    head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return rms_norm(hidden_TD, weight("model.norm.weight"), config["rms_norm_eps"]) @ weight(head).T


def write(name, model, ids_NT, rows):
    config = json.loads((model / "config.json").read_text())
    weights = safetensors.torch.load_file(model / "model.safetensors")
    ids = torch.tensor(ids_NT, dtype=torch.long)
    logits = torch.stack([forward(config, weights, window) for window in ids])
    expected = transformers.AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, attn_implementation="eager"
    )(ids).logits
    error = ((expected.double() - logits).norm(dim=-1) / logits.norm(dim=-1)).max().item()
    assert error < 1e-4, f"{name}: transformers gives something else: {error}"
    nll = -torch.log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None])[..., 0]
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    np.save(folder / "ids.npy", ids.numpy().astype(np.int32))
    np.save(folder / "nll.npy", nll.detach().numpy().astype(np.float32))
    np.save(folder / "rows.npy", np.array(rows, np.int32))
    np.save(folder / "logits.npy", logits.reshape(-1, logits.shape[-1])[rows].detach().numpy().astype(np.float32))
    golden = {
        "weights_sha256": hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest(),
        "mean_nll": nll.mean().item(),
        "float32_relative_error": error,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    (folder / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")
    print(name, golden)


def make_stories260k():
    model = ROOT / "calibration_data" / "stories260k"
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(model / "tokenizer.json"))
    ids = tokenizer((ROOT / "calibration_data" / "stories.txt").read_text()[:4000])["input_ids"][:80]
    write("stories260k", model, np.array(ids).reshape(2, 40), list(range(80)))


def make_random_smollm2():
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / "model"
        subprocess.run(
            [sys.executable, ROOT / "tests/bench/make_random_model.py", model, "--shape", "smollm2"], check=True
        )
        ids = np.random.PCG64(1).random_raw(64) % 49152
        write("random_smollm2", model, ids.astype(np.int64).reshape(2, 32), [31, 63])


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    for golden in sys.argv[1:] or ["stories260k", "random_smollm2"]:
        {"stories260k": make_stories260k, "random_smollm2": make_random_smollm2}[golden]()
