#include "runtime/import/gguf_tensors.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/import/gguf_config.h"
#include "runtime/import/gguf_stream.h"
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

class Tensors {
 public:
  Tensors(const std::shared_ptr<const GgufFile>& file, const DecoderFamily& family, const ModelDescription& model,
          const std::function<DType(const GgufTensor&)>& written_dtype)
      : file_(file), family_(family), model_(model), written_dtype_(written_dtype) {}

  std::vector<StreamedTensor> all();

 private:
  void add(GgufSource source, const std::string& name);
  float factor_of(const GgufSource& source);
  void add_linear(GgufSource source, const LinearDescription& linear);
  void add_members(const std::string& stack, const std::vector<Member>& members, const GgufSource& part);
  void add_norm(const std::string& stem, const std::optional<NormDescription>& norm);
  void add_attention(const std::string& from, const BlockDescription& block);
  void add_latents(const std::string& from, const BlockDescription& block);
  void add_feed_forward(const std::string& from, const BlockDescription& block);
  std::function<int64_t(int64_t)> rotation() const;
  void refuse_what_is_left() const;

  const std::shared_ptr<const GgufFile>& file_;
  const DecoderFamily& family_;
  const ModelDescription& model_;
  const std::function<DType(const GgufTensor&)>& written_dtype_;
  std::vector<StreamedTensor> tensors_;
  std::set<std::string> known_;
};

std::vector<StreamedTensor> Tensors::all() {
  add({.name = "token_embd.weight"}, model_.embedding_name + ".weight");
  add_norm("token_embd_norm", model_.embedding_norm);
  if (model_.has_learned_positions()) add({.name = "position_embd.weight"}, model_.position_table.name + ".weight");
  add_norm("output_norm", model_.final_norm);
  add({.name = "output.weight"}, model_.head.name + ".weight");
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
  refuse_what_is_left();
  return std::move(tensors_);
}

// Weights in NVFP4 have a factor in a tensor of its own, one for each expert. That of their inputs is of no use where
// inputs are not rounded.
float Tensors::factor_of(const GgufSource& source) {
  constexpr std::string_view kWeight = ".weight";
  if (!source.name.ends_with(kWeight)) return 1.0f;
  const std::string stem = source.name.substr(0, source.name.size() - kWeight.size());
  if (file_->tensors().contains(stem + ".input_scale")) known_.insert(stem + ".input_scale");
  const auto found = file_->tensors().find(stem + ".scale");
  if (found == file_->tensors().end()) return 1.0f;
  const GgufTensor& tensor = found->second;
  known_.insert(tensor.name);
  if (const int64_t expected = std::max(source.num_parts, int64_t{1}); tensor.num_elements() != expected) {
    throw std::runtime_error(file_->where() + ": " + tensor.name + ": expected " + std::to_string(expected) +
                             " factors, found the shape " + shape_text(tensor.shape));
  }
  std::vector<float> factors(static_cast<size_t>(tensor.num_elements()));
  decode_gguf_blocks(tensor.type, tensor.data, factors);
  return factors[static_cast<size_t>(source.part)];
}

void Tensors::add(GgufSource source, const std::string& name) {
  if (!file_->tensors().contains(source.name)) return;
  known_.insert(source.name);
  source.factor = factor_of(source);
  tensors_.push_back(stream_gguf(file_, source, name, written_dtype_(file_->tensor(source.name))));
}

void Tensors::add_linear(GgufSource source, const LinearDescription& linear) {
  const std::string stem = source.name, name = linear.name + ".weight";
  source.name = stem + ".weight";
  add(source, name);
  // A matrix of one row may be a vector in the file.
  const bool is_vector = linear.num_out == 1 && !tensors_.empty() && tensors_.back().name == name &&
                         tensors_.back().shape == std::vector{linear.num_in};
  if (is_vector) tensors_.back().shape = {1, linear.num_in};
  source.name = stem + ".bias";
  source.is_turned = false;
  if (linear.has_bias) add(source, linear.name + ".bias");
}

