"""Writes what the libraries that define a format make of a model's quantized linears.

usage: read_by_others.py MODEL_DIR...

transformers loads each model beside gptqmodel (GPTQ, AWQ) or bitsandbytes. MODEL_DIR.read.safetensors holds each
quantized linear as NAME.weight [O, I], as the library's own layer or function expands it: float16 of gptqmodel, float32
of bitsandbytes. One process reads many models, since importing the libraries takes longer than reading one.
"""
import os
import sys

# gptqmodel compiles its layers by TorchInductor, whose kernel for AVX2 (PyTorch 2.11) aborts over an index out of
# bounds: "0 <= tmp7 < 2". Layers that are not compiled compute the same.
os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch
import transformers
from safetensors.torch import save_file

transformers.logging.set_verbosity_error()


def config_of(directory):
    """Chooses gptqmodel's kernel in plain PyTorch: others are compiled when they are first used."""
    method = transformers.AutoConfig.from_pretrained(directory).quantization_config["quant_method"]
    if method == "gptq":
        return {"quantization_config": transformers.GPTQConfig(bits=4, backend="torch")}
    if method == "awq":
        return {"quantization_config": transformers.AwqConfig(bits=4, backend="torch_awq")}
    return {}


def weight_of(module):
    """The weight [O, I] of a quantized linear; None for other modules."""
    name = type(module).__name__
    if name == "Linear8bitLt":
        from bitsandbytes.functional import int8_vectorwise_dequant

        return int8_vectorwise_dequant(module.weight.data, module.weight.SCB)
    if name == "Linear4bit":
        from bitsandbytes.functional import dequantize_4bit

        return dequantize_4bit(module.weight.data, module.weight.quant_state)
    if name == "AwqTorchLinear":
        from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm

        parts = {part: getattr(module, part) for part in ("qweight", "qzeros", "scales", "bits", "group_size")}
        return dequantize_gemm(**parts).T
    return module.dequantize_weight().T if hasattr(module, "dequantize_weight") else None


def read(directory):
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, **config_of(directory))
    tensors = {}  # before the model computes: bitsandbytes then moves its scales elsewhere
    for name, module in model.named_modules():
        weight = weight_of(module)
        if weight is not None:
            tensors[name + ".weight"] = weight.detach().clone().contiguous()
    assert tensors, f"{directory}: the library replaced no linear"
    with torch.no_grad():
        logits = model.eval()(torch.arange(3, 11).unsqueeze(0)).logits
    assert torch.isfinite(logits).all(), f"{directory}: the library computes no numbers"
    save_file(tensors, directory + ".read.safetensors")


for model_directory in sys.argv[1:]:
    read(model_directory)
