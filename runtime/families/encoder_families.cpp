// The rows of encoders.
#include <algorithm>
#include <array>

#include "runtime/families/family_rules.h"

namespace pare::runtime {
namespace {

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
                  .head = "lm_head",
                  .positions_follow_padding = true,
                  .padding_is_fixed = true,
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
static_assert(std::ranges::all_of(kEncoderFamilies,
                                  [](const EncoderFamily& row) { return not_computed(row).empty(); }));

}  // namespace

std::span<const EncoderFamily> encoder_rows() {
  return kEncoderFamilies;
}

}  // namespace pare::runtime
