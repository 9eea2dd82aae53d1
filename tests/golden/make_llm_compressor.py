"""Makes tests/golden/llm_compressor: tiny random checkpoints as llm-compressor's oneshot saves them, in bfloat16.

Each folder holds config.json and model.safetensors as the program wrote them, and what transformers makes of them with
compressed-tensors, in float32 with eager attention: dense.safetensors (weights of some linears, [O, I]), logits.npy
([2, 32, V], of the windows in ids.npy) and, where inputs are rounded, plain_logits.npy, in which they are not. Keys and
values are as they are in both; kv_logits.npy has them rounded, where the model says so. Of what no reader of ours takes
there is config.json alone.

    w4a16               GPTQ, preset W4A16, which orders columns by activation (actorder static)
    w4a16_asym          GPTQ, preset W4A16_ASYM
    w8a16               rounded to nearest, preset W8A16: 8 bits in groups, packed
    w3_weight_order     GPTQ, 3 bits in groups of 32, actorder weight
    w8a8                SmoothQuant and GPTQ, preset W8A8: a scale for each row, and one for each token
    w8a8_static_asym    8 bits and a scale for each row; inputs asymmetric, with a static range
    w4a8                rounded to nearest, 4 bits in groups of 32 and inputs of 8 bits
    fp8, fp8_dynamic, fp8_block, nvfp4, nvfp4a16, mxfp4a16
                        rounded to nearest, presets; fp8_dynamic is a qwen3 model whose head is its embedding
    awq                 AWQ, 4 bits asymmetric in groups of 32
    sparse_w4           SparseGPT with 2:4, and rounded to nearest, 4 bits in groups of 32: zeros are codes as others
                        are (GPTQ of this release fills them again)
    mixed               three config groups: 4 bits, 8 bits with int8 inputs, and fp8; expressions in ignore
    experts_w4          qwen3_moe, 4 bits in groups of 32, also in the experts; routers are ignored by an expression
    spinquant           rotations that are multiplied into the weights, and 4 bits in groups of 32
    fp8_kv              preset FP8, and keys and values in fp8 with static scales
    model_free          model_free_ptq, preset FP8_DYNAMIC: its lists of ignored modules keep their expressions
    refused_*           presets MXFP4, MXFP8, W4AFP8 and W4A4; rotations that stay for the run

compressed-tensors 0.19 has no actorder "group" and no packed sparse format any more: llm-compressor cannot write them.

4-bit floats and experts are expanded to float32 here. The libraries expand them to bfloat16, which rounds the products.

    python tests/golden/make_llm_compressor.py [NAME...]   # with the packages of tests/requirements.txt, accelerate,
                                                           # datasets, nvidia-ml-py, auto-round 0.15.1 and
                                                           # llmcompressor==0.14.0.1 (which no test needs)
"""

import functools
import json
import pathlib
import shutil
import sys
import tempfile

HERE = sys.path.pop(0)  # while transformers looks for packages: the folder mlx is none
import transformers.utils.generic  # noqa: E402

sys.path.insert(0, HERE)

import compressed_tensors.compressors.nvfp4.base as fp4  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from compressed_tensors.compressors import BaseCompressor  # noqa: E402
from compressed_tensors.quantization import QuantizationScheme  # noqa: E402
from datasets import Dataset  # noqa: E402
from llmcompressor import model_free_ptq, oneshot  # noqa: E402
from llmcompressor.modifiers.gptq import GPTQModifier  # noqa: E402
from llmcompressor.modifiers.pruning import SparseGPTModifier  # noqa: E402
from llmcompressor.modifiers.quantization import QuantizationModifier  # noqa: E402
from llmcompressor.modifiers.transform import QuIPModifier, SmoothQuantModifier, SpinQuantModifier  # noqa: E402
from llmcompressor.modifiers.transform.awq import AWQModifier  # noqa: E402
from llmcompressor.pipelines.cache import IntermediatesCache  # noqa: E402
from make_families import BASE, randomize, rope  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests/golden/llm_compressor"
TOKENIZER = str(ROOT / "calibration_data/stories260k")  # the program asks for one
NUM_TOKENS = 32
CHECKED = ["self_attn.k_proj"]  # and one expert, and what has another scheme in mixed; logits tell the others

SIZES = {**BASE, "vocab_size": 32, "num_hidden_layers": 1}
WIDE = {**SIZES, "hidden_size": 128, "intermediate_size": 128, "head_dim": 32, "num_key_value_heads": 1}
LLAMA = dict(model_type="llama", tie_word_embeddings=False, **rope(10000.0), **SIZES)
MODELS = {
    "wide": {**LLAMA, **WIDE},
    "qwen3": {**LLAMA, "model_type": "qwen3", "tie_word_embeddings": True},
    "experts": {**LLAMA, "model_type": "qwen3_moe", "num_experts": 3, "num_experts_per_tok": 2,
                "moe_intermediate_size": 32, "norm_topk_prob": True},
    "deep": {**LLAMA, "num_hidden_layers": 2},
}


