"""Makes tests/golden/families: tiny random checkpoints of every supported family, with transformers' logits.

Each folder holds a Hugging Face checkpoint (config.json, safetensors), ids.npy (int32 [2, 64]) and logits.npy (float32
[2, 64, V]): what transformers computes in float32 with its eager attention. rope.json holds inverse frequencies and
attention factors of the scaled rotary embeddings; embedding_scales.json the embedding scales of gemma3 per dtype.

    python tests/golden/make_families.py [NAME...]   # needs torch, transformers, safetensors, numpy; all without names

The weights come from NumPy's PCG64 with fixed seeds, not from a library's initializer, and are large enough that
attention is far from uniform; norm gains and biases are random too, so that forgetting one of them changes the logits.
"""

import json
import pathlib
import shutil
import sys

import numpy as np
import safetensors
import safetensors.torch
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

OUT = pathlib.Path(__file__).resolve().parent / "families"
NUM_WINDOWS, NUM_TOKENS = 2, 64

# Two blocks of width 64, 4 query and 2 key/value heads of 16: 300 KB in float32 with the logits.
BASE = dict(vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, max_position_embeddings=128, rms_norm_eps=1e-5, bos_token_id=1,
            eos_token_id=2, pad_token_id=0)


# The same in 100 KB.
SMALL = {**BASE, "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "head_dim": 8}
NO_HEAD_SIZE = {k: v for k, v in SMALL.items() if k != "head_dim"}
NO_GROUPS = {k: v for k, v in NO_HEAD_SIZE.items() if k not in ("num_key_value_heads", "rms_norm_eps")}

# Heads of latent attention have sizes of their own.
LATENTS = {**NO_HEAD_SIZE, "num_key_value_heads": 4, "num_hidden_layers": 3}


def rope(theta, **more):
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **more}}


