#include "runtime/import/gguf_places.h"

#include <utility>

#include "runtime/import/import_sources.h"

namespace pare::runtime {
namespace {

// GGUF's names and Hugging Face's.
constexpr std::pair<std::string_view, std::string_view> kNextTokenModules[] = {
    {"eh_proj", "eh_proj"},
    {"enorm", "enorm"},
    {"hnorm", "hnorm"},
    {"embed_tokens", "embed_tokens"},
    {"shared_head_head", "shared_head.head"},
    {"shared_head_norm", "shared_head.norm"}};

// Says the place of each row in a list of rows, which has each once.
std::function<int64_t(int64_t)> place_in(const std::vector<int32_t>& rows) {
  if (rows.empty()) return {};
  std::vector<int32_t> places(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) places[static_cast<size_t>(rows[i])] = static_cast<int32_t>(i);
  return [places](int64_t row) { return places[static_cast<size_t>(row)]; };
}

// A linear that lies under a name of its own, or in a stack with others. `row_of` is that of its own tensor, as in
// GgufSource.
struct Member {
  std::string name;
  const LinearDescription& linear;
  std::function<int64_t(int64_t)> row_of = {};
};

class Places {
 public:
  Places(const DecoderFamily& family, const ModelDescription& model, const std::function<bool(const std::string&)>& has)
      : family_(family), model_(model), has_(has) {}

  std::vector<GgufPlace> all();

 private:
  void add(const GgufSource& source, const std::string& name, std::optional<LinearDescription> linear = {});
  void add_linear(GgufSource source, const LinearDescription& linear);
  void add_members(const std::string& stack, const std::vector<Member>& members, const GgufSource& part);
  void add_norm(const std::string& stem, const std::optional<NormDescription>& norm);
  void add_attention(const std::string& from, const BlockDescription& block);
  void add_latents(const std::string& from, const BlockDescription& block);
  void add_feed_forward(const std::string& from, const BlockDescription& block);
  std::function<int64_t(int64_t)> rotation() const;

