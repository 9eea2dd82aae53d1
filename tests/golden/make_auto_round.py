"""Makes tests/golden/auto_round: tiny random checkpoints as AutoRound itself saves them, rounded to nearest.

Each folder holds config.json, model.safetensors and dense.safetensors: the weights of some linears, [O, I], as
AutoRound's own layers and functions compute them, or those of compressed-tensors for its files; float16 for integers,
bfloat16 for blocks of fp8, else float32.

    gptq_w4         packing_format auto_round:auto_gptq, symmetric; says that the head has codes, which it has not
    v2_w4           packing_format auto_round, asymmetric; a layer of 8 bits, symmetric, and one that is not quantized
    gptq_w3         packing_format auto_round:auto_gptq, 3 bits, symmetric
    awq_w4          packing_format auto_round:auto_awq, asymmetric
    v2_w6           packing_format auto_round, 6 bits asymmetric; a layer of 5 bits, symmetric
    awq_w5          packing_format auto_round:auto_awq, 5 bits, asymmetric
    nvfp4           packing_format auto_round:llm_compressor, with inputs of nvfp4
    mxfp4           packing_format auto_round:llm_compressor, with inputs as they are
    fp8_static      packing_format auto_round:fp8_static: scales of rows, and of inputs
    fp8_weights     without packing_format: a scale of the whole weight, inputs as they are
    mlx_w4          of MLX, without quant_method; a layer of 6 bits
    mlx_w5z         packing_format mlx, 5 bits asymmetric; a layer of 3 bits
    ct_w5z          of compressed-tensors, 5 bits asymmetric; a layer of 7 bits, symmetric
    ct_fp8          of compressed-tensors, float-quantized; "ignore" does not name the head, which has no codes
    fp8_block       the format fp8, scheme FP8_BLOCK: a scale for each block of 128 x 128, inputs in blocks of 128
    ar_fp8_block    the same with packing_format auto_round:fp8
    ct_fp8_block    the same of compressed-tensors, strategy block

    python tests/golden/make_auto_round.py [NAME]   # with the packages of tests/requirements.txt and
                                                    # auto-round==0.16.1 (which no test needs); deterministic
"""

import json
import pathlib
import shutil
import sys
import tempfile

import torch
from auto_round import AutoRound
from auto_round.experimental.qmodules.fp4_utils import unpack_fp4_from_uint8
from auto_round.experimental.qmodules.mx import get_fp_scale
from auto_round.export.export_to_awq.utils import dequantize_gemm
from auto_round.utils.weight_handler import _dequant_fp8_linear_weight as blocks_of_fp8
from auto_round_extension.mlx.qlinear_mlx import QuantLinearMLX
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from make_families import BASE, randomize, rope
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoRoundConfig, AutoTokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests/golden/auto_round"
BLOCK = "model.layers.0."
DOWN = BLOCK + "mlp.down_proj"
CHECKED = [BLOCK + "self_attn.q_proj", DOWN]

MODELS = {
    "gptq_w4": dict(format="auto_round", bits=4, group_size=32, sym=True,
                    layer_config={"lm_head": {"bits": 4, "group_size": 32}}),
    "v2_w4": dict(format="auto_round", bits=4, group_size=32, sym=False,
                  layer_config={DOWN: {"bits": 8}, "self_attn.k_proj": {"bits": 16}}),
    "gptq_w3": dict(format="auto_round:auto_gptq", bits=3, group_size=32, sym=True),
    "awq_w4": dict(format="auto_round:auto_awq", bits=4, group_size=32, sym=False),
    "v2_w6": dict(format="auto_round", bits=6, group_size=32, sym=False,
                  layer_config={DOWN: {"bits": 5, "sym": True}}),
    "awq_w5": dict(format="auto_round:auto_awq", bits=5, group_size=32, sym=False),
    "nvfp4": dict(format="auto_round", scheme="NVFP4"),
    "mxfp4": dict(format="auto_round", scheme="MXFP4", act_bits=16),
    "fp8_static": dict(format="auto_round", scheme="FP8_STATIC"),
    "fp8_weights": dict(format="auto_round", scheme="FPW8A16"),
    "mlx_w4": dict(format="mlx", bits=4, group_size=32, sym=True, layer_config={DOWN: {"bits": 6}}),
    "mlx_w5z": dict(format="auto_round:mlx", bits=5, group_size=32, sym=False, layer_config={DOWN: {"bits": 3}}),
    "ct_w5z": dict(format="llm_compressor", bits=5, group_size=32, sym=False,
                   layer_config={DOWN: {"bits": 7, "sym": True}}),
    "ct_fp8": dict(format="llm_compressor", scheme="FP8_STATIC"),
    "fp8_block": dict(format="fp8", scheme="FP8_BLOCK"),
    "ar_fp8_block": dict(format="auto_round", scheme="FP8_BLOCK"),
    "ct_fp8_block": dict(format="llm_compressor", scheme="FP8_BLOCK"),
}