FAMILIES = {
    "llama_gqa_untied": dict(model_type="llama", tie_word_embeddings=False, **rope(10000.0), **BASE),
    # Wavelengths 6.3, 20, 63, ... fall in all three bands: kept (< 8), blended, divided by the factor (> 32).
    "llama3_rope_tied": dict(model_type="llama", tie_word_embeddings=True, **BASE,
                             **rope(10000.0, rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                    original_max_position_embeddings=32)),
    "llama_mqa_biases": dict(model_type="llama", attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
                             **rope(10000.0), **{**BASE, "num_key_value_heads": 1}),
    "llama_sharded_fp16": dict(model_type="llama", tie_word_embeddings=False, **rope(500000.0), **BASE),
    "mistral_window": dict(model_type="mistral", sliding_window=16, tie_word_embeddings=False, **rope(10000.0), **BASE),
    "qwen2_biases_tied": dict(model_type="qwen2", use_sliding_window=True, sliding_window=24, max_window_layers=1,
                              tie_word_embeddings=True, **rope(1000000.0),
                              **{k: v for k, v in BASE.items() if k != "head_dim"}),
    # The head size is 32 although 64 / 4 = 16.
    "qwen3_norms_bf16": dict(model_type="qwen3", tie_word_embeddings=False, **rope(1000000.0),
                             **{**BASE, "head_dim": 32}),
    "mixtral_experts": dict(model_type="mixtral", num_local_experts=4, num_experts_per_tok=2, sliding_window=None,
                            tie_word_embeddings=False, **rope(1000000.0), **{**BASE, "intermediate_size": 32}),
    # A dense block between two mixtures, and weights of experts that do not sum to 1.
    "qwen3_moe_dense_block_bf16": dict(model_type="qwen3_moe", num_experts=6, num_experts_per_tok=3,
                                       moe_intermediate_size=32, mlp_only_layers=[1], norm_topk_prob=False,
                                       tie_word_embeddings=True, **rope(1000000.0), **{**BASE, "num_hidden_layers": 3}),
    # The first block is dense. Stored as transformers 5 holds it: all experts of a block in two tensors.
    "qwen3_moe_fused": dict(model_type="qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
                            decoder_sparse_step=2, norm_topk_prob=True, tie_word_embeddings=True, **rope(10000.0),
                            **BASE),
    # Norms over all heads, and weights of experts that do not sum to 1.
    "olmoe_experts": dict(model_type="olmoe", num_experts=6, num_experts_per_tok=2, norm_topk_prob=False,
                          tie_word_embeddings=False, **rope(10000.0), **{**NO_HEAD_SIZE, "intermediate_size": 24}),
    # A shared expert of another width, and a dense block between two mixtures.
    "qwen2_moe_shared_bf16": dict(model_type="qwen2_moe", num_experts=4, num_experts_per_tok=2,
                                  moe_intermediate_size=16, shared_expert_intermediate_size=40, mlp_only_layers=[1],
                                  norm_topk_prob=False, tie_word_embeddings=False, **rope(1000000.0),
                                  **{**NO_HEAD_SIZE, "num_hidden_layers": 3}),
    # The first block is dense. Stored as transformers 5 holds it.
    "qwen2_moe_fused": dict(model_type="qwen2_moe", num_experts=5, num_experts_per_tok=3, moe_intermediate_size=16,
                            shared_expert_intermediate_size=16, decoder_sparse_step=2, norm_topk_prob=True,
                            tie_word_embeddings=True, **rope(10000.0), **NO_HEAD_SIZE),
    # Sigmoid scores with a correction, two of four groups, two shared experts as one, norms of heads.
    "glm4_moe_groups": dict(model_type="glm4_moe", n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=16,
                            n_shared_experts=2, n_group=4, topk_group=2, routed_scaling_factor=1.5,
                            first_k_dense_replace=1, norm_topk_prob=True, use_qk_norm=True, attention_bias=True,
                            tie_word_embeddings=False, **rope(10000.0, partial_rotary_factor=0.5),
                            **{**SMALL, "num_hidden_layers": 3}),
    "dots1_moe_windows_bf16": dict(model_type="dots1", n_routed_experts=6, num_experts_per_tok=2,
                                   moe_intermediate_size=16, n_shared_experts=1, n_group=1, topk_group=1,
                                   routed_scaling_factor=2.5, first_k_dense_replace=1, norm_topk_prob=False,
                                   sliding_window=10, max_window_layers=2, tie_word_embeddings=False, **rope(10000.0),
                                   **{**SMALL, "num_hidden_layers": 3}),
    # Softmax scores with a correction; blocks 1 and 2 of 4 are mixtures. Stored as transformers 5 holds it, once.
    "ernie4_5_moe_range": dict(model_type="ernie4_5_moe", moe_num_experts=6, moe_k=2, moe_intermediate_size=16,
                               moe_num_shared_experts=1, moe_layer_start_index=1, moe_layer_end_index=2,
                               tie_word_embeddings=True, **rope(500000.0),
                               **{**NO_HEAD_SIZE, "num_hidden_layers": 4}),
    "ernie4_5_moe_fused": dict(model_type="ernie4_5_moe", moe_num_experts=4, moe_k=2, moe_intermediate_size=16,
                               moe_num_shared_experts=0, moe_layer_interval=2, tie_word_embeddings=True,
                               **rope(500000.0), **NO_HEAD_SIZE),
    # Latents of queries, and of keys and values, which are narrower than keys. A group's best expert stands for it.
    "deepseek_v2_moe_groups": dict(model_type="deepseek_v2", q_lora_rank=24, kv_lora_rank=20, qk_nope_head_dim=8,
                                   qk_rope_head_dim=6, v_head_dim=10, n_routed_experts=8, num_experts_per_tok=3,
                                   moe_intermediate_size=16, n_shared_experts=2, n_group=4, topk_group=2,
                                   topk_method="group_limited_greedy", routed_scaling_factor=1.5,
                                   first_k_dense_replace=1, norm_topk_prob=False, tie_word_embeddings=False,
                                   **rope(10000.0, rope_type="yarn", factor=4.0, beta_fast=32, beta_slow=1,
                                          mscale=0.707, mscale_all_dim=0.5, original_max_position_embeddings=32),
                                   **LATENTS),
    # Queries without a latent, and no groups.
    "deepseek_v2_moe_lite_bf16": dict(model_type="deepseek_v2", q_lora_rank=None, kv_lora_rank=48, qk_nope_head_dim=8,
                                      qk_rope_head_dim=4, v_head_dim=8, n_routed_experts=6, num_experts_per_tok=2,
                                      moe_intermediate_size=16, n_shared_experts=1, topk_method="greedy",
                                      first_k_dense_replace=1, norm_topk_prob=False, tie_word_embeddings=True,
                                      **rope(10000.0), **{**LATENTS, "num_hidden_layers": 2}),
    # Sigmoid scores, corrections, groups by their two best; biases, and temperatures of scores.
    "deepseek_v3_moe_groups": dict(model_type="deepseek_v3", q_lora_rank=16, kv_lora_rank=12, qk_nope_head_dim=10,
                                   qk_rope_head_dim=8, v_head_dim=12, n_routed_experts=8, num_experts_per_tok=3,
                                   moe_intermediate_size=16, n_shared_experts=1, n_group=4, topk_group=2,
                                   routed_scaling_factor=2.5, first_k_dense_replace=1, norm_topk_prob=True,
                                   attention_bias=True, num_nextn_predict_layers=0, tie_word_embeddings=False,
                                   **rope(10000.0, rope_type="yarn", factor=40.0, beta_fast=32, beta_slow=1,
                                          mscale=1.0, mscale_all_dim=1.0, original_max_position_embeddings=16),
                                   **LATENTS),
    # Halves are rotated, and the only block is dense.
    "deepseek_v3_dense_halves": dict(model_type="deepseek_v3", q_lora_rank=40, kv_lora_rank=36, qk_nope_head_dim=8,
                                     qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=8, num_experts_per_tok=3,
                                     moe_intermediate_size=16, n_shared_experts=1, n_group=4, topk_group=2,
                                     first_k_dense_replace=2, rope_interleave=False, num_nextn_predict_layers=0,
                                     tie_word_embeddings=True, **rope(10000.0),
                                     **{**LATENTS, "num_hidden_layers": 2}),
    # Sinks, gates beyond their clamps, every other layer slides. Experts stand in stacks, as transformers holds them.
    "gpt_oss_moe_stacks": dict(model_type="gpt_oss", num_local_experts=4, num_experts_per_tok=2, sliding_window=9,
                               tie_word_embeddings=False,
                               **rope(150000.0, rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0,
                                      truncate=False, original_max_position_embeddings=32),
                               **{**SMALL, "intermediate_size": 24, "num_hidden_layers": 3}),
    # The same with its experts in MXFP4.
    "gpt_oss_moe_mxfp4_bf16": dict(model_type="gpt_oss", num_local_experts=5, num_experts_per_tok=3, sliding_window=12,
                                   tie_word_embeddings=False,
                                   **rope(150000.0, rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0,
                                          truncate=False, original_max_position_embeddings=16),
                                   **{**SMALL, "intermediate_size": 32}),
    # A width of 48, so that the embedding scale sqrt(48) is no power of two.
    "gemma3_local_global": dict(model_type="gemma3_text", tie_word_embeddings=True, sliding_window=12,
                                query_pre_attn_scalar=24, hidden_activation="gelu_pytorch_tanh",
                                layer_types=["sliding_attention", "sliding_attention", "full_attention"],
                                rope_parameters={
                                    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                                    "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0}},
                                **{**BASE, "num_hidden_layers": 3, "hidden_size": 48, "intermediate_size": 64}),
    # A head size that is not the width's quotient.
    "gemma_wide_heads": dict(model_type="gemma", hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True,
                             **rope(10000.0), **{**SMALL, "head_dim": 16}),
    # Caps so low that scores and logits reach them.
    "gemma2_caps": dict(model_type="gemma2", sliding_window=12, query_pre_attn_scalar=24, attn_logit_softcapping=4.0,
                        final_logit_softcapping=5.0, tie_word_embeddings=True, **rope(10000.0),
                        **{**SMALL, "num_hidden_layers": 3, "hidden_size": 48}),
    "granite_factors": dict(model_type="granite", embedding_multiplier=3, attention_multiplier=0.2,
                            residual_multiplier=0.4, logits_scaling=2.5, tie_word_embeddings=True, **rope(10000.0),
                            **NO_HEAD_SIZE),
    # Blocks 1 and 3 of 4 are not rotated.
    "smollm3_unrotated": dict(model_type="smollm3", no_rope_layers=[1, 0, 1, 0], tie_word_embeddings=True,
                              **rope(2000000.0), **{**NO_HEAD_SIZE, "num_hidden_layers": 4}),
    "ministral_mixed_windows": dict(model_type="ministral", sliding_window=10, tie_word_embeddings=False,
                                    layer_types=["full_attention", "sliding_attention", "sliding_attention"],
                                    **rope(10000.0), **{**SMALL, "num_hidden_layers": 3}),
    "seed_oss_biases": dict(model_type="seed_oss", attention_bias=True, attention_out_bias=False, mlp_bias=False,
                            tie_word_embeddings=False, **rope(10000.0), **SMALL),
    "phi3_stacks": dict(model_type="phi3", sliding_window=20, tie_word_embeddings=False, **rope(10000.0),
                        **NO_HEAD_SIZE),
    # 64 tokens are more than 32, so the long factors apply. Twelve of 16 channels are rotated.
    "phi3_longrope_partial": dict(model_type="phi3", tie_word_embeddings=True, original_max_position_embeddings=32,
                                  **rope(10000.0, rope_type="longrope", partial_rotary_factor=0.75,
                                         short_factor=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
                                         long_factor=[1.0, 1.5, 2.0, 3.0, 5.0, 8.0]),
                                  **{**NO_HEAD_SIZE, "hidden_size": 64}),
    # The same with factors for more tokens than there are.
    "phi3_longrope_short_bf16": dict(model_type="phi3", tie_word_embeddings=True, original_max_position_embeddings=100,
                                     **rope(10000.0, rope_type="longrope", short_factor=[1.0, 1.1, 1.3, 1.6],
                                            long_factor=[1.0, 2.0, 4.0, 8.0]), **NO_HEAD_SIZE),
    "glm_neighbours": dict(model_type="glm", attention_bias=True, tie_word_embeddings=False,
                           **rope(10000.0, partial_rotary_factor=0.5), **{**SMALL, "head_dim": 16}),
    "glm4_four_norms": dict(model_type="glm4", attention_bias=True, tie_word_embeddings=False,
                            **rope(10000.0, partial_rotary_factor=0.5), **SMALL),
    "olmo2_norms_after": dict(model_type="olmo2", tie_word_embeddings=False, **rope(500000.0), **NO_HEAD_SIZE),
    "olmo3_windows_yarn": dict(model_type="olmo3", sliding_window=8, tie_word_embeddings=False,
                               layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                               rope_parameters={
                                   "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0},
                                   "full_attention": {"rope_type": "yarn", "rope_theta": 500000.0, "factor": 4.0,
                                                      "original_max_position_embeddings": 32}},
                               **{**NO_HEAD_SIZE, "num_hidden_layers": 3}),
    "exaone4_unrotated": dict(model_type="exaone4", sliding_window=8, tie_word_embeddings=True,
                              layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                              **rope(10000.0), **{**NO_HEAD_SIZE, "num_hidden_layers": 3}),
    "starcoder2_plain_network": dict(model_type="starcoder2", use_bias=True, sliding_window=20, norm_epsilon=1e-5,
                                     tie_word_embeddings=True, **rope(10000.0), **NO_HEAD_SIZE),
    "cohere_parallel": dict(model_type="cohere", logit_scale=0.3, tie_word_embeddings=True, **rope(500000.0),
                            **NO_HEAD_SIZE),
    "cohere2_parallel_windows": dict(model_type="cohere2", logit_scale=0.3, sliding_window=9, tie_word_embeddings=True,
                                     layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                                     **rope(10000.0), **{**NO_HEAD_SIZE, "num_hidden_layers": 3}),
    "opt_learned_positions": dict(model_type="opt", ffn_dim=48, tie_word_embeddings=True, word_embed_proj_dim=32,
                                  **{k: v for k, v in NO_GROUPS.items() if k != "intermediate_size"}),
    "gpt_neox_parallel": dict(model_type="gpt_neox", tie_word_embeddings=False, hidden_act="gelu",
                              **rope(10000.0, partial_rotary_factor=0.5), **NO_GROUPS),
    "gpt_neox_sequential_bf16": dict(model_type="gpt_neox", tie_word_embeddings=False, hidden_act="gelu_new",
                                     use_parallel_residual=False, **rope(10000.0, partial_rotary_factor=0.25),
                                     **NO_GROUPS),
    # Weights are stored as [I, O], and n_inner is four times the width.
    "gpt2_transposed": dict(model_type="gpt2", n_embd=32, n_layer=2, n_head=4, n_positions=128, vocab_size=64,
                            bos_token_id=1, eos_token_id=2, pad_token_id=0),
    # Six heads: their slopes are not those of a power of two alone. bloom.py takes seq_length for granted.
    "bloom_distances": dict(model_type="bloom", hidden_size=48, n_layer=2, n_head=6, vocab_size=64, seq_length=128,
                            bos_token_id=1, eos_token_id=2, pad_token_id=0),
    "mpt_distances_bf16": dict(model_type="mpt", d_model=32, n_layers=2, n_heads=4, max_seq_len=128, vocab_size=64,
                               bos_token_id=1, eos_token_id=2),
    # transformers has no minicpm: it is granite with other names for its factors.
    "minicpm_factors": dict(model_type="granite", embedding_multiplier=12, attention_multiplier=8**-0.5,
                            residual_multiplier=1.4 / 2**0.5, logits_scaling=32 / 16, tie_word_embeddings=True,
                            **rope(10000.0), **NO_HEAD_SIZE),
}
STORED_DTYPE = {"llama_sharded_fp16": torch.float16, "qwen3_norms_bf16": torch.bfloat16,
                "qwen3_moe_dense_block_bf16": torch.bfloat16, "qwen2_moe_shared_bf16": torch.bfloat16,
                "dots1_moe_windows_bf16": torch.bfloat16, "gpt_oss_moe_mxfp4_bf16": torch.bfloat16,
                "deepseek_v2_moe_lite_bf16": torch.bfloat16,
                "phi3_longrope_short_bf16": torch.bfloat16, "gpt_neox_sequential_bf16": torch.bfloat16,
                "mpt_distances_bf16": torch.bfloat16}
# The others: their place. Those of mixtures keep tokens away from ties between experts.
SEED = {"mixtral_experts": 100, "qwen3_moe_dense_block_bf16": 101, "qwen3_moe_fused": 102, "olmoe_experts": 103,
        "qwen2_moe_shared_bf16": 117, "qwen2_moe_fused": 122, "glm4_moe_groups": 155,
        "dots1_moe_windows_bf16": 107, "ernie4_5_moe_range": 164, "ernie4_5_moe_fused": 109,
        "deepseek_v2_moe_groups": 202, "deepseek_v2_moe_lite_bf16": 203, "deepseek_v3_moe_groups": 204,
        "deepseek_v3_dense_halves": 205, "gpt_oss_moe_stacks": 200, "gpt_oss_moe_mxfp4_bf16": 210,
        "starcoder2_plain_network": 22, "cohere_parallel": 23, "cohere2_parallel_windows": 24,
        "opt_learned_positions": 25, "gpt_neox_parallel": 26, "gpt_neox_sequential_bf16": 27, "gpt2_transposed": 28,
        "bloom_distances": 29, "mpt_distances_bf16": 30}


def randomize(model, seed):
    """Linears N(0, 0.15^2), embedding and untied head N(0, 0.3^2), gains in [0.5, 1.5], biases N(0, 0.3^2), corrections
    of routers' scores N(0, 0.15^2), sinks N(0, 2^2), gates and ups that are clamped N(0, 0.8^2)."""
    rng = np.random.default_rng(seed)
    unit_offset = model.config.model_type.startswith("gemma")
    for name, parameter in sorted(model.named_parameters()):
        shape = tuple(parameter.shape)
        if ("norm" in name or ".ln_" in name) and not name.endswith(".bias"):
            values = rng.uniform(-0.5, 0.5, shape) + (0.0 if unit_offset else 1.0)
        elif name.endswith("sinks"):
            values = rng.normal(0.0, 2.0, shape)
        elif name.endswith("gate_up_proj") and model.config.model_type == "gpt_oss":
            values = rng.normal(0.0, 0.8, shape)
        elif name.endswith(("bias", "_bias")) or "embed" in name or "lm_head" in name:
            values = rng.normal(0.0, 0.3, shape)
        else:
            values = rng.normal(0.0, 0.15, shape)
        parameter.data.copy_(torch.from_numpy(values.astype(np.float32)))
    for name, buffer in sorted(model.named_buffers()):
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(torch.from_numpy(rng.normal(0.0, 0.15, tuple(buffer.shape)).astype(np.float32)))


def write_old_config(path):
    """Rewrites config.json with the keys used before transformers 5: rope_theta, torch_dtype, num_experts, ..."""
    config = json.loads(path.read_text())
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    config["rope_scaling"] = None if parameters["rope_type"] == "default" else parameters
    config["torch_dtype"] = config.pop("dtype")
    if "num_local_experts" in config:
        config["num_experts"] = config.pop("num_local_experts")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def write_mxfp4(folder, seed):
    """Puts random codes and scales of MXFP4 in the place of the experts' weights, as the files of gpt-oss have them."""
    rng = np.random.default_rng(seed)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    for name in sorted(name for name in tensors if name.endswith("experts.gate_up_proj") or
                       name.endswith("experts.down_proj")):
        experts, num_in, num_out = tensors.pop(name).shape
        codes = rng.integers(0, 256, (experts, num_out, num_in // 32, 16), dtype=np.uint8)
        scales = rng.integers(122, 126, (experts, num_out, num_in // 32), dtype=np.uint8)
        tensors[name + "_blocks"] = torch.from_numpy(codes)
        tensors[name + "_scales"] = torch.from_numpy(scales)
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def write_minicpm_config(path):
    """Rewrites a config.json of granite with the names of MiniCPM (its modeling_minicpm.py, of two blocks)."""
    config = json.loads(path.read_text())
    for key in ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling", "mlp_bias",
                "rope_parameters"):
        del config[key]
    config.update(model_type="minicpm", architectures=["MiniCPMForCausalLM"], scale_emb=12, scale_depth=1.4,
                  dim_model_base=16)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def make_family(name, settings, seed):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    dtype = STORED_DTYPE.get(name, torch.float32)
    config = AutoConfig.for_model(**settings)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    randomize(model, seed)
    model.to(dtype).save_pretrained(folder, max_shard_size="80KB" if "sharded" in name else "1GB",
                                    save_original_format="fused" not in name)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if "mxfp4" in name:
        write_mxfp4(folder, seed)
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)
    if name in ("mistral_window", "llama3_rope_tied", "qwen3_moe_dense_block_bf16"):
        write_old_config(folder / "config.json")

    # What is measured is the checkpoint as a reader finds it, computed in float32.
    more = {}
    if "mxfp4" in name:  # decoded, as transformers does by itself where it has no kernels for the codes
        more = dict(quantization_config=transformers.Mxfp4Config(dequantize=True))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **more)
    model = model.eval().float()
    ids_NT = np.random.default_rng(1000 + seed).integers(
        0, config.vocab_size, (NUM_WINDOWS, NUM_TOKENS), dtype=np.int32
    )
    if name == "minicpm_factors":
        write_minicpm_config(folder / "config.json")
    with torch.no_grad():
        logits_NTV = model(torch.from_numpy(ids_NT).long()).logits.float().numpy()
    np.save(folder / "ids.npy", ids_NT)
    np.save(folder / "logits.npy", logits_NTV)
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name:22s} {size / 1000:6.0f} KB  logits std {logits_NTV.std():.3f}")


def make_rope_cases():
    """Scaled rotary embeddings as transformers computes them: [{config, inverse_frequencies, attention_factor}]."""
    scalings = [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8192},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 16.0,
         "beta_slow": 2.0, "mscale": 0.707, "mscale_all_dim": 0.5},
        {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096, "attention_factor": 1.25,
         "truncate": False},
        {"rope_type": "yarn", "factor": 2.0},
    ]
    cases = []
    for theta in (10000.0, 500000.0):
        for scaling in scalings:
            settings = dict(model_type="llama", vocab_size=128, hidden_size=256, intermediate_size=64,
                            num_hidden_layers=1, num_attention_heads=4, head_dim=64, max_position_embeddings=131072,
                            tie_word_embeddings=True, rms_norm_eps=1e-5)
            parameters = {"rope_theta": theta, **scaling}
            config = AutoConfig.for_model(**settings, rope_parameters=dict(parameters))
            frequencies, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu")
            cases.append({"config": {**settings, "architectures": ["LlamaForCausalLM"], "dtype": "float32",
                                     "rope_parameters": parameters},
                          "inverse_frequencies": [float(f) for f in frequencies], "attention_factor": float(factor)})
    (OUT / "rope.json").write_text(json.dumps(cases) + "\n")