def integers(bits, group_size=None, **more):
    return dict(num_bits=bits, type="int", symmetric=more.pop("symmetric", True), group_size=group_size,
                strategy="group" if group_size else "channel", **more)


def groups(weights, inputs=None):
    return {"group_0": dict(targets=["Linear"], weights=weights, input_activations=inputs)}


TOKEN_INT8 = dict(num_bits=8, type="int", symmetric=True, strategy="token", dynamic=True)
STATIC_INT8 = dict(num_bits=8, type="int", symmetric=False, strategy="tensor", dynamic=False)
FP8_ROWS = dict(num_bits=8, type="float", symmetric=True, strategy="channel")
STATIC_FP8 = dict(num_bits=8, type="float", symmetric=True, strategy="tensor", dynamic=False)
G32 = groups(integers(4, 32))


def gptq(ignore=("lm_head",), **more):
    return GPTQModifier(targets="Linear", ignore=list(ignore), **more)


def nearest(ignore=("lm_head",), **more):
    return QuantizationModifier(targets="Linear", ignore=list(ignore), **more)


MIXED = {
    "packed": dict(targets=["re:.*self_attn.*"], weights=integers(4, 32, symmetric=False)),
    "bytes": dict(targets=["re:.*mlp.*"], weights=integers(8), input_activations=TOKEN_INT8),
    "floats": dict(targets=["model.layers.1.mlp.down_proj"], weights=FP8_ROWS,
                   input_activations=dict(num_bits=8, type="float", symmetric=True, strategy="token", dynamic=True)),
}

RECIPES = {
    "w4a16": ("wide", lambda: [gptq(scheme="W4A16")]),
    "w4a16_asym": ("wide", lambda: [gptq(scheme="W4A16_ASYM")]),
    "w8a16": ("wide", lambda: [nearest(scheme="W8A16")]),
    "w3_weight_order": ("llama", lambda: [gptq(config_groups=groups(integers(3, 32)), actorder="weight")]),
    "w8a8": ("llama", lambda: [SmoothQuantModifier(smoothing_strength=0.8), gptq(scheme="W8A8")]),
    "w8a8_static_asym": ("llama", lambda: [nearest(config_groups=groups(integers(8), STATIC_INT8))]),
    "w4a8": ("llama", lambda: [nearest(config_groups=groups(integers(4, 32), TOKEN_INT8))]),
    "fp8": ("llama", lambda: [nearest(scheme="FP8")]),
    "fp8_dynamic": ("qwen3", lambda: [nearest(scheme="FP8_DYNAMIC")]),
    "fp8_block": ("wide", lambda: [nearest(scheme="FP8_BLOCK")]),
    "nvfp4": ("llama", lambda: [nearest(scheme="NVFP4")]),
    "nvfp4a16": ("llama", lambda: [nearest(scheme="NVFP4A16")]),
    "mxfp4a16": ("llama", lambda: [nearest(scheme="MXFP4A16")]),
    "awq": ("llama", lambda: [AWQModifier(duo_scaling="both"),
                              nearest(config_groups=groups(integers(4, 32, symmetric=False)))]),
    "sparse_w4": ("llama", lambda: [SparseGPTModifier(sparsity=0.5, mask_structure="2:4", targets=["Linear"],
                                                         ignore=["re:.*lm_head"]), nearest(config_groups=G32)]),
    "mixed": ("deep", lambda: [nearest(config_groups=MIXED, ignore=["lm_head", "re:.*layers\\.0\\.mlp\\.down_proj$"])]),
    "experts_w4": ("experts", lambda: [nearest(config_groups=G32, ignore=["lm_head", "re:.*mlp\\.gate$"])]),
    "spinquant": ("llama", lambda: [SpinQuantModifier(rotations=["R1", "R2"]), nearest(config_groups=G32)]),
    "fp8_kv": ("llama", lambda: [nearest(scheme="FP8", kv_cache_scheme=STATIC_FP8)]),
    "model_free": ("llama", None),
    "refused_mxfp4": ("llama", lambda: [nearest(scheme="MXFP4")]),
    "refused_mxfp8": ("llama", lambda: [nearest(scheme="MXFP8")]),
    "refused_w4afp8": ("wide", lambda: [nearest(scheme="W4AFP8")]),
    "refused_w4a4": ("wide", lambda: [nearest(scheme="W4A4")]),
    "refused_quip": ("llama", lambda: [QuIPModifier(transform_block_size=32), nearest(config_groups=G32)]),
}


def make_source(folder, settings, seed):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(dtype="bfloat16", **settings)).eval()
    randomize(model, seed)
    model.to(torch.bfloat16).save_pretrained(folder)


