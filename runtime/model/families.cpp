#include "runtime/model/families.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace pare::runtime {
namespace {

constexpr std::array kFamilies{
    DecoderFamily{.name = "llama",
                  .model_type = "llama",
                  .architecture = "LlamaForCausalLM",
                  .may_lack_kv_heads = true,
                  .attention_bias_key = "attention_bias",
                  .feed_forward_bias_key = "mlp_bias",
                  .gguf = "llama",
                  .gguf_rotates_neighbours = true},
    DecoderFamily{.name = "mistral",
                  .model_type = "mistral",
                  .architecture = "MistralForCausalLM",
                  .windows = {.layers = WindowLayers::all}},
    DecoderFamily{.name = "mixtral",
                  .model_type = "mixtral",
                  .architecture = "MixtralForCausalLM",
                  .default_epsilon = 1e-5,
                  .default_rope_theta = 1e6,
                  .windows = {.layers = WindowLayers::all, .default_size = 0},
                  .mixture = MixtureTraits{.module = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"},
                  .gguf = "llama",
                  .gguf_rotates_neighbours = true},
    DecoderFamily{.name = "qwen2",
                  .model_type = "qwen2",
                  .architecture = "Qwen2ForCausalLM",
                  .has_qkv_bias = true,
                  .windows = {.layers = WindowLayers::from_a_layer_on, .default_layer = 28, .has_switch = true},
                  .gguf = "qwen2"},
    DecoderFamily{.name = "qwen3",
                  .model_type = "qwen3",
                  .architecture = "Qwen3ForCausalLM",
                  .needs_head_size = true,
                  .has_head_norms = true,
                  .attention_bias_key = "attention_bias",
                  .windows = {.layers = WindowLayers::from_a_layer_on, .default_layer = 28, .has_switch = true},
                  .gguf = "qwen3"},
    DecoderFamily{.name = "qwen3_moe",
                  .model_type = "qwen3_moe",
                  .architecture = "Qwen3MoeForCausalLM",
                  .has_head_norms = true,
                  .attention_bias_key = "attention_bias",
                  .windows = {.layers = WindowLayers::all, .has_switch = true},
                  .mixture = MixtureTraits{.older_count_key = "num_experts",  // before transformers 5
                                           .size_key = "moe_intermediate_size",
                                           .normalizing_key = "norm_topk_prob",
                                           .gguf_normalizes = true,
                                           .blocks = MixtureBlocks::by_step},
                  .gguf = "qwen3moe"},
    DecoderFamily{.name = "olmoe",
                  .model_type = "olmoe",
                  .architecture = "OlmoeForCausalLM",
                  .may_lack_kv_heads = true,
                  .default_epsilon = 1e-5,
                  .has_head_norms = true,
                  .head_norms_span_heads = true,
                  .attention_bias_key = "attention_bias",
                  .null_key = "clip_qkv",
                  .mixture = MixtureTraits{.older_count_key = "num_experts", .normalizing_key = "norm_topk_prob"},
                  .gguf = "olmoe"},
    DecoderFamily{.name = "qwen2_moe",
                  .model_type = "qwen2_moe",
                  .architecture = "Qwen2MoeForCausalLM",
                  .attention_bias_key = "qkv_bias",
                  .default_attention_bias = true,
                  .output_has_no_bias = true,
                  .refused_window_key = "use_sliding_window",
                  .mixture = MixtureTraits{.older_count_key = "num_experts",
                                           .size_key = "moe_intermediate_size",
                                           .normalizing_key = "norm_topk_prob",
                                           .shared = {.module = "shared_expert",
                                                      .gate = "shared_expert_gate",
                                                      .size_key = "shared_expert_intermediate_size"},
                                           .blocks = MixtureBlocks::by_step},
                  .gguf = "qwen2moe"},
    DecoderFamily{
        .name = "glm4_moe",
        .model_type = "glm4_moe",
        .architecture = "Glm4MoeForCausalLM",
        .default_epsilon = 1e-5,
        .head_norms_key = "use_qk_norm",
        .attention_bias_key = "attention_bias",
        .output_has_no_bias = true,
        .rotation = {.may_be_partial = true, .default_part = 0.5},
        .next_tokens_key = "num_nextn_predict_layers",
        .mixture =
            MixtureTraits{.older_count_key = "n_routed_experts",
                          .size_key = "moe_intermediate_size",
                          .normalizing_key = "norm_topk_prob",
                          .default_normalizing = true,
                          .default_smallest_sum = 1e-20,
                          .has_sigmoid_scores = true,
                          .correction = "gate.e_score_correction_bias",
                          .groups_key = "n_group",
                          .groups_per_token_key = "topk_group",
                          .factor_key = "routed_scaling_factor",
                          .shared = {.module = "shared_experts", .count_key = "n_shared_experts", .default_count = 1},
                          .blocks = MixtureBlocks::behind_the_first,
                          .default_first_blocks = 1},
        .gguf = "glm4moe",
        .gguf_feed_forward_norm = "post_attention_norm"},
    DecoderFamily{.name = "dots1",
                  .model_type = "dots1",
                  .architecture = "Dots1ForCausalLM",
                  .may_lack_kv_heads = true,
                  .has_head_norms = true,
                  .attention_bias_key = "attention_bias",
                  .windows = {.layers = WindowLayers::from_a_layer_on, .default_layer = 62},
                  .mixture = MixtureTraits{.older_count_key = "n_routed_experts",
                                           .size_key = "moe_intermediate_size",
                                           .normalizing_key = "norm_topk_prob",
                                           .default_smallest_sum = 1e-20,
                                           .has_sigmoid_scores = true,
                                           .correction = "gate.e_score_correction_bias",
                                           .groups_key = "n_group",
                                           .groups_per_token_key = "topk_group",
                                           .factor_key = "routed_scaling_factor",
                                           .shared = {.module = "shared_experts", .count_key = "n_shared_experts"},
                                           .blocks = MixtureBlocks::behind_the_first},
                  .gguf = "dots1"},
    DecoderFamily{
        .name = "deepseek_v2",
        .model_type = "deepseek_v2",
        .architecture = "DeepseekV2ForCausalLM",
        .may_lack_kv_heads = true,
        .attention_bias_key = "attention_bias",
        .rotation = {.turns_neighbours = true},
        .latent = {.exists = true},
        .fixed = {FixedKey{.key = "mlp_bias"}, FixedKey{.key = "norm_topk_prob"}},
        .mixture =
            MixtureTraits{.older_count_key = "n_routed_experts",
                          .size_key = "moe_intermediate_size",
                          .normalizing_key = "norm_topk_prob",
                          .groups_key = "n_group",
                          .groups_per_token_key = "topk_group",
                          .num_group_scores = 1,
                          .group_method_key = "topk_method",
                          .factor_key = "routed_scaling_factor",
                          .shared = {.module = "shared_experts", .count_key = "n_shared_experts", .default_count = 2},
                          .blocks = MixtureBlocks::behind_the_first},
        .gguf = "deepseek2"},
    DecoderFamily{
        .name = "deepseek_v3",
        .model_type = "deepseek_v3",
        .architecture = "DeepseekV3ForCausalLM",
        .may_lack_kv_heads = true,
        .attention_bias_key = "attention_bias",
        .rotation = {.turns_neighbours = true},
        .latent = {.exists = true, .neighbours_key = "rope_interleave"},
        .next_tokens_key = "num_nextn_predict_layers",
        .mixture =
            MixtureTraits{.older_count_key = "n_routed_experts",
                          .size_key = "moe_intermediate_size",
                          .normalizing_key = "norm_topk_prob",
                          .default_normalizing = true,
                          .default_smallest_sum = 1e-20,
                          .has_sigmoid_scores = true,
                          .correction = "gate.e_score_correction_bias",
                          .groups_key = "n_group",
                          .groups_per_token_key = "topk_group",
                          .default_groups = 8,
                          .default_groups_per_token = 4,
                          .factor_key = "routed_scaling_factor",
                          .default_factor = 2.5,
                          .shared = {.module = "shared_experts", .count_key = "n_shared_experts", .default_count = 1},
                          .blocks = MixtureBlocks::behind_the_first,
                          .default_first_blocks = 3},
        .gguf = "deepseek2"},
    DecoderFamily{.name = "gpt_oss",
                  .model_type = "gpt_oss",
                  .architecture = "GptOssForCausalLM",
                  .needs_head_size = true,
                  .default_epsilon = 1e-5,
                  .attention_bias_key = "attention_bias",
                  .default_attention_bias = true,
                  .default_rope_theta = 150000.0,
                  .rotation = {.default_parameters = R"({"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0,
                                   "beta_slow": 1.0, "truncate": false, "original_max_position_embeddings": 4096})"},
                  .windows = {.layers = WindowLayers::but_every_nth, .default_size = 128, .default_layer = 2},
                  .sinks = "sinks",
                  .mixture = MixtureTraits{.router = "router",
                                           .older_count_key = "num_experts",
                                           .has_biases = true,
                                           .are_stacked = true,
                                           .clamp_key = "swiglu_limit"},
                  .gguf = "gpt-oss",
                  .gguf_feed_forward_norm = "post_attention_norm"},
    DecoderFamily{.name = "ernie4_5_moe",
                  .model_type = "ernie4_5_moe",
                  .architecture = "Ernie4_5_MoeForCausalLM",
                  .tied_by_default = true,
                  .default_epsilon = 1e-5,
                  .default_rope_theta = 5e5,
                  .rotation = {.turns_neighbours = true},
                  .fixed = {FixedKey{.key = "use_bias"}},
                  .mixture = MixtureTraits{.older_count_key = "moe_num_experts",
                                           .per_token_key = "moe_k",
                                           .size_key = "moe_intermediate_size",
                                           .smallest_sum_key = "moe_norm_min",
                                           .default_smallest_sum = 1e-12,
                                           .correction = "moe_statics.e_score_correction_bias",
                                           .shared = {.module = "shared_experts",
                                                      .count_key = "moe_num_shared_experts",
                                                      .default_count = 2},
                                           .blocks = MixtureBlocks::in_a_range,
                                           .default_first_blocks = 1},
                  .gguf = "ernie4_5-moe"},
    DecoderFamily{.name = "gemma",
                  .model_type = "gemma",
                  .architecture = "GemmaForCausalLM",
                  .tied_by_default = true,
                  .needs_head_size = true,
                  .default_activation = "gelu_pytorch_tanh",
                  .has_unit_offset = true,
                  .attention_bias_key = "attention_bias",
                  .scales_embedding = true,
                  .bidirectional_key = "use_bidirectional_attention",
                  .gguf = "gemma"},
    DecoderFamily{.name = "gemma2",
                  .model_type = "gemma2",
                  .architecture = "Gemma2ForCausalLM",
                  .tied_by_default = true,
                  .needs_head_size = true,
                  .activation_key = "hidden_activation",
                  .default_activation = "gelu_pytorch_tanh",
                  .norms = {.attention_output = "post_attention_layernorm",
                            .feed_forward = "pre_feedforward_layernorm",
                            .feed_forward_output = "post_feedforward_layernorm"},
                  .has_unit_offset = true,
                  .attention_bias_key = "attention_bias",
                  .windows = {.layers = WindowLayers::but_every_nth, .default_layer = 2},
                  .scales_embedding = true,
                  .score_divisor_key = "query_pre_attn_scalar",
                  .score_softcap_key = "attn_logit_softcapping",
                  .logit_softcap_key = "final_logit_softcapping",
                  .default_score_softcap = 50.0,
                  .default_logit_softcap = 30.0,
                  .bidirectional_key = "use_bidirectional_attention",
                  .gguf = "gemma2",
                  .gguf_blocks_divided_by_width = 46},
    DecoderFamily{
        .name = "gemma3",
        .model_type = "gemma3_text",
        .architecture = "Gemma3ForCausalLM",
        .tied_by_default = true,
        .needs_head_size = true,
        .activation_key = "hidden_activation",
        .default_activation = "gelu_pytorch_tanh",
        .norms = {.attention_output = "post_attention_layernorm",
                  .feed_forward = "pre_feedforward_layernorm",
                  .feed_forward_output = "post_feedforward_layernorm"},
        .has_unit_offset = true,
        .has_head_norms = true,
        .attention_bias_key = "attention_bias",
        .default_rope_theta = 1e6,
        .local_rope_key = "rope_local_base_freq",
        .windows = {.layers = WindowLayers::but_every_nth, .default_layer = 6, .pattern_key = "sliding_window_pattern"},
        .scales_embedding = true,
        .score_divisor_key = "query_pre_attn_scalar",
        .logit_softcap_key = "final_logit_softcapping",
        .null_key = "attn_logit_softcapping",
        .bidirectional_key = "use_bidirectional_attention",
        .gguf = "gemma3",
        .gguf_blocks_divided_by_width = 62},  // the 27B model
    DecoderFamily{.name = "granite",
                  .model_type = "granite",
                  .architecture = "GraniteForCausalLM",
                  .may_lack_kv_heads = true,
                  .attention_bias_key = "attention_bias",
                  .feed_forward_bias_key = "mlp_bias",
                  .factors = {.embedding = "embedding_multiplier",
                              .scores = "attention_multiplier",
                              .residual = "residual_multiplier",
                              .logit_divisor = "logits_scaling"},
                  .gguf = "granite",
                  .gguf_rotates_neighbours = true},
    DecoderFamily{
        .name = "minicpm",
        .model_type = "minicpm",
        .architecture = "MiniCPMForCausalLM",
        .tied_by_default = true,
        .may_lack_kv_heads = true,
        .attention_bias_key = "attention_bias",
        .factors = {.embedding = "scale_emb", .residual_of_depth = "scale_depth", .logit_width = "dim_model_base"},
        .gguf = "minicpm",
        .gguf_rotates_neighbours = true},
    DecoderFamily{
        .name = "smollm3",
        .model_type = "smollm3",
        .architecture = "SmolLM3ForCausalLM",
        .tied_by_default = true,
        .attention_bias_key = "attention_bias",
        .feed_forward_bias_key = "mlp_bias",
        .default_rope_theta = 2e6,
        .rotation = {.layers_key = "no_rope_layers", .interval_key = "no_rope_layer_interval", .default_interval = 4},
        .refused_window_key = "use_sliding_window",
        .gguf = "smollm3",
        .gguf_rotates_neighbours = true},
    DecoderFamily{.name = "ministral",
                  .model_type = "ministral",
                  .architecture = "MinistralForCausalLM",
                  .windows = {.layers = WindowLayers::as_listed}},
    DecoderFamily{.name = "seed_oss",
                  .model_type = "seed_oss",
                  .architecture = "SeedOssForCausalLM",
                  .needs_head_size = true,
                  .attention_bias_key = "attention_bias",
                  .feed_forward_bias_key = "mlp_bias",
                  .default_attention_bias = true,
                  .output_bias_key = "attention_out_bias",
                  .gguf = "seed_oss",
                  .gguf_feed_forward_norm = "post_attention_norm"},
    DecoderFamily{.name = "phi3",
                  .model_type = "phi3",
                  .architecture = "Phi3ForCausalLM",
                  .may_lack_kv_heads = true,
                  .default_epsilon = 1e-5,
                  .stacks = {.qkv = "qkv_proj", .gate_up = "gate_up_proj"},
                  .rotation = {.may_be_partial = true, .only_longrope = true, .default_original_context = 4096},
                  .windows = {.layers = WindowLayers::all, .default_size = 0},
                  .gguf = "phi3"},
    DecoderFamily{.name = "glm",
                  .model_type = "glm",
                  .architecture = "GlmForCausalLM",
                  .needs_head_size = true,
                  .default_epsilon = 1.5625e-7,
                  .attention_bias_key = "attention_bias",
                  .default_attention_bias = true,
                  .output_has_no_bias = true,
                  .stacks = {.gate_up = "gate_up_proj"},
                  .rotation = {.turns_neighbours = true, .may_be_partial = true, .default_part = 0.5}},
    DecoderFamily{
        .name = "glm4",
        .model_type = "glm4",
        .architecture = "Glm4ForCausalLM",
        .needs_head_size = true,
        .norms = {.attention_output = "post_self_attn_layernorm", .feed_forward_output = "post_mlp_layernorm"},
        .default_epsilon = 1.5625e-7,
        .attention_bias_key = "attention_bias",
        .default_attention_bias = true,
        .output_has_no_bias = true,
        .stacks = {.gate_up = "gate_up_proj"},
        .rotation = {.turns_neighbours = true, .may_be_partial = true, .default_part = 0.5},
        .gguf = "glm4"},
    DecoderFamily{.name = "olmo2",
                  .model_type = "olmo2",
                  .architecture = "Olmo2ForCausalLM",
                  .may_lack_kv_heads = true,
                  .norms = {.attention = "",
                            .attention_output = "post_attention_layernorm",
                            .feed_forward = "",
                            .feed_forward_output = "post_feedforward_layernorm"},
                  .default_epsilon = 1e-5,
                  .has_head_norms = true,
                  .head_norms_span_heads = true,
                  .attention_bias_key = "attention_bias",
                  .gguf = "olmo2"},
    DecoderFamily{.name = "olmo3",
                  .model_type = "olmo3",
                  .architecture = "Olmo3ForCausalLM",
                  .may_lack_kv_heads = true,
                  .norms = {.attention = "",
                            .attention_output = "post_attention_layernorm",
                            .feed_forward = "",
                            .feed_forward_output = "post_feedforward_layernorm"},
                  .default_epsilon = 1e-5,
                  .has_head_norms = true,
                  .head_norms_span_heads = true,
                  .attention_bias_key = "attention_bias",
                  .default_rope_theta = 5e5,
                  .default_local_rope_theta = 5e5,
                  .has_ropes_by_layer_type = true,
                  .windows = {.layers = WindowLayers::but_every_nth, .default_layer = 4},
                  .gguf = "olmo2"},
    DecoderFamily{
        .name = "exaone4",
        .model_type = "exaone4",
        .architecture = "Exaone4ForCausalLM",
        .norms = {.attention = "",
                  .attention_output = "post_attention_layernorm",
                  .feed_forward = "",
                  .feed_forward_output = "post_feedforward_layernorm"},
        .default_epsilon = 1e-5,
        .has_head_norms = true,
        .rotation = {.only_in_windows = true, .all_without_windows = true},
        .windows = {.layers = WindowLayers::but_every_nth, .default_layer = 4, .pattern_key = "sliding_window_pattern"},
        .gguf = "exaone4"},
    DecoderFamily{.name = "starcoder2",
                  .model_type = "starcoder2",
                  .architecture = "Starcoder2ForCausalLM",
                  .modules = {.up = "c_fc", .down = "c_proj"},
                  .tied_by_default = true,
                  .default_activation = "gelu_pytorch_tanh",
                  .centers_norms = true,
                  .has_norm_bias = true,
                  .epsilon_key = "norm_epsilon",
                  .default_epsilon = 1e-5,
                  .attention_bias_key = "use_bias",
                  .feed_forward_bias_key = "use_bias",
                  .default_attention_bias = true,
                  .default_feed_forward_bias = true,
                  .windows = {.layers = WindowLayers::all, .default_size = 0},
                  .is_gated = false,
                  .gguf = "starcoder2"},
    DecoderFamily{.name = "cohere",
                  .model_type = "cohere",
                  .architecture = "CohereForCausalLM",
                  .tied_by_default = true,
                  .may_lack_kv_heads = true,
                  .norms = {.feed_forward = ""},
                  .centers_norms = true,
                  .epsilon_key = "layer_norm_eps",
                  .default_epsilon = 1e-5,
                  .attention_bias_key = "attention_bias",
                  .default_rope_theta = 5e5,
                  .rotation = {.turns_neighbours = true},
                  .factors = {.logits = "logit_scale", .default_logits = 0.0625},
                  .is_parallel = true,
                  .fixed = {FixedKey{.key = "use_qk_norm"}},
                  .gguf = "command-r"},
    DecoderFamily{
        .name = "cohere2",
        .model_type = "cohere2",
        .architecture = "Cohere2ForCausalLM",
        .tied_by_default = true,
        .may_lack_kv_heads = true,
        .norms = {.feed_forward = ""},
        .centers_norms = true,
        .epsilon_key = "layer_norm_eps",
        .default_epsilon = 1e-5,
        .attention_bias_key = "attention_bias",
        .rotation = {.turns_neighbours = true, .only_in_windows = true},
        .windows = {.layers = WindowLayers::but_every_nth, .default_layer = 4, .pattern_key = "sliding_window_pattern"},
        .factors = {.logits = "logit_scale", .default_logits = 0.0625},
        .is_parallel = true,
        .gguf = "cohere2"},
    DecoderFamily{.name = "opt",
                  .model_type = "opt",
                  .architecture = "OPTForCausalLM",
                  .modules = {.embedding = "decoder.embed_tokens",
                              .blocks = "decoder.layers.",
                              .final_norm = "decoder.final_layer_norm",
                              .o = "out_proj",
                              .feed_forward = "",
                              .up = "fc1",
                              .down = "fc2",
                              .positions = "decoder.embed_positions"},
                  .tied_by_default = true,
                  .sizes = {.feed_forward = "ffn_dim"},
                  .may_lack_kv_heads = true,
                  .activation_key = "activation_function",
                  .default_activation = "relu",
                  .norms = {.attention = "self_attn_layer_norm", .feed_forward = "final_layer_norm"},
                  .centers_norms = true,
                  .has_norm_bias = true,
                  .epsilon_key = "",
                  .default_epsilon = 1e-5,
                  .attention_bias_key = "enable_bias",
                  .feed_forward_bias_key = "enable_bias",
                  .default_attention_bias = true,
                  .default_feed_forward_bias = true,
                  .rotation = {.exists = false},
                  .is_gated = false,
                  .first_position = 2,
                  .fixed = {FixedKey{.key = "do_layer_norm_before", .value = true, .otherwise = true},
                            FixedKey{.key = "layer_norm_elementwise_affine", .value = true, .otherwise = true},
                            FixedKey{.key = "_remove_final_layer_norm"}},
                  .width_key = "word_embed_proj_dim"},
    DecoderFamily{.name = "gpt2",
                  .model_type = "gpt2",
                  .architecture = "GPT2LMHeadModel",
                  .modules = {.base = "transformer.",
                              .embedding = "wte",
                              .blocks = "h.",
                              .final_norm = "ln_f",
                              .attention = "attn.",
                              .o = "c_proj",
                              .up = "c_fc",
                              .down = "c_proj",
                              .positions = "wpe"},
                  .tied_by_default = true,
                  .sizes = {.hidden = "n_embd",
                            .blocks = "n_layer",
                            .heads = "n_head",
                            .context = "n_positions",
                            .feed_forward = "n_inner",
                            .default_feed_forward = 4},
                  .may_lack_kv_heads = true,
                  .activation_key = "activation_function",
                  .default_activation = "gelu_new",
                  .norms = {.attention = "ln_1", .feed_forward = "ln_2"},
                  .centers_norms = true,
                  .has_norm_bias = true,
                  .epsilon_key = "layer_norm_epsilon",
                  .default_epsilon = 1e-5,
                  .default_attention_bias = true,
                  .default_feed_forward_bias = true,
                  .stacks = {.qkv = "c_attn"},
                  .stores_transposed = true,
                  .rotation = {.exists = false},
                  .is_gated = false,
                  .fixed = {FixedKey{.key = "scale_attn_weights", .value = true, .otherwise = true},
                            FixedKey{.key = "scale_attn_by_inverse_layer_idx"}, FixedKey{.key = "add_cross_attention"}},
                  .gguf = "gpt2"},
    DecoderFamily{.name = "bloom",
                  .model_type = "bloom",
                  .architecture = "BloomForCausalLM",
                  .modules = {.base = "transformer.",
                              .embedding = "word_embeddings",
                              .blocks = "h.",
                              .final_norm = "ln_f",
                              .attention = "self_attention.",
                              .o = "dense",
                              .up = "dense_h_to_4h",
                              .down = "dense_4h_to_h",
                              .embedding_norm = "word_embeddings_layernorm"},
                  .tied_by_default = true,
                  .sizes = {.blocks = "n_layer",
                            .heads = "n_head",
                            .context = "seq_length",
                            .feed_forward = "",
                            .default_feed_forward = 4,
                            .default_context = 2048},
                  .may_lack_kv_heads = true,
                  .activation_key = "",
                  .default_activation = "gelu_pytorch_tanh",
                  .centers_norms = true,
                  .has_norm_bias = true,
                  .epsilon_key = "layer_norm_epsilon",
                  .default_epsilon = 1e-5,
                  .default_attention_bias = true,
                  .default_feed_forward_bias = true,
                  .stacks = {.qkv = "query_key_value", .alternates_by_head = true},
                  .rotation = {.exists = false},
                  .alibi = {.exists = true},
                  .is_gated = false,
                  .fixed = {FixedKey{.key = "apply_residual_connection_post_layernorm"}},
                  .gguf = "bloom"},
    DecoderFamily{.name = "mpt",
                  .model_type = "mpt",
                  .architecture = "MptForCausalLM",
                  .older_architecture = "MPTForCausalLM",
                  .modules = {.base = "transformer.",
                              .embedding = "wte",
                              .blocks = "blocks.",
                              .final_norm = "norm_f",
                              .attention = "attn.",
                              .o = "out_proj",
                              .feed_forward = "ffn.",
                              .up = "up_proj",
                              .down = "down_proj"},
                  .tied_by_default = true,
                  .sizes = {.hidden = "d_model",
                            .blocks = "n_layers",
                            .heads = "n_heads",
                            .context = "max_seq_len",
                            .feed_forward = "",
                            .default_feed_forward = 4},
                  .may_lack_kv_heads = true,
                  .activation_key = "",
                  .default_activation = "gelu",
                  .norms = {.attention = "norm_1", .feed_forward = "norm_2"},
                  .centers_norms = true,
                  .epsilon_key = "layer_norm_epsilon",
                  .default_epsilon = 1e-5,
                  .stacks = {.qkv = "Wqkv"},
                  .rotation = {.exists = false},
                  .alibi = {.exists = true, .section = "attn_config", .least_key = "alibi_bias_max"},
                  .is_gated = false,
                  .fixed = {FixedKey{.key = "no_bias", .value = true, .otherwise = true},
                            FixedKey{.key = "logit_scale", .must_be_null = true},
                            FixedKey{.key = "alibi", .section = "attn_config", .value = true, .otherwise = true},
                            FixedKey{.key = "qk_ln", .section = "attn_config"},
                            FixedKey{.key = "clip_qkv", .section = "attn_config", .must_be_null = true},
                            FixedKey{.key = "softmax_scale", .section = "attn_config", .must_be_null = true}},
                  .gguf = "mpt"},
    DecoderFamily{.name = "gpt_neox",
                  .model_type = "gpt_neox",
                  .architecture = "GPTNeoXForCausalLM",
                  .modules = {.base = "gpt_neox.",
                              .embedding = "embed_in",
                              .final_norm = "final_layer_norm",
                              .head = "embed_out",
                              .attention = "attention.",
                              .o = "dense",
                              .up = "dense_h_to_4h",
                              .down = "dense_4h_to_h"},
                  .may_lack_kv_heads = true,
                  .default_activation = "gelu",
                  .centers_norms = true,
                  .has_norm_bias = true,
                  .epsilon_key = "layer_norm_eps",
                  .default_epsilon = 1e-5,
                  .attention_bias_key = "attention_bias",
                  .default_attention_bias = true,
                  .default_feed_forward_bias = true,
                  .stacks = {.qkv = "query_key_value", .alternates_by_head = true},
                  .rotation = {.may_be_partial = true,
                               .default_part = 0.25,
                               .older_part_key = "rotary_pct",
                               .older_theta_key = "rotary_emb_base"},
                  .is_gated = false,
                  .is_parallel = true,
                  .parallel_key = "use_parallel_residual",
                  .gguf = "gptneox"},
};

constexpr std::array kEncoderFamilies{
    EncoderFamily{.name = "bert", .architecture = "BertModel"},
    EncoderFamily{.name = "roberta", .architecture = "RobertaModel", .positions_follow_padding = true},
    EncoderFamily{.name = "xlm-roberta", .architecture = "XLMRobertaModel", .positions_follow_padding = true},
    EncoderFamily{.name = "camembert", .architecture = "CamembertModel", .positions_follow_padding = true},
    EncoderFamily{.name = "distilbert",
                  .architecture = "DistilBertModel",
                  .width_key = "dim",
                  .feed_forward_key = "hidden_dim",
                  .heads_key = "n_heads",
                  .blocks_key = "n_layers",
                  .activation_key = "activation",
                  .epsilon_key = {},
                  .token_type_embedding = {},
                  .block = "transformer.layer.",
                  .q = "attention.q_lin",
                  .k = "attention.k_lin",
                  .v = "attention.v_lin",
                  .o = "attention.out_lin",
                  .attention_norm = "sa_layer_norm",
                  .up = "ffn.lin1",
                  .down = "ffn.lin2",
                  .feed_forward_norm = "output_layer_norm",
                  .unused_linear = {}},
    // Published models of sentences name the class with a head, and hold the encoder alone.
    EncoderFamily{.name = "mpnet",
                  .architecture = "MPNetModel",
                  .with_head = "MPNetForMaskedLM",
                  .positions_follow_padding = true,
                  .token_type_embedding = {},
                  .q = "attention.attn.q",
                  .k = "attention.attn.k",
                  .v = "attention.attn.v",
                  .o = "attention.attn.o",
                  .attention_norm = "attention.LayerNorm",
                  .distances = "encoder.relative_attention_bias",
                  .buckets_key = "relative_attention_num_buckets",
                  .default_buckets = 32,
                  .reach = 128},
    EncoderFamily{.name = "modernbert",
                  .architecture = "ModernBertModel",
                  .activation_key = "hidden_activation",
                  .epsilon_key = "norm_eps",
                  .default_epsilon = 1e-5,
                  .word_embedding = "embeddings.tok_embeddings",
                  .token_type_embedding = {},
                  .position_embedding = {},
                  .embedding_norm = "embeddings.norm",
                  .block = "layers.",
                  .o = "attn.Wo",
                  .attention_norm = "attn_norm",
                  .down = "mlp.Wo",
                  .feed_forward_norm = "mlp_norm",
                  .stacks = {.qkv = "attn.Wqkv", .gate_up = "mlp.Wi"},
                  .normalizes_first = true,
                  .lacks_first_norm = true,
                  .final_norm = "final_norm",
                  .norm_bias_key = "norm_bias",
                  .attention_bias_key = "attention_bias",
                  .feed_forward_bias_key = "mlp_bias",
                  .theta_key = "global_rope_theta",
                  .local_theta_key = "local_rope_theta",
                  .default_theta = 1.6e5,
                  .default_local_theta = 1e4,
                  .window_key = "local_attention",
                  .default_window = 128,
                  .pattern_key = "global_attn_every_n_layers",
                  .default_pattern = 3,
                  .needs_plain_weights = true,
                  .unused_linear = {}},
};

// Returns what a row asks for and nothing computes; "" for a sound row.
constexpr std::string_view not_computed(const DecoderFamily& row) {
  if ((row.norms.attention.empty() && row.norms.attention_output.empty()) ||
      (row.norms.feed_forward.empty() && row.norms.feed_forward_output.empty() && !row.is_parallel)) {
    return "halves of blocks without a norm";
  }
  const bool has_output_norms = !row.norms.attention_output.empty() || !row.norms.feed_forward_output.empty();
  if (has_output_norms && (row.centers_norms || row.is_parallel || !row.parallel_key.empty())) {
    return "a LayerNorm of outputs, or norms of the outputs of parallel halves";
  }
  if (row.mixture && row.stores_transposed) return "transposed experts";
  if (row.alibi.exists && (row.rotation.exists || !row.score_softcap_key.empty() || !row.modules.positions.empty())) {
    return "scores that fall with the distance beside rotation, positions or caps";
  }
  if (row.latent.exists &&
      (row.alibi.exists || !row.rotation.exists || row.rotation.may_be_partial || row.is_parallel ||
       !row.parallel_key.empty() || row.has_head_norms || !row.head_norms_key.empty() || !row.stacks.qkv.empty() ||
       row.windows.layers != WindowLayers::none || row.stores_transposed || row.norms.attention.empty() ||
       row.centers_norms || row.has_qkv_bias || !row.sinks.empty())) {
    return "latent attention with other norms, biases, rotations, windows, stacks or sinks";
  }
  if (!row.modules.embedding_norm.empty() && !(row.centers_norms && row.has_norm_bias)) {
    return "a norm of the embedding that is no LayerNorm with a bias";
  }
  if (row.has_head_norms && row.centers_norms) return "LayerNorms of heads";
  if (!row.parallel_key.empty() && row.norms.feed_forward.empty()) return "one norm where halves may not be parallel";
  if (row.mixture && (!row.is_gated || row.is_parallel || !row.parallel_key.empty())) {
    return "experts without a gate or beside attention";
  }
  if (!row.is_gated && !row.stacks.gate_up.empty()) return "a stack with a gate where there is none";
  if (row.mixture && (row.norms.feed_forward.empty() || !row.stacks.gate_up.empty())) {
    return "experts without a norm before them or in stacks";
  }
  const bool scales_residual = !row.factors.residual.empty() || !row.factors.residual_of_depth.empty();
  if (scales_residual && !(row.norms.attention_output.empty() && row.norms.feed_forward_output.empty())) {
    return "a factor behind norms of outputs";
  }
  if (scales_residual && (row.is_parallel || !row.parallel_key.empty())) return "a factor behind parallel halves";
  if (row.mixture && !row.feed_forward_bias_key.empty()) return "biases of experts by a key";
  if (row.mixture && row.mixture->are_stacked &&
      (!row.mixture->has_biases || row.mixture->blocks != MixtureBlocks::all || !row.mixture->shared.module.empty())) {
    return "stacks of experts without biases, beside dense blocks or with a shared expert";
  }
  if (row.mixture && !row.mixture->clamp_key.empty() &&
      (row.mixture->blocks != MixtureBlocks::all || !row.mixture->shared.module.empty())) {
    return "clamped gates beside other networks";
  }
  return "";
}
constexpr std::string_view not_computed(const EncoderFamily& row) {
  if (row.stacks.alternates_by_head) return "an encoder's heads that alternate";
  if (!row.theta_key.empty() && row.positions_follow_padding) return "rotations behind the padding token";
  if (row.lacks_first_norm && !row.normalizes_first) return "a sum without a norm";
  return "";
}
constexpr auto kIsComputed = [](const auto& row) { return not_computed(row).empty(); };
static_assert(std::ranges::all_of(kFamilies, kIsComputed) && std::ranges::all_of(kEncoderFamilies, kIsComputed));

}  // namespace