def make_embedding_scales():
    """gemma3's embedding scale (sqrt of the width, in the weights' dtype) as its embedding module applies it."""
    cases = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for width in (64, 640, 1152, 2560, 3840, 5376):
            module = transformers.models.gemma3.modeling_gemma3.Gemma3TextScaledWordEmbedding(1, width, 0, width**0.5)
            module.weight.data.fill_(1.0)
            scale = module.to(dtype)(torch.tensor([0]))[0, 0].item()
            cases.append({"dtype": str(dtype).removeprefix("torch."), "hidden_size": width, "scale": scale})
    (OUT / "embedding_scales.json").write_text(json.dumps(cases) + "\n")


def main():
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    OUT.mkdir(exist_ok=True)
    others = [name for name in FAMILIES if name not in SEED]
    for name, settings in FAMILIES.items():
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        make_family(name, settings, SEED[name] if name in SEED else others.index(name))
    make_rope_cases()
    make_embedding_scales()
    (OUT / "README.md").write_text(f"""# Tiny checkpoints of every family

Made by `tests/golden/make_families.py` with torch {torch.__version__.split("+")[0]},
transformers {transformers.__version__}, safetensors {safetensors.__version__}, numpy {np.__version__}.
The weights and ids are random numbers that the script draws, and the logits and frequencies are computed from them:
no third party's work is inside.

| file | what | source, licence |
|---|---|---|
| `*/*` | a folder a family: a Hugging Face checkpoint, `ids.npy` (int32 [2, 64]) and \
`logits.npy` (float32 [2, 64, V]), computed in float32 with eager attention | make_families.py, no licence applies |
| rope.json, embedding_scales.json | values of transformers' own functions | make_families.py, no licence applies |
""")


if __name__ == "__main__":
    main()