  const DecoderFamily& family_;
  const ModelDescription& model_;
  const std::function<bool(const std::string&)>& has_;
  std::vector<GgufPlace> places_;
};

std::vector<GgufPlace> Places::all() {
  add({.name = "token_embd.weight"}, model_.embedding_name + ".weight",
      LinearDescription{model_.embedding_name, model_.vocabulary_size, model_.hidden_size});
  add_norm("token_embd_norm", model_.embedding_norm);
  if (model_.has_learned_positions()) add({.name = "position_embd.weight"}, model_.position_table.name + ".weight");
  add_norm("output_norm", model_.final_norm);
  add({.name = "output.weight"}, model_.head.name + ".weight", model_.head);
  for (size_t b = 0; b < model_.blocks.size(); ++b) {
    const BlockDescription& block = model_.blocks[b];
    const std::string from = "blk." + std::to_string(b) + ".";
    add_norm(from + "attn_norm", block.attention_norm);
    add_attention(from, block);
    add_norm(from + "post_attention_norm", block.post_attention_norm);
    if (block.feed_forward_norm != block.attention_norm) {
      add_norm(from + std::string(family_.gguf_feed_forward_norm), block.feed_forward_norm);
    }
    add_feed_forward(from, block);
    add_norm(from + "post_ffw_norm", block.post_feed_forward_norm);
    // A block behind the model's has these, and predicts a later token.
    for (const auto& [stem, module] : kNextTokenModules) {
      add({.name = from + "nextn." + std::string(stem) + ".weight"},
          block.name + "." + std::string(module) + ".weight");
    }
  }
  return std::move(places_);
}

void Places::add(const GgufSource& source, const std::string& name, std::optional<LinearDescription> linear) {
  if (has_(source.name)) places_.push_back({.source = source, .name = name, .linear = std::move(linear)});
}

void Places::add_linear(GgufSource source, const LinearDescription& linear) {
  const std::string stem = source.name;
  source.name = stem + ".weight";
  add(source, linear.name + ".weight", linear);
  source.name = stem + ".bias";
  source.is_turned = false;
  if (linear.has_bias) add(source, linear.name + ".bias", linear);
}

// Adds linears whose rows may lie in a stack, one after the other. `part` says what part of the tensors they are.
void Places::add_members(const std::string& stack, const std::vector<Member>& members, const GgufSource& part) {
  int64_t num_stacked = 0, first = 0;
  for (const Member& member : members) num_stacked += member.linear.num_out;
  for (const Member& member : members) {
    for (const std::string suffix : {".weight", ".bias"}) {
      if (suffix == ".bias" && !member.linear.has_bias) continue;
      GgufSource source = part;
      source.name = member.name + suffix;
      source.row_of = member.row_of;
      if (!has_(source.name) && has_(stack + suffix)) {
        source.name = stack + suffix;
        source.num_stacked = num_stacked;
        source.num_taken = member.linear.num_out;
        source.row_of = [first, own = member.row_of](int64_t row) { return first + (own ? own(row) : row); };
      }
      add(source, member.linear.name + suffix, member.linear);
    }
    first += member.linear.num_out;
  }
}

void Places::add_norm(const std::string& stem, const std::optional<NormDescription>& norm) {
  if (!norm || !norm->exists()) return;
  const float offset = norm->unit_offset ? 1.0f : 0.0f;
  add({.name = stem + ".weight", .subtract = offset}, norm->name + ".weight");
  if (norm->has_bias) add({.name = stem + ".bias"}, norm->name + ".bias");
}

void Places::add_attention(const std::string& from, const BlockDescription& block) {
  const bool is_turned = model_.stores_transposed;
  if (block.latent) {
    add_latents(from, block);
  } else if (block.qkv) {
    add_linear({.name = from + "attn_qkv", .row_of = place_in(block.qkv_rows), .is_turned = is_turned}, *block.qkv);
  } else {
    add_members(
        from + "attn_qkv",
        {{from + "attn_q", block.q, rotation()}, {from + "attn_k", block.k, rotation()}, {from + "attn_v", block.v}},
        {.is_turned = is_turned});
  }
  add_norm(from + "attn_q_norm", block.q_norm);
  add_norm(from + "attn_k_norm", block.k_norm);
  if (block.sinks) add({.name = from + "attn_sinks.weight"}, block.sinks->name);
  add_linear({.name = from + "attn_output", .is_turned = is_turned}, block.o);
}

// Older files have what makes keys and values of a latent as Hugging Face has it, others in two tensors, and some both.
void Places::add_latents(const std::string& from, const BlockDescription& block) {
  const LatentAttention& latent = *block.latent;
  if (latent.q_a) add_linear({.name = from + "attn_q_a"}, *latent.q_a);
  add_norm(from + "attn_q_a_norm", latent.q_norm);
  add_linear({.name = from + (latent.q_a ? "attn_q_b" : "attn_q")}, block.q);
  add_linear({.name = from + "attn_kv_a_mqa"}, latent.kv_a);
  add_norm(from + "attn_kv_a_norm", latent.kv_norm);
  const std::string k = from + "attn_k_b.weight", v = from + "attn_v_b.weight";
  const bool is_split = has_(k) || has_(v);
  if (!is_split || has_(from + "attn_kv_b.weight")) return add_linear({.name = from + "attn_kv_b"}, latent.kv_b);
  places_.push_back(
      {.source = {.name = k}, .name = latent.kv_b.name + ".weight", .linear = latent.kv_b, .latent_values = v});
}

void Places::add_feed_forward(const std::string& from, const BlockDescription& block) {
  if (block.router) add_linear({.name = from + "ffn_gate_inp"}, *block.router);
  if (block.shared_gate) add_linear({.name = from + "ffn_gate_inp_shexp"}, *block.shared_gate);
  if (block.correction) add({.name = from + std::string(kGgufCorrection)}, block.correction->name);
  const int64_t num_routed = block.router ? block.num_routed() : 0;
  for (size_t e = 0; e < block.experts.size(); ++e) {
    const FeedForwardDescription& expert = block.experts[e];
    const bool is_routed = static_cast<int64_t>(e) < num_routed;
    const auto part = [&](const std::string& stem) {
      if (is_routed) {
        return GgufSource{.name = from + stem + "_exps", .part = static_cast<int64_t>(e), .num_parts = num_routed};
      }
      return GgufSource{.name = from + stem + (block.router ? "_shexp" : ""), .is_turned = model_.stores_transposed};
    };
    if (expert.gate_up) {
      add_linear(part("ffn_up"), *expert.gate_up);
    } else if (is_routed) {
      const GgufSource own = part("ffn_gate");
      add_members(from + "ffn_gate_up_exps", {{own.name, expert.gate}, {part("ffn_up").name, expert.up}},
                  {.part = own.part, .num_parts = own.num_parts});
    } else {
      if (expert.is_gated()) add_linear(part("ffn_gate"), expert.gate);
      add_linear(part("ffn_up"), expert.up);
    }
    add_linear(part("ffn_down"), expert.down);
  }
}

// Says which row of the file's q or k is one of Hugging Face's.
std::function<int64_t(int64_t)> Places::rotation() const {
  if (!family_.gguf_rotates_neighbours) return {};
  return [head_size = model_.head_size](int64_t row) { return neighbour_rotated_row(row, head_size); };
}

}  // namespace

std::vector<GgufPlace> gguf_places(const DecoderFamily& family, const ModelDescription& model,
                                   const std::function<bool(const std::string&)>& has) {
  return Places(family, model, has).all();
}

bool has_in_new_gguf(const std::string& name) {
  return !name.ends_with("attn_kv_b.weight");
}

}  // namespace pare::runtime