template <typename Row>
FamilyTable<Row>::FamilyTable(std::span<const Row> rows) {
  for (const Row& row : rows) rows_.push_back(&row);
}

template <typename Row>
void FamilyTable<Row>::add(const Row& row) {
  const auto refuse = [&](const std::string& why) {
    throw std::invalid_argument("the family '" + std::string(row.name) + "' " + why);
  };
  if (find(&Row::name, row.name) == &row) return;
  if (find(&Row::name, row.name) != nullptr) refuse("is there already: expected another name");
  if (!kIsComputed(row)) refuse("asks for " + std::string(not_computed(row)) + ", which nothing computes");
  rows_.push_back(&row);
}

template <typename Row>
const Row* FamilyTable<Row>::find(std::string_view Row::*field, std::string_view value) const {
  const auto row = std::ranges::find_if(rows_, [&](const Row* r) { return !value.empty() && r->*field == value; });
  return row == rows_.end() ? nullptr : *row;
}

template <typename Row>
std::vector<const Row*> FamilyTable<Row>::find_all(std::string_view Row::*field, std::string_view value) const {
  std::vector<const Row*> found;
  for (const Row* row : rows_) {
    if (!value.empty() && row->*field == value) found.push_back(row);
  }
  return found;
}

template <typename Row>
std::vector<std::string_view> FamilyTable<Row>::all(std::string_view Row::*field) const {
  std::vector<std::string_view> values;
  for (const Row* row : rows_) {
    const std::string_view value = row->*field;
    if (!value.empty() && std::ranges::find(values, value) == values.end()) values.push_back(value);
  }
  return values;
}