def integers_of_compressed_tensors(parts, num_bits):
    shape = torch.Size(parts["weight_shape"].tolist())
    codes = unpack_from_int32(parts["weight_packed"], num_bits, shape).float()
    scales = parts["weight_scale"].float()
    zeros = torch.zeros_like(scales)
    if "weight_zero_point" in parts:
        zeros = unpack_from_int32(parts["weight_zero_point"], num_bits, scales.shape, packed_dim=0).float()
    width = shape[1] // scales.shape[1]
    return (codes - zeros.repeat_interleave(width, 1)) * scales.repeat_interleave(width, 1)


def integers_of_mlx(parts):
    num_groups = parts["scales"].shape[1]
    num_out, num_words = parts["weight"].shape
    layer = QuantLinearMLX(num_words // num_groups, 32, num_groups * 32, num_out, bias=False)
    layer.load_state_dict(parts)
    return layer._forward_torch(torch.eye(num_groups * 32)).T


def fp4(parts):
    packed = parts["weight_packed"]
    codes = unpack_fp4_from_uint8(packed, packed.shape[0], 2 * packed.shape[1], dtype=torch.float32)
    scales = parts["weight_scale"]
    scales = get_fp_scale(scales) if scales.dtype == torch.uint8 else scales.float() / parts["weight_global_scale"]
    return codes * scales.repeat_interleave(codes.shape[1] // scales.shape[1], 1)


def weight_of_tensors(parts, num_bits, has_blocks):
    """Returns the weight in float32, and the type that holds the goldens of such weights."""
    if "qweight" in parts:  # of AWQ, whose kernels for CPUs are a package of their own
        names = ("qweight", "qzeros", "scales")
        return dequantize_gemm(*[parts[name] for name in names], bits=num_bits, group_size=32).T, torch.float16
    if "weight_shape" in parts:
        return integers_of_compressed_tensors(parts, num_bits), torch.float16
    if "biases" in parts:
        return integers_of_mlx(parts), torch.float32
    if "weight_packed" in parts:
        return fp4(parts), torch.float32
    scales = parts.get("weight_scale_inv", parts.get("weight_scale"))
    if has_blocks:
        return blocks_of_fp8(parts["weight"], scales, [128, 128]), torch.bfloat16
    return parts["weight"].float() * scales.reshape(-1, 1), torch.float32


def dense_weights(folder, bits_of, has_blocks):
    quantization = json.loads((folder / "config.json").read_text())["quantization_config"]
    kernels = {"auto_round:auto_gptq": "auto_round:torch_zp", "auto_round": "auto_round:torch"}
    weights = {}
    if quantization.get("packing_format") not in kernels:
        tensors = load_file(folder / "model.safetensors")
        for name in CHECKED:
            parts = {key[len(name) + 1:]: value for key, value in tensors.items() if key.startswith(name + ".")}
            weight, dtype = weight_of_tensors(parts, bits_of(name), has_blocks)
            weights[name + ".weight"] = weight.to(dtype).contiguous()
        return weights
    kernel = kernels[quantization["packing_format"]]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, device_map="cpu",
                                                 quantization_config=AutoRoundConfig(backend=kernel))
    for name, module in model.named_modules():
        if name not in CHECKED or isinstance(module, torch.nn.Linear):
            continue
        num_in = getattr(module, "infeatures", None) or module.in_features
        dense = module(torch.eye(num_in))  # row i is column i of the weight
        weights[name + ".weight"] = dense.T.half().contiguous()
    return weights


def make(name, seed, format, layer_config={}, **scheme):
    has_blocks = scheme.get("scheme") == "FP8_BLOCK"
    sizes = {"intermediate_size": 160} if has_blocks else {}  # a whole block and a part of one
    config = AutoConfig.for_model(model_type="llama", tie_word_embeddings=False, **rope(10000.0),
                                  **{**BASE, "num_hidden_layers": 1, "vocab_size": 64, **sizes})
    model = AutoModelForCausalLM.from_config(config).eval()
    randomize(model, seed)
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "calibration_data/stories260k")  # AutoRound asks for one
    torch.manual_seed(seed)
    windows = [{"input_ids": torch.randint(3, 64, (1, 32))} for _ in range(4)]
    with tempfile.TemporaryDirectory() as temporary, tempfile.TemporaryDirectory() as source:
        if has_blocks:  # AutoRound names the result of a model without a name by its group, which must be a number then
            model.save_pretrained(source)
            tokenizer.save_pretrained(source)
            model.name_or_path = source
        rounding = AutoRound(model, tokenizer, iters=0, disable_opt_rtn=True, layer_config=layer_config,
                             dataset=windows, seqlen=32, nsamples=4, batch_size=1, **scheme)
        rounding.quantize_and_save(temporary, format=format)
        made = next(pathlib.Path(temporary).rglob("config.json")).parent
        folder = OUT / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        config = json.loads((made / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")  # in its order
        shutil.copy(made / "model.safetensors", folder)
    bits_of = lambda module: layer_config.get(module, scheme).get("bits")
    save_file(dense_weights(folder, bits_of, has_blocks), folder / "dense.safetensors")
    for path in folder.glob("*.safetensors"):
        path.chmod(0o644)
    print(name, json.dumps(config["quantization_config"]))


if __name__ == "__main__":
    for seed, (name, settings) in enumerate(MODELS.items()):
        if name in sys.argv[1:] or len(sys.argv) == 1:
            make(name, seed, **settings)