def calibration():
    random = torch.Generator().manual_seed(0)
    rows = [torch.randint(3, SIZES["vocab_size"], (NUM_TOKENS,), generator=random).tolist() for _ in range(8)]
    return Dataset.from_list([{"input_ids": row, "attention_mask": [1] * NUM_TOKENS} for row in rows])


def logits_of(model, ids):
    with torch.no_grad():
        return torch.cat([model(window[None]).logits for window in ids])


def expand_experts(folder, experts, name):
    """Sets the weights of a block's experts to what compressed-tensors makes of them in float32."""
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    scheme = QuantizationScheme.model_validate(config["config_groups"]["group_0"])
    compressor = BaseCompressor.get_value_from_registry(scheme.format)
    tensors = load_file(folder / "model.safetensors")

    def weight(expert, part):
        prefix = f"{name}.{expert}.{part}."
        parts = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
        parts["weight_scale"] = parts["weight_scale"].float()
        return compressor.decompress(parts, scheme)["weight"]

    experts.float()
    for expert in range(experts.num_experts):
        both = torch.cat([weight(expert, "gate_proj"), weight(expert, "up_proj")])
        for stack, exact in (experts.gate_up_proj, both), (experts.down_proj, weight(expert, "down_proj")):
            torch.testing.assert_close(stack[expert], exact, rtol=2**-8, atol=0.0)
            stack.data[expert] = exact


def write_answers(folder):
    ids = torch.from_numpy(np.load(OUT / "ids.npy")).long()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    for name, module in model.named_modules():
        if name.endswith(".experts"):
            expand_experts(folder, module, name)
    logits = logits_of(model, ids)  # the first call expands the weights
    dense, attentions = {}, []
    checked = tuple(CHECKED) + (("mlp.down_proj",) if folder.name == "mixed" else ())
    for name, module in model.named_modules():
        if name.endswith("self_attn") and hasattr(module, "quantization_scheme"):
            attentions.append(module)
        if name.endswith(checked) and hasattr(module, "quantization_scheme"):
            dense[name + ".weight"] = module.weight.detach().float().contiguous()
        if name.endswith(".experts"):
            dense[name + ".1.down_proj.weight"] = module.down_proj[1].detach().float().contiguous()
    save_file(dense, folder / "dense.safetensors")
    (folder / "dense.safetensors").chmod(0o644)
    if attentions:
        np.save(folder / "kv_logits.npy", logits.numpy())
        for module in attentions:
            module.quantization_enabled = False
        logits = logits_of(model, ids)
    for module in model.modules():
        module.quantization_enabled = False
    plain = logits_of(model, ids)
    np.save(folder / "logits.npy", logits.numpy())
    if not torch.equal(logits, plain):
        np.save(folder / "plain_logits.npy", plain.numpy())
    print(f"{folder.name}: logits std {plain.std():.3f}, rounding rms {(logits - plain).square().mean().sqrt():.4f}")


def make(name, seed):
    model, recipe = RECIPES[name]
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as temporary:
        source, made = pathlib.Path(temporary) / "source", pathlib.Path(temporary) / "made"
        make_source(source, MODELS.get(model, LLAMA), seed)
        torch.manual_seed(seed)
        if recipe is None:
            model_free_ptq(str(source), str(made), scheme="FP8_DYNAMIC", device="cpu",
                           ignore=["lm_head", "model.embed_tokens", "re:.*o_proj$"])
        else:
            oneshot(model=str(source), tokenizer=TOKENIZER, dataset=calibration(), recipe=recipe(),
                    output_dir=str(made), max_seq_length=NUM_TOKENS, num_calibration_samples=8,
                    shuffle_calibration_samples=False)
        shutil.copy(made / "config.json", folder)
        if not name.startswith("refused_"):
            shutil.copy(made / "model.safetensors", folder)
            (folder / "model.safetensors").chmod(0o644)
    if not name.startswith("refused_"):
        write_answers(folder)
    print(name, json.dumps(json.loads((folder / "config.json").read_text())["quantization_config"]))


def main():
    torch.set_num_threads(1)
    fp4.unpack_fp4_from_uint8 = functools.partial(fp4.unpack_fp4_from_uint8, dtype=torch.float32)
    IntermediatesCache.pin_memory = lambda *_: None  # AWQ asks for it, and it needs a GPU
    OUT.mkdir(exist_ok=True)
    ids = np.random.default_rng(0).integers(3, SIZES["vocab_size"], (2, NUM_TOKENS), dtype=np.int32)
    np.save(OUT / "ids.npy", ids)
    for seed, name in enumerate(RECIPES):
        if name in sys.argv[1:] or len(sys.argv) == 1:
            make(name, seed)


if __name__ == "__main__":
    main()
