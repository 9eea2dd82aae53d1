"""Makes tests/golden/auto_round: tiny random checkpoints as AutoRound itself saves them, rounded to nearest.

Each folder holds config.json, model.safetensors and dense.safetensors: the weights of some linears, float16 [O, I], as
AutoRound's own layers compute them when transformers has loaded the folder, and of AWQ its function for such tensors.

    gptq_w4         packing_format auto_round:auto_gptq, symmetric; says that the head has codes, which it has not
    v2_w4           packing_format auto_round, asymmetric; a layer of 8 bits, symmetric, and one that is not quantized
    gptq_w3         packing_format auto_round:auto_gptq, 3 bits, symmetric
    awq_w4          packing_format auto_round:auto_awq, asymmetric

    python tests/golden/make_auto_round.py   # with the packages of tests/requirements.txt and auto-round==0.16.1 (which
                                             # no test needs); deterministic
"""

import json
import pathlib
import shutil
import tempfile

import torch
from auto_round import AutoRound
from auto_round.export.export_to_awq.utils import dequantize_gemm
from make_families import BASE, randomize, rope
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoRoundConfig, AutoTokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests/golden/auto_round"
BLOCK = "model.layers.0."
CHECKED = [BLOCK + "self_attn.q_proj", BLOCK + "mlp.down_proj"]

MODELS = {
    "gptq_w4": dict(format="auto_round", bits=4, group_size=32, sym=True,
                    layer_config={"lm_head": {"bits": 4, "group_size": 32}}),
    "v2_w4": dict(format="auto_round", bits=4, group_size=32, sym=False,
                  layer_config={BLOCK + "mlp.down_proj": {"bits": 8}, "self_attn.k_proj": {"bits": 16}}),
    "gptq_w3": dict(format="auto_round:auto_gptq", bits=3, group_size=32, sym=True, layer_config={}),
    "awq_w4": dict(format="auto_round:auto_awq", bits=4, group_size=32, sym=False, layer_config={}),
}


def dense_weights(folder):
    packing = json.loads((folder / "config.json").read_text())["quantization_config"]["packing_format"]
    kernels = {"auto_round:auto_gptq": "auto_round:torch_zp", "auto_round": "auto_round:torch"}
    if packing == "auto_round:auto_awq":  # whose kernels for CPUs are a package of their own
        tensors = load_file(folder / "model.safetensors")
        parts = lambda name: [tensors[f"{name}.{key}"] for key in ("qweight", "qzeros", "scales")]
        return {name + ".weight": dequantize_gemm(*parts(name), bits=4, group_size=32).T.half().contiguous()
                for name in CHECKED if name + ".qweight" in tensors}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, device_map="cpu",
                                                 quantization_config=AutoRoundConfig(backend=kernels[packing]))
    weights = {}
    for name, module in model.named_modules():
        if name not in CHECKED or isinstance(module, torch.nn.Linear):
            continue
        num_in = getattr(module, "infeatures", None) or module.in_features
        dense = module(torch.eye(num_in))  # row i is column i of the weight
        weights[name + ".weight"] = dense.T.half().contiguous()
    return weights


def make(name, seed, format, layer_config, **scheme):
    config = AutoConfig.for_model(model_type="llama", tie_word_embeddings=False, **rope(10000.0),
                                  **{**BASE, "num_hidden_layers": 1, "vocab_size": 64})
    model = AutoModelForCausalLM.from_config(config).eval()
    randomize(model, seed)
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "calibration_data/stories260k")  # AutoRound asks for one
    with tempfile.TemporaryDirectory() as temporary:
        rounding = AutoRound(model, tokenizer, iters=0, disable_opt_rtn=True, layer_config=layer_config, **scheme)
        rounding.quantize_and_save(temporary, format=format)
        made = next(pathlib.Path(temporary).rglob("config.json")).parent
        folder = OUT / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        config = json.loads((made / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")  # in its order
        shutil.copy(made / "model.safetensors", folder)
    save_file(dense_weights(folder), folder / "dense.safetensors")
    for path in folder.glob("*.safetensors"):
        path.chmod(0o644)
    print(name, json.dumps(config["quantization_config"]))


if __name__ == "__main__":
    for seed, (name, settings) in enumerate(MODELS.items()):
        make(name, seed, **settings)