// Adds linears whose rows may lie in a stack, one after the other. `part` says what part of the tensors they are.
void Tensors::add_members(const std::string& stack, const std::vector<Member>& members, const GgufSource& part) {
  int64_t num_stacked = 0, first = 0;
  for (const Member& member : members) num_stacked += member.linear.num_out;
  for (const Member& member : members) {
    for (const std::string suffix : {".weight", ".bias"}) {
      if (suffix == ".bias" && !member.linear.has_bias) continue;
      GgufSource source = part;
      source.name = member.name + suffix;
      source.row_of = member.row_of;
      if (!file_->tensors().contains(source.name) && file_->tensors().contains(stack + suffix)) {
        source.name = stack + suffix;
        source.num_stacked = num_stacked;
        source.num_taken = member.linear.num_out;
        source.row_of = [first, own = member.row_of](int64_t row) { return first + (own ? own(row) : row); };
      }
      add(source, member.linear.name + suffix);
    }
    first += member.linear.num_out;
  }
}

void Tensors::add_norm(const std::string& stem, const std::optional<NormDescription>& norm) {
  if (!norm || !norm->exists()) return;
  const float offset = norm->unit_offset ? 1.0f : 0.0f;
  add({.name = stem + ".weight", .subtract = offset}, norm->name + ".weight");
  if (norm->has_bias) add({.name = stem + ".bias"}, norm->name + ".bias");
}

void Tensors::add_attention(const std::string& from, const BlockDescription& block) {
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
void Tensors::add_latents(const std::string& from, const BlockDescription& block) {
  const LatentAttention& latent = *block.latent;
  if (latent.q_a) add_linear({.name = from + "attn_q_a"}, *latent.q_a);
  add_norm(from + "attn_q_a_norm", latent.q_norm);
  add_linear({.name = from + (latent.q_a ? "attn_q_b" : "attn_q")}, block.q);
  add_linear({.name = from + "attn_kv_a_mqa"}, latent.kv_a);
  add_norm(from + "attn_kv_a_norm", latent.kv_norm);
  const std::string k = from + "attn_k_b.weight", v = from + "attn_v_b.weight";
  const bool is_split = file_->tensors().contains(k) || file_->tensors().contains(v);
  known_.insert({k, v});
  if (!is_split || file_->tensors().contains(from + "attn_kv_b.weight")) {
    return add_linear({.name = from + "attn_kv_b"}, latent.kv_b);
  }
  const DType dtype = written_dtype_(file_->tensor(k));
  tensors_.push_back(stream_gguf_latent(file_, k, v, latent.kv_b.name + ".weight", dtype));
}

void Tensors::add_feed_forward(const std::string& from, const BlockDescription& block) {
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
std::function<int64_t(int64_t)> Tensors::rotation() const {
  if (!family_.gguf_rotates_neighbours) return {};
  return [head_size = model_.head_size](int64_t row) { return neighbour_rotated_row(row, head_size); };
}

// A tensor that has no place would be lost silently.
void Tensors::refuse_what_is_left() const {
  for (const auto& [name, tensor] : file_->tensors()) {
    if (known_.contains(name) || is_gguf_setting(name)) continue;
    throw std::invalid_argument(file_->where() + ": tensor '" + name + "' does not belong to a " +
                                std::string(family_.model_type) + " model of " + std::to_string(model_.blocks.size()) +
                                " blocks, as the metadata describe it");
  }
}

}  // namespace

std::vector<StreamedTensor> gguf_tensors(const std::shared_ptr<const GgufFile>& file, const DecoderFamily& family,
                                         const ModelDescription& model,
                                         const std::function<DType(const GgufTensor&)>& written_dtype) {
  return Tensors(file, family, model, written_dtype).all();
}

}  // namespace pare::runtime
