"""Makes tests/golden/wholes: tiny random models of texts and images, with the logits that transformers gives a text.

Each folder holds a Hugging Face checkpoint (config.json, safetensors), ids.npy (int32 [1, 48]) and logits.npy (float32
[1, 48, V]). configs.json holds config.json files as they were published, each with what transformers makes of its text
part.

    python tests/golden/make_wholes.py        # needs torch, transformers, safetensors, numpy

The weights come from NumPy's PCG64 with fixed seeds, as in make_families.py.
"""

import json
import pathlib
import shutil
import tempfile

import numpy as np
import torch
import transformers
from transformers import AutoConfig

OUT = pathlib.Path(__file__).resolve().parent / "wholes"
NUM_WINDOWS, NUM_TOKENS = 1, 48
TEXT = dict(vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=128, bos_token_id=1, eos_token_id=2)
VISION = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=28,
              patch_size=14)
QWEN_VISION = dict(depth=1, hidden_size=16, intermediate_size=32, num_heads=2, out_hidden_size=32)
QWEN_TOKENS = dict(image_token_id=95, video_token_id=94, vision_start_token_id=93, vision_end_token_id=92)
SECTIONS = dict(rope_type="default", rope_theta=10000.0)
WHOLES = {
    "gemma3": dict(text_config=dict(**TEXT, head_dim=8, query_pre_attn_scalar=12, sliding_window=12),
                   vision_config=VISION, mm_tokens_per_image=4, image_token_index=95, boi_token_index=93,
                   eoi_token_index=94),
    "llava": dict(text_config=dict(model_type="llama", **TEXT),
                  vision_config=dict(model_type="clip_vision_model", projection_dim=16, **VISION),
                  image_token_index=95),
    "mistral3": dict(text_config=dict(model_type="mistral", **TEXT, head_dim=8),
                     vision_config=dict(model_type="pixtral", head_dim=8, **VISION), image_token_index=95,
                     tie_word_embeddings=False),
    "qwen2_5_vl": dict(text_config=dict(**TEXT, rope_parameters=dict(mrope_section=[1, 1, 2], **SECTIONS)),
                       vision_config=QWEN_VISION, **QWEN_TOKENS),
    "qwen3_vl": dict(text_config=dict(**TEXT, head_dim=8, rope_parameters=dict(mrope_section=[2, 1, 1],
                                                                               mrope_interleaved=True, **SECTIONS)),
                     vision_config=dict(num_position_embeddings=16, deepstack_visual_indexes=[0], **QWEN_VISION),
                     tie_word_embeddings=True, **QWEN_TOKENS),
}

# Keys that say something of the text part, as the repositories named have them.
PUBLISHED = {
    "google/gemma-3-4b-it": {
        "architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106], "model_type": "gemma3",
        "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                        "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                        "sliding_window": 1024},
        "torch_dtype": "bfloat16"},
    "llava-hf/llava-1.5-7b-hf": {
        "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava",
        "text_config": {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096, "model_type": "llama",
                        "rms_norm_eps": 1e-05, "torch_dtype": "float16", "vocab_size": 32064},
        "tie_word_embeddings": False, "torch_dtype": "float16"},
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": {
        "architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
        "text_config": {"attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
                        "intermediate_size": 32768, "max_position_embeddings": 131072, "model_type": "mistral",
                        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8,
                        "rms_norm_eps": 1e-05, "rope_theta": 1000000000.0, "sliding_window": None,
                        "vocab_size": 131072},
        "torch_dtype": "bfloat16"},
    "Qwen/Qwen2.5-VL-3B-Instruct": {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"], "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 11008,
        "max_position_embeddings": 128000, "max_window_layers": 70, "model_type": "qwen2_5_vl",
        "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "use_sliding_window": False, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "vocab_size": 151936},
    "Qwen/Qwen3-VL-8B-Instruct": {
        "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl",
        "text_config": {"attention_bias": False, "bos_token_id": 151643, "dtype": "bfloat16", "eos_token_id": 151645,
                        "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288,
                        "max_position_embeddings": 262144, "model_type": "qwen3_vl_text", "num_attention_heads": 32,
                        "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
                        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20],
                                         "rope_type": "default"}, "rope_theta": 5000000, "vocab_size": 151936},
        "tie_word_embeddings": False},
}
TOLD = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "rope_parameters",
        "sliding_window", "query_pre_attn_scalar"]


def model_class(model_type):
    return transformers.models.auto.modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[
        type(AutoConfig.for_model(model_type))]


def randomize(model, seed):
    """As make_families.py does: large enough that attention is far from uniform, norms and biases random too."""
    rng = np.random.default_rng(seed)
    offset = 0.0 if model.config.model_type == "gemma3" else 1.0
    for name, parameter in sorted(model.named_parameters()):
        shape = tuple(parameter.shape)
        if "norm" in name:
            values = rng.uniform(-0.5, 0.5, shape) + offset
        else:
            values = rng.normal(0.0, 0.3 if parameter.dim() < 2 or "embed_tokens" in name else 0.15, shape)
        parameter.data.copy_(torch.from_numpy(values.astype(np.float32)))


def make_whole(name, settings, seed):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    model = model_class(name)(AutoConfig.for_model(name, **settings)).float().eval()
    randomize(model, seed)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)
    model = model_class(name).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    ids_NT = np.random.default_rng(2000 + seed).integers(0, 96, (NUM_WINDOWS, NUM_TOKENS), dtype=np.int32)
    with torch.no_grad():
        logits_NTV = model(input_ids=torch.from_numpy(ids_NT).long()).logits.float().numpy()
    np.save(folder / "ids.npy", ids_NT)
    np.save(folder / "logits.npy", logits_NTV)
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name:22s} {size / 1000:6.0f} KB  logits std {logits_NTV.std():.3f}")


def make_configs():
    cases = []
    for name, config in PUBLISHED.items():
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
            read = AutoConfig.from_pretrained(folder)
        text = read.get_text_config()
        told = {key: getattr(text, key) for key in TOLD if hasattr(text, key)}
        told["tie_word_embeddings"] = read.tie_word_embeddings
        cases.append({"name": name, "config": config, "text": told})
    (OUT / "configs.json").write_text(json.dumps(cases, indent=1) + "\n")


def main():
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    OUT.mkdir(exist_ok=True)
    for seed, (name, settings) in enumerate(WHOLES.items()):
        make_whole(name, settings, seed)
    make_configs()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