template <typename Row>
std::string FamilyTable<Row>::list(std::string_view Row::*field, std::string_view Row::*having) const {
  std::string all;
  for (const Row* row : rows_) {
    if ((row->*having).empty()) continue;
    const std::string value(row->*field);
    if ((", " + all + ",").find(", " + value + ",") == std::string::npos) all += (all.empty() ? "" : ", ") + value;
  }
  return all;
}

template class FamilyTable<DecoderFamily>;
template class FamilyTable<EncoderFamily>;

std::string_view what_is_missing(std::string_view model_type) {
  constexpr std::string_view kDelta = "layers of linear attention (gated delta rule)";
  constexpr std::string_view kConvolution = "layers of short convolutions";
  constexpr std::string_view kMamba = "state space layers (Mamba)";
  constexpr std::string_view kRecurrent = "recurrent layers";
  constexpr std::string_view kLatent = "latent attention (MLA) in another form than DeepSeek's";
  constexpr std::pair<std::string_view, std::string_view> kMissing[] = {
      {"qwen3_next", kDelta},
      {"qwen3_5", kDelta},
      {"qwen3_5_text", kDelta},
      {"qwen3_5_moe", kDelta},
      {"qwen3_5_moe_text", kDelta},
      {"olmo_hybrid", kDelta},
      {"kimi_linear", kDelta},
      {"lfm2", kConvolution},
      {"lfm2_moe", kConvolution},
      {"mamba", kMamba},
      {"mamba2", kMamba},
      {"falcon_mamba", kMamba},
      {"falcon_h1", kMamba},
      {"granitemoehybrid", kMamba},
      {"bamba", kMamba},
      {"jamba", kMamba},
      {"nemotron_h", kMamba},
      {"zamba", kMamba},
      {"zamba2", kMamba},
      {"recurrent_gemma", kRecurrent},
      {"rwkv", kRecurrent},
      {"xlstm", kRecurrent},
      {"minimax", "layers of linear attention (lightning attention)"},
      {"deepseek_v32", "sparse attention (an indexer of keys)"},
      {"glm4_moe_lite", kLatent},
      {"minicpm3", kLatent},
      {"ministral3", "a factor of queries that grows with the position (llama_4_scaling_beta)"},
  };
  const auto found = std::ranges::find(kMissing, model_type, &std::pair<std::string_view, std::string_view>::first);
  return found == std::end(kMissing) ? "" : found->second;
}

FamilyTable<DecoderFamily>& decoder_families() {
  static FamilyTable<DecoderFamily> table(kFamilies);
  return table;
}

FamilyTable<EncoderFamily>& encoder_families() {
  static FamilyTable<EncoderFamily> table(kEncoderFamilies);
  return table;
}

}  // namespace pare::runtime
